"""Checkpoints: written atomically, and checked when read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim import AdamW

from tilesmith.training.running import checkpoint
from tilesmith.training.running.checkpoint import CheckpointError


def trained(seed: int, **options: Any) -> tuple[nn.Module, AdamW]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), **options)
    for _ in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_restored_checkpoint_trains_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    """Also with an optimiser that keeps its step on the device."""
    model, optimizer = trained(0)
    path = tmp_path / "deep" / "checkpoint"
    checkpoint.write(path, checkpoint.taken(model, optimizer, {"losses": [1.5, 2.5]}))
    read = checkpoint.read(path)
    assert read.facts == {"losses": [1.5, 2.5]}
    other, other_optimizer = trained(1, **options)
    checkpoint.restore(read, other, other_optimizer)
    for one, its_optimizer in ((model, optimizer), (other, other_optimizer)):
        one.zero_grad()
        one(torch.ones(4, 3)).square().sum().backward()
        its_optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, dict(other.named_parameters())[name], rtol=0, atol=1e-7)
    steps = {float(state["step"]) for state in other_optimizer.state.values()}
    assert steps == {3.0}


@pytest.mark.parametrize("damage", ["cut", "flipped header", "empty", "text"])
def test_rejects_damaged_file(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.write(path, checkpoint.taken(*trained(0), {}))
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-10],
            "flipped header": b"\xff" * 8 + content[8:],
            "empty": b"",
            "text": b"once upon a time there was no checkpoint",
        }[damage]
    )
    with pytest.raises(CheckpointError, match=r"checkpoint is damaged or not a checkpoint") as caught:
        checkpoint.read(path)
    assert "\n" not in str(caught.value)


def test_rejects_other_safetensors_files_and_missing_ones(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(safetensors.torch.save({"weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match="is not a checkpoint of `tilesmith train`"):
        checkpoint.read(path)
    path.write_bytes(safetensors.torch.save({"weight": torch.ones(2)}, {"tilesmith": '{"format": "older"}'}))
    with pytest.raises(CheckpointError, match="is from another version"):
        checkpoint.read(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.read(tmp_path / "nowhere")


@pytest.mark.parametrize("place", range(0, 100, 4))
def test_rejects_a_file_with_one_flipped_bit(tmp_path: Path, place: int) -> None:
    """At 25 places from the first byte to the last: in the header's length, in the header, in every tensor."""
    path = tmp_path / "checkpoint"
    checkpoint.write(path, checkpoint.taken(*trained(0), {"losses": [1.5]}))
    content = bytearray(path.read_bytes())
    content[place * (len(content) - 1) // 96] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "facts", ["[]", "5", '"text"', "null", "{", "", '{"format": 3}', "{}", "[" * 100_000], ids=lambda facts: facts[:9]
)
def test_rejects_other_facts(tmp_path: Path, facts: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(safetensors.torch.save({"weight": torch.ones(2)}, {"tilesmith": facts}))
    with pytest.raises(CheckpointError, match=r"not a checkpoint of|another version"):
        checkpoint.read(path)


@pytest.mark.parametrize("change", ["missing", "shape", "nan", "integers", "surplus"])
def test_rejects_other_optimizer_state_and_names_the_tensor(change: str) -> None:
    model, optimizer = trained(0)
    taken = checkpoint.taken(model, optimizer, {})
    name = "optimizer.bias.exp_avg_sq"
    if change == "missing":
        del taken.tensors[name]
    elif change == "surplus":
        name = "optimizer.bias.momentum"
        taken.tensors[name] = torch.ones(2)
    else:
        taken.tensors[name] = {
            "shape": torch.ones(3), "nan": torch.full((2,), torch.nan), "integers": torch.ones(2, dtype=torch.int64),
        }[change]  # fmt: skip
    with pytest.raises(CheckpointError, match=name):
        checkpoint.restore(taken, model, optimizer)


def test_rejects_another_model_and_names_the_parameter() -> None:
    taken = checkpoint.taken(*trained(0), {})
    wider = nn.Linear(4, 2)
    with pytest.raises(CheckpointError, match=r"weight is \(2, 3\) in the checkpoint, but \(2, 4\) in the model"):
        checkpoint.restore(taken, wider, AdamW(wider.parameters()))
    deeper = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.restore(taken, deeper, AdamW(deeper.parameters()))


def test_failed_write_keeps_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.write(path, checkpoint.taken(*trained(0), {"losses": [1.0]}))

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(path, checkpoint.taken(*trained(1), {"losses": [2.0]}))
    assert checkpoint.read(path).facts == {"losses": [1.0]}
    assert list(tmp_path.iterdir()) == [path], "no partial file is left"


def test_require_room_rejects_folders_and_full_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    checkpoint.require_room(tmp_path / "new" / "checkpoint", model)
    with pytest.raises(OSError, match="directory"):
        checkpoint.require_room(tmp_path, model)
    usage = type("Usage", (), {"free": 3 * 8 * 4 - 1})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="only 0 MiB are free"):
        checkpoint.require_room(tmp_path / "checkpoint", model)


def test_require_room_counts_the_old_file_beside_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "checkpoint"
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3 * 8 * 4}))
    checkpoint.require_room(path, model)
    with pytest.raises(OSError, match="the last checkpoint and the next one need"):
        checkpoint.require_room(path, model, files=2)
    path.write_bytes(b'{"__metadata__":{"tilesmith":')
    checkpoint.require_room(path, model, files=2)
