"""Several processes, as torchrun starts them: each with a copy of the model (DDP), or each with a shard (FSDP2).

The batch is that of all processes together, so that one process and many train alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tilesmith.training.precision import Rounded


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and the device it computes on."""

    device: torch.device
    rank: int = 0
    processes: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def alone() -> Place:
    """One process, on the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    return Place(torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu"))


@contextmanager
def joined() -> Iterator[Place]:
    """This process's place among those that torchrun started; alone where it did not."""
    if "WORLD_SIZE" not in os.environ:
        yield alone()
        return
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    ours = not dist.is_initialized()  # or whoever calls us has done it, and goes on with it
    if ours:
        dist.init_process_group("nccl" if has_gpu else "gloo", device_id=device if has_gpu else None)
    try:
        yield Place(device, dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()


@dataclass(frozen=True)
class Prepared:
    """A model as a step calls it. `synchronised(last)` surrounds each piece of a batch."""

    module: nn.Module
    synchronised: Callable[[bool], AbstractContextManager[None]]


def prepare(model: nn.Module, place: Place, dtype: torch.dtype, *, shard: bool) -> Prepared:
    """The model on its device, computing in `dtype`, with gradients that are averaged over all processes."""
    model.to(place.device)
    if shard:
        return _sharded(model, place, dtype)
    module = model if dtype == torch.float32 else Rounded(model, dtype)
    if place.processes == 1:
        return Prepared(module, lambda last: nullcontext())
    replica = DistributedDataParallel(module, device_ids=[place.device] if place.device.type == "cuda" else None)
    return Prepared(replica, lambda last: nullcontext() if last else replica.no_sync())


def _sharded(model: nn.Module, place: Place, dtype: torch.dtype) -> Prepared:
    """Layer by layer, so that no process ever holds more than a layer's parameters whole, and those of the root."""
    mesh = init_device_mesh(place.device.type, (place.processes,))
    # Activations have the dtype of the parameters already; the tables of the rotation are to keep theirs.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
    root = fully_shard(model, mesh=mesh, mp_policy=policy)

    def synchronised(last: bool) -> AbstractContextManager[None]:
        assert isinstance(root, FSDPModule)
        root.set_requires_gradient_sync(last)
        return nullcontext()

    return Prepared(model, synchronised)


def mean_over_processes(values: Tensor) -> Tensor:
    """Of what each process has found for its share of the batch."""
    if dist.is_initialized():
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process: shards are gathered."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value on the device of a tensor, and divided as that is."""
    value = value.to(tensor.device)
    return distribute_tensor(value, tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else value
