"""Memory of a call beyond its inputs: the allocator's peak, and what is kept for the backward."""

from __future__ import annotations

import torch
from torch import Tensor

from tilesmith.lab.bench.measuring.timed_calls import TimedCalls, as_outputs, leaves_of, with_arguments
from tilesmith.lab.bench.measuring.timing import Call


def peak_bytes(call: Call) -> int:
    """Return how many bytes the call's peak lies above the memory allocated before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def kept_bytes(timed: TimedCalls) -> int:
    """Return the bytes that the forward saves for the backward, saved inputs included."""
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    arguments = timed.sets[0].arguments
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        differentiable = {**arguments, **leaves_of(timed.spec, arguments)}
        outputs = as_outputs(with_arguments(timed.function, timed.spec, differentiable)())
    del outputs
    return sum(saved.values())
