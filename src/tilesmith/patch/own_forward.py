"""A module's own `forward`, which hides the method of its class: giving ours to a module, and removing it."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn

from torch import nn

FORWARD = "_tilesmith_forward"
"""The attribute of a patched module that holds our forward."""
GUARD = "_tilesmith_guard"


class _Guard:
    """An attribute that cannot be pickled, but copied.

    pickle stores a method as a name, which the class of the module does not have: what it writes cannot be loaded.
    """

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a model that Tilesmith patched cannot be pickled; call unpatch(model) before, or save model.state_dict()"
        )

    def __deepcopy__(self, memo: Any) -> _Guard:
        return self


def give_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module our forward."""
    method = MethodType(forward, module)
    setattr(module, FORWARD, method)
    setattr(module, GUARD, _Guard())
    setattr(module, "forward", method)  # noqa: B010  # mypy rejects the assignment to a method


def remove_forward(module: nn.Module) -> None:
    """Undo `give_forward`."""
    for name in ("forward", FORWARD, GUARD):
        delattr(module, name)
