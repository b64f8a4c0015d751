"""Track the tensors of an inspected program by seeing every torch call.

Without a GPU, tensors that the program puts on a GPU stay in host memory and report `cuda:0` as their device. The
tracker also knows which bytes were never written, and asks for deferred results before torch reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing import reductions
from torch.overrides import TorchFunctionMode
from torch.utils import _device as default_device
from torch.utils._pytree import tree_leaves

from tilesmith.lab.inspect.running.cuda_graphs import noted
from tilesmith.lab.inspect.running.half_precision import in_single, product_shape, sums_in_half, write_product
from tilesmith.lab.inspect.running.written_memory import COPIES, DISCARDING, makes_view, only_reads, unwritten_elements
from tilesmith.toolchain.benchmarks import is_benchmarking

_weak: Callable[[Any], Any] = reductions.StorageWeakRef
_constructors: Callable[[], set[Any]] = default_device._device_constructors

GPU = torch.device("cuda", 0)
HOST = torch.device("cpu")

# Calls that read a tensor's shape or make a view: they neither need nor change its contents.
_NO_CONTENTS = frozenset(
    {
        *("size", "stride", "dim", "ndimension", "numel", "nelement", "__len__", "storage_offset", "element_size"),
        *("data_ptr", "untyped_storage", "get_device", "is_contiguous", "is_floating_point", "is_complex", "is_sparse"),
        *("is_pinned", "is_neg", "is_conj", "is_inference", "requires_grad_", "detach", "__hash__"),
        *("view", "view_as", "permute", "transpose", "t", "movedim", "swapaxes", "expand", "as_strided"),
        *("unsqueeze", "squeeze", "unflatten", "narrow", "select", "chunk", "split", "unbind"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    }
)
_EMPTY = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
_BACKWARD = frozenset({"backward", "grad"})
_FORGET_FREED_ABOVE = 4096
_FEW_ELEMENTS = 1 << 20


@dataclass
class _Storage:
    """One storage. `written` marks the bytes that were written; None means all of them."""

    reference: Any  # torch's weak reference to a storage, which has no types
    on_gpu: bool
    written: NDArray[np.bool_] | None = None
    copy_of: int | None = None  # the storage that this one was copied from, while some of it is unwritten

    @property
    def is_gone(self) -> bool:
        return bool(self.reference.expired())


class TensorTracker(TorchFunctionMode):
    """Sees every torch call. `before_use` receives the tensors whose contents a call needs; None means all."""

    def __init__(
        self,
        before_use: Callable[[Sequence[torch.Tensor] | None], None],
        pretend_gpu: bool,
        unwritten_read: Callable[[torch.Tensor, NDArray[np.bool_], str], None] = lambda tensor, elements, call: None,
        defer: Callable[[Callable[..., None], Sequence[torch.Tensor], torch.Tensor], None] | None = None,
    ) -> None:
        """Make a tracker.

        - `unwritten_read` receives a tensor of which a call reads elements that nobody wrote, and the call's name.
        - `defer` receives a matrix product whose result is not needed yet: a function, its inputs, its result.
        """
        super().__init__()
        self._defer = defer
        self._unwritten_read = unwritten_read
        self._before_use = before_use
        self._pretend_gpu = pretend_gpu
        self._storages: dict[int, _Storage] = {}
        self._in_backward = 0
        self.is_calling_gpu = False  # whether torch now runs a call that would run on the GPU
        self._any_on_gpu = False
        self.computed = 0  # calls that needed or made contents

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ == "__get__":
            return self._attribute(func, args)
        if func.__name__ in _EMPTY:
            return self._call(func, args, kwargs)
        return noted(lambda: self._call(func, args, kwargs), lambda: func(*args, **kwargs))

    def _call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = func.__name__
        if name in _BACKWARD:
            self.computed += 1
            self._before_use(None)
            with self.inside_call(self._any_on_gpu):
                result = func(*args, **kwargs)
            if any(map(self.is_on_gpu, tree_leaves((args, kwargs)))):
                for gradient in tensors_in(result):  # of torch.autograd.grad
                    self._note(gradient, on_gpu=True)
            return result
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        shape = product_shape(name, args, kwargs) if self._defer and self._pretend_gpu else None
        is_cublas = name == "cublas_product" and self._defer is not None
        if (is_cublas or shape is not None) and all(map(self.is_on_gpu, inputs)):
            if is_cublas:
                return self._deferred_product(lambda out, *operands: func(*operands, out=out), args, kwargs["out"])
            result = kwargs["out"] if "out" in kwargs else torch.empty(shape or (), dtype=args[0].dtype)
            return self._deferred_product(write_product, args, result)
        if name not in _NO_CONTENTS and not (name == "__getitem__" and makes_view(args[1])):
            self._before_use(inputs)
            self.computed += name not in _EMPTY
            if name == "__getitem__":
                self._check_written(inputs[:1], name, args[1])
            elif not only_reads(func, kwargs):
                self._now_written(inputs)
            elif name not in COPIES and name not in DISCARDING:
                self._check_written(inputs, name)
        if not self._pretend_gpu:
            result = func(*args, **kwargs)
            on_gpu = None
        else:
            result, on_gpu = self._without_gpu(func, name, args, kwargs, inputs)
        if name in _EMPTY:
            self._note(result, on_gpu, fresh=True)
            if on_gpu and not result.is_floating_point() and result.numel() <= _FEW_ELEMENTS:
                result.zero_()  # a lock that nobody initialised would else stay closed for ever
        elif name in COPIES and isinstance(result, torch.Tensor):
            if on_gpu:
                self._note(result, on_gpu)
            self._note_copy(inputs[0], result)
        elif on_gpu:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._note(leaf, on_gpu)
        return result

    def _deferred_product(
        self, write: Callable[..., None], operands: Sequence[torch.Tensor], result: torch.Tensor
    ) -> torch.Tensor:
        """Return the result of a matrix product, which `write` computes when a call needs its contents."""
        assert self._defer is not None
        self._note(result, on_gpu=True)
        self._now_written([result])

        def multiply(output: torch.Tensor, *inputs: torch.Tensor) -> None:
            self._check_written(inputs, "matmul")
            with torch._C.DisableTorchFunction(), self.inside_call(on_gpu=True), torch.no_grad():
                write(output, *inputs)

        self._defer(multiply, operands, result)
        return result

    @contextmanager
    def inside_call(self, on_gpu: bool) -> Iterator[None]:
        """Note that torch runs a call on the GPU, or that it runs code of ours."""
        before, self.is_calling_gpu = self.is_calling_gpu, on_gpu
        try:
            yield
        finally:
            self.is_calling_gpu = before

    def never_defer(self) -> None:
        """Compute every product at once: the script has kernels of its own for torch's operators."""
        self._defer = None

    def note_on_gpu(self, tensor: torch.Tensor) -> None:
        """Note that a tensor belongs to the GPU: torch made it in the course of a call there."""
        self._note(tensor, on_gpu=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Track the calls inside, also in the program's own backward functions, where autograd disables modes."""
        stock: Callable[..., Any] = BackwardCFunction.apply

        def apply(node: Any, *gradients: Any) -> Any:
            self._in_backward += 1
            try:
                with self:
                    found = stock(node, *gradients)
                if not is_benchmarking():  # autograd adds and copies gradients unseen
                    self._before_use(list(tensors_in(found)))
                return found
            finally:
                self._in_backward -= 1

        start: Callable[..., Any] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def started(thread: threading.Thread) -> Any:
            with self:  # a mode holds for one thread
                return start(thread)

        restore: Callable[..., Any] = torch.serialization.default_restore_location

        def restored(storage: Any, location: str) -> Any:
            if not self._pretend_gpu or not location.startswith("cuda"):
                return restore(storage, location)
            with torch._C.DisableTorchFunction():
                self.note_on_gpu(torch.empty(0, dtype=torch.uint8).set_(storage))
            return storage

        with (
            self,
            patch.object(torch.serialization, "default_restore_location", restored),
            patch.object(BackwardCFunction, "apply", apply),
            patch.object(threading.Thread, "_bootstrap_inner", started),
        ):
            yield

    def on_gpu(self, tensor: torch.Tensor) -> None:
        """Let the program see this tensor on the GPU."""
        self._note(tensor, on_gpu=True)

    def written_bytes(self, tensor: torch.Tensor) -> NDArray[np.bool_] | None:
        """Return which bytes of a tensor's storage were written; None where all were, or where that is unknown."""
        storage = self._storages.get(tensor.untyped_storage()._cdata)
        return None if storage is None or storage.is_gone else storage.written

    def all_written(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that these tensors may be written everywhere."""
        self._now_written(tensors)

    def _attribute(self, func: Any, args: Sequence[Any]) -> Any:
        attribute = func.__self__.__name__
        if self._pretend_gpu and attribute in ("device", "is_cuda"):
            on_gpu = self.is_on_gpu(args[0])
            if attribute == "is_cuda":
                return on_gpu
            return GPU if on_gpu else func(*args)
        result = func(*args)
        if attribute == "grad" and isinstance(result, torch.Tensor) and self.is_on_gpu(args[0]):
            self._note(result, on_gpu=True)
        return result

    def _without_gpu(
        self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, bool]:
        """Run the call on host memory. Return its result, and whether the result would be on the GPU."""
        makes_tensor = func in _constructors()
        named = _named_device(name, args, kwargs) or (default_device.CURRENT_DEVICE if makes_tensor else None)
        on_gpu = named.type == "cuda" if named else any(map(self.is_on_gpu, inputs))
        if name in ("cpu", "cuda", "to") and named is not None:
            return self._moved(func, name, args, kwargs, named), on_gpu
        if name == "get_device":
            return (0 if on_gpu else -1), on_gpu
        if name in ("pin_memory", "is_pinned"):
            return (args[0] if name == "pin_memory" else False), on_gpu
        if name == "__set__" and len(args) == 2 and isinstance(args[1], torch.Tensor):
            return func(*args), self.is_on_gpu(args[1])
        args = [HOST if _is_gpu(arg) else arg for arg in args]
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        if named is not None and named.type == "cuda" and ("device" in kwargs or makes_tensor):
            kwargs["device"] = HOST
        with self.inside_call(on_gpu):
            if on_gpu and sums_in_half(name, args, kwargs):
                return in_single(func, args, kwargs), on_gpu
            return func(*args, **kwargs), on_gpu

    def _moved(self, func: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], to: torch.device) -> Any:
        """Return a copy where the move crosses between host and GPU, else what torch returns."""
        tensor = args[0]
        crosses = self.is_on_gpu(tensor) != (to.type == "cuda")
        if name == "to":
            rest = [arg for arg in args[1:] if isinstance(arg, (torch.dtype, torch.Tensor))]
            options = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking")}
            flags = [arg for arg in args[1:] if isinstance(arg, bool)]  # non_blocking, then copy
            if len(flags) == 2:
                options["copy"] = flags[1]
            moved = tensor.to(*rest, **options) if rest or options else tensor
        else:
            moved = tensor
        return moved.clone() if crosses and moved is tensor else moved

    def is_on_gpu(self, tensor: Any) -> bool:
        if not self._pretend_gpu or not isinstance(tensor, torch.Tensor):
            return False
        try:
            storage = self._storages.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            return False
        if storage is None or storage.is_gone:
            # In a backward pass autograd made this tensor, from GPU tensors if the program has any.
            return self._in_backward > 0 and self._any_on_gpu
        return storage.on_gpu

    def _note(self, tensor: Any, on_gpu: bool | None, fresh: bool = False) -> None:
        try:
            storage = tensor.untyped_storage()
        except (AttributeError, NotImplementedError, RuntimeError):
            return
        known = self._storages.get(storage._cdata)
        if known is None or known.is_gone:
            if len(self._storages) > _FORGET_FREED_ABOVE:
                self._storages = {key: one for key, one in self._storages.items() if not one.is_gone}
            known = self._storages[storage._cdata] = _Storage(_weak(storage), bool(on_gpu))
        if fresh:
            known.written = np.zeros(storage.nbytes(), dtype=bool)
        known.on_gpu = known.on_gpu or bool(on_gpu)
        self._any_on_gpu = self._any_on_gpu or known.on_gpu

    def _check_written(self, tensors: Sequence[torch.Tensor], name: str, index: Any = ...) -> None:
        for tensor in tensors:
            elements = self._unwritten(tensor)
            if elements is not None and elements.any():
                with torch._C.DisableTorchFunction():
                    selected = bool(torch.from_numpy(elements)[index].any())
                if selected:
                    self._unwritten_read(tensor, elements, name)

    def _unwritten(self, tensor: torch.Tensor) -> NDArray[np.bool_] | None:
        """Return which elements nobody wrote; None where all were written."""
        try:
            written = self.written_bytes(tensor)
        except (NotImplementedError, RuntimeError):
            return None
        with torch._C.DisableTorchFunction():
            return None if written is None or not tensor.numel() else unwritten_elements(tensor, written)

    def _note_copy(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that the copy of an unwritten element is unwritten."""
        elements = self._unwritten(original)
        if elements is None or not elements.any():
            return
        with torch._C.DisableTorchFunction():
            storage = copy.untyped_storage()
            if storage._cdata == original.untyped_storage()._cdata or not copy.is_contiguous():
                return
            self._note(copy, on_gpu=False)
            flat = ~elements.reshape(-1)
            if flat.size * copy.element_size() == storage.nbytes():
                noted = self._storages[storage._cdata]
                noted.written = np.repeat(flat, copy.element_size())
                noted.copy_of = self.original_storage(original)

    def original_storage(self, tensor: torch.Tensor) -> int:
        """Return the storage of a tensor; of a copy with unwritten elements, the storage that it was copied from."""
        key = int(tensor.untyped_storage()._cdata)
        storage = self._storages.get(key)
        return key if storage is None or storage.is_gone or storage.copy_of is None else storage.copy_of

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Forget the bytes of storages that are written completely."""
        for tensor in tensors:
            storage = self._storages.get(tensor.untyped_storage()._cdata)
            if storage is not None and storage.written is not None and storage.written.all():
                storage.written = None

    def _now_written(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            try:
                storage = self._storages.get(tensor.untyped_storage()._cdata)
            except (NotImplementedError, RuntimeError):
                continue
            if storage is not None:
                storage.written = None


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among a launch's arguments, including those behind descriptors."""
    for leaf in tree_leaves(values):
        value = getattr(leaf, "base", leaf) if not isinstance(leaf, torch.Tensor) else leaf
        if isinstance(value, torch.Tensor):
            yield value


def _is_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _names_device(value: Any) -> bool:
    if isinstance(value, str):
        return value.split(":")[0] in ("cpu", "cuda")
    return isinstance(value, torch.device) or (isinstance(value, int) and not isinstance(value, bool))


def _named_device(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device that a call names; None where it names none."""
    if name == "cpu":
        return HOST
    if name == "cuda":
        return GPU
    candidates: list[Any] = [kwargs.get("device")]
    candidates += args[1:2] if name == "to" else [arg for arg in args if isinstance(arg, torch.device)]
    for candidate in candidates:
        if _names_device(candidate):
            return GPU if isinstance(candidate, int) else torch.device(candidate)
    return None
