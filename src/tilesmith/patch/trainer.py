"""`patch` for Hugging Face's Trainer and for the trainers of TRL: one callback."""

from __future__ import annotations

from typing import Any

from torch import nn

from tilesmith.arguments import FLAG, one_of, require
from tilesmith.patch.patching import patch


def trainer_callback(**switches: bool) -> Any:
    """Return a callback that patches the model of a Trainer: Trainer(..., callbacks=[trainer_callback()]).

    `switches` are those of `patch`. The callback patches when the Trainer is made, before the model is wrapped for
    several GPUs, and the model inside a PEFT model. TRL's trainers read the logits of every step, so for them `loss`
    is False unless it is given.
    """
    for name, value in switches.items():
        require("trainer_callback", name, name, one_of("norm", "rotary", "mlp", "loss", "attention"))
        require("trainer_callback", name, value, FLAG)
    from transformers import TrainerCallback

    class PatchCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
        def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            if isinstance(model, nn.Module):
                patch(_inside(model), **{"loss": not type(args).__module__.startswith("trl."), **switches})

    return PatchCallback()


def _inside(model: Any) -> nn.Module:
    """Return the model of transformers inside a PEFT model, or the model itself."""
    inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner
