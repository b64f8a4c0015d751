"""Operators that a script registers for CUDA, on a machine without a GPU.

PyTorch's dispatcher sees host tensors, and would not call such an operator. So each is registered for the host as well.
There it serves the calls on tensors that the script put on the GPU, and leaves the others to the host's own kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.library import Library
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from tilesmith.lab.inspect.running.tensor_tracker import TensorTracker

_BELOW_MODES = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


@contextmanager
def cuda_kernels_on_host(tracker: TensorTracker) -> Iterator[None]:
    """Register operators for the host where the script registers them for CUDA, inside the context."""
    stock: Callable[..., None] = Library.impl

    def impl(library: Library, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        key = dispatch_key or library.dispatch_key
        is_plain = callable(fn) and fn is not torch.library.fallthrough_kernel and not options.get("with_keyset")
        if is_plain and key in _BELOW_MODES:
            fn = _tracked(fn, tracker)
        stock(library, op_name, fn, dispatch_key, **options)
        if is_plain and key == "CUDA":
            tracker.never_defer()
            serve = _for_pretended_gpu(fn, _host_kernel(library, op_name), tracker)
            with warnings.catch_warnings():  # PyTorch warns of the kernel that is replaced
                warnings.simplefilter("ignore")
                _replace(stock, library, op_name, serve, options)

    with patch.object(Library, "impl", impl):
        yield


def _replace(stock: Callable[..., None], library: Library, op_name: Any, fn: Any, options: dict[str, Any]) -> None:
    """Register a function for the host, also where the script has registered one before."""
    try:
        stock(library, op_name, fn, "CPU", **options)
    except RuntimeError:
        if "allow_override" not in signature(stock).parameters:
            return  # PyTorch is too old to replace it: the host's own kernel serves
        stock(library, op_name, fn, "CPU", **{**options, "allow_override": True})


def _tracked(function: Callable[..., Any], tracker: TensorTracker) -> Callable[..., Any]:
    """Return the function with its torch calls tracked: below the dispatcher, modes are off."""

    def call(*arguments: Any, **options: Any) -> Any:
        with tracker.inside_call(on_gpu=False), tracker:
            return function(*arguments, **options)

    return call


def _for_pretended_gpu(cuda: Callable[..., Any], host: Any, tracker: TensorTracker) -> Callable[..., Any]:
    tracked = _tracked(cuda, tracker)

    def call(*arguments: Any, **options: Any) -> Any:
        if not tracker.is_calling_gpu and host is not None:
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
            return host.call_boxed(keys, *arguments, **options)
        for leaf in tree_leaves((arguments, options)):
            if isinstance(leaf, torch.Tensor):
                tracker.note_on_gpu(leaf)
        return tracked(*arguments, **options)

    return call


def _host_kernel(library: Library, op_name: Any) -> Any:
    """Return the kernel that serves host tensors now; None where there is none, or PyTorch is too old to ask."""
    name = op_name if isinstance(op_name, str) else op_name._schema.name
    name = name if "::" in name else f"{library.ns}::{name}"
    try:
        return torch.library.get_kernel(name, "CPU")
    except (AttributeError, RuntimeError):
        return None
