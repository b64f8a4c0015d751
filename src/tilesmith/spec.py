"""`Spec`: what an operator means and what it must cost, declared once.

A `Spec` joins an operator with its definition in plain PyTorch, its test cases, a function that makes inputs, the least
bytes and flops, and its rivals. `check`, `bench` and `inspect` work on specs alone, so they also work on a user's file
that defines `SPEC`.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import itertools
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tilesmith.arguments import FLAG, TEXT, TEXTS, Rule, number, or_none, require, require_all, whole

Inputs = dict[str, Any]
_SCRIPT = "for a script that launches kernels, use `tilesmith inspect`"


class SpecError(Exception):
    """A file or module has no usable SPEC; the message is one line for the user."""


class Case:
    """One test case of an operator: `Case("tiny", rows=4, cols=200)` has the attribute `rows`."""

    def __init__(self, name: str, **sizes: int) -> None:
        require("Case", "name", name, TEXT)
        self.name = name
        self.sizes = sizes

    def __getattr__(self, size: str) -> int:
        try:
            return self.__dict__["sizes"][size]  # type: ignore[no-any-return]  # __dict__ holds Any
        except KeyError:
            raise AttributeError(f"case {self.__dict__.get('name')!r} has no size {size!r}") from None

    def __repr__(self) -> str:
        return f"Case({self.name!r}, {', '.join(f'{name}={size}' for name, size in self.sizes.items())})"

    def with_sizes(self, **sizes: int) -> Case:
        """Return the same case with other sizes. Raises SpecError for unknown names."""
        unknown = sorted(set(sizes) - set(self.sizes))
        if unknown:
            raise SpecError(f"case {self.name!r} has sizes {', '.join(self.sizes)}, not {', '.join(unknown)}")
        return Case(self.name, **{**self.sizes, **sizes})


@dataclass(frozen=True)
class Work:
    """The least work: each input byte read once, each output byte written once, the flops of the formula."""

    bytes: int
    flops: int

    def __post_init__(self) -> None:
        require_all("Work", dict.fromkeys(("bytes", "flops"), number(0)), bytes=self.bytes, flops=self.flops)

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Cost:
    """The least work of one case, forward and backward."""

    forward: Work
    backward: Work | None = None

    def __post_init__(self) -> None:
        rule: Rule = (lambda value: isinstance(value, Work), "a Work")
        require_all("Cost", {"forward": rule, "backward": or_none(rule)}, forward=self.forward, backward=self.backward)


@dataclass(frozen=True)
class Layout:
    """Strides of a tensor in memory. Calling a layout returns a tensor of the same shape with such strides.

    `differs`: whether `arrange(tensor, number)` has other strides for each number.
    """

    name: str
    arrange: Callable[..., Tensor] = field(repr=False)
    differs: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        require("Layout", "name", self.name, TEXT)
        require("Layout", "arrange", self.arrange, (callable, "a function"))

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.arrange(tensor)

    def in_turn(self, first: int = 0) -> Layout:
        """Return this layout with other strides at each call, so that a kernel cannot use one tensor's for another."""
        if not self.differs:
            return self
        numbers = itertools.count(first)
        return Layout(self.name, lambda tensor: self.arrange(tensor, next(numbers)))


COTANGENTS = 8  # number of the first cotangent of a trial; an operator may make a gradient like it, so it is dense


def _row_strided(tensor: Tensor, number: int = 0) -> Tensor:
    """Return the tensor with a gap after each row, as in a slice of a wider matrix."""
    return tensor if tensor.ndim == 0 else _filled(_with_gap(tensor, tensor.shape, 3 + 2 * number), tensor)


def _transposed(tensor: Tensor, number: int = 0) -> Tensor:
    """Return the tensor with first and last dimension exchanged in memory. A vector gets stride two or more."""
    if tensor.ndim < 2:
        return _filled(tensor.new_empty((*tensor.shape, 2 + number))[..., 0], tensor)
    flipped = tensor.transpose(0, -1)
    return _filled(_with_gap(tensor, flipped.shape, 2 * (number % COTANGENTS)).transpose(0, -1), tensor)


def _with_gap(like: Tensor, shape: Sequence[int], gap: int) -> Tensor:
    """Return a new tensor of this shape with unused elements after each row."""
    return like.new_empty((*shape[:-1], shape[-1] + gap))[..., : shape[-1]]


def _offset(tensor: Tensor) -> Tensor:
    """Return the tensor one element into its storage, so that vector loads are not aligned."""
    return _filled(tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape), tensor)


def _expanded(tensor: Tensor) -> Tensor:
    """Return the first row repeated: stride zero along the first dimension."""
    if tensor.ndim < 2 or tensor.shape[0] == 0:
        return tensor
    return tensor[:1].clone().expand(tensor.shape)


def _filled(place: Tensor, values: Tensor) -> Tensor:
    return place.copy_(values)


CONTIGUOUS = Layout("contiguous", lambda tensor: tensor.contiguous())
LAYOUTS: tuple[Layout, ...] = (
    CONTIGUOUS,
    Layout("row-strided", _row_strided, differs=True),
    Layout("transposed", _transposed, differs=True),
    Layout("offset", _offset),
    Layout("expanded", _expanded),
)

MakeInputs = Callable[..., Mapping[str, Any] | Sequence[Any] | Tensor]


_FEW: Rule = (lambda value: isinstance(value, Sequence | None), "a list")
RULES: dict[str, Rule] = {
    "name": TEXT, "cases": _FEW, "dtypes": _FEW, "layouts": _FEW, "formula": TEXT, "differentiable": FLAG,
    "kernels": FLAG, "roundings": whole(1),
    "cost": or_none((callable, "a function")),
    "rivals": (lambda value: isinstance(value, Mapping) and all(map(callable, value.values())), "functions by name"),
    "fixed": (lambda value: TEXTS[0](value), "a list of names"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One operator: its meaning, test cases, least work and rivals.

    - `make_inputs(case, dtype, device, layout)` returns the operator's arguments by name or in order. Without the
      parameter `layout`, the caller lays out every floating-point tensor.
    - `cost(case, dtype)` returns a `Cost`.
    - `rivals`: other implementations with the operator's arguments. A rival that raises ImportError is reported as
      missing.
    - `fixed`: floating-point arguments without a gradient, such as a table of cosines.
    - `roundings`: how many roundings follow each other in the kernels that the reference does not have.
    - `kernels`: whether the operator must launch kernels; False for one that may compute with PyTorch alone.
    """

    name: str
    op: Callable[..., Any]
    reference: Callable[..., Any]
    cases: Sequence[Case]
    make_inputs: MakeInputs
    cost: Callable[[Case, torch.dtype], Cost] | None = None
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    formula: str = ""
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float16, torch.bfloat16)
    layouts: Sequence[Layout] = LAYOUTS
    differentiable: bool = True
    fixed: Sequence[str] = ()
    roundings: int = 1
    kernels: bool = True

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            try:
                require(f"SPEC {self.name!r}", name, getattr(self, name), rule)
            except (TypeError, ValueError) as error:
                raise SpecError(str(error)) from None
        for needed in ("op", "reference", "make_inputs"):
            if not callable(getattr(self, needed)):
                raise SpecError(f"SPEC {self.name!r}: {needed} is {getattr(self, needed)!r}, not a function")
        for needed, kind in (("cases", Case), ("dtypes", torch.dtype), ("layouts", Layout)):
            given = getattr(self, needed)
            if not given:
                raise SpecError(f"SPEC {self.name!r} has no {needed}: give it at least one")
            for one in given:
                if not isinstance(one, kind):
                    raise SpecError(f"SPEC {self.name!r}: {needed} holds {one!r}, which is not a {kind.__name__}")
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise SpecError(f"SPEC {self.name!r} has two cases of one name: {', '.join(names)}")

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        raise SpecError(f"{self.name} has no case {name!r}; it has {', '.join(case.name for case in self.cases)}")

    def inputs(self, case: Case, dtype: torch.dtype, device: torch.device | str, layout: Layout = CONTIGUOUS) -> Inputs:
        """Return new arguments of the operator, by name."""
        layout = layout.in_turn()
        try:
            accepts_layout = "layout" in inspect.signature(self.make_inputs).parameters
            made = self.make_inputs(case, dtype, device, *((layout,) if accepts_layout else ()))
        except Exception as error:
            reason = described(error, source_of(self.make_inputs))
            raise SpecError(f"{self.name}: make_inputs fails for {case!r}, {dtype}: {reason}") from error
        inputs = self._by_name(made)
        if not accepts_layout:
            inputs = {name: layout(value) if is_differentiable(value) else value for name, value in inputs.items()}
        return inputs

    def _by_name(self, made: object) -> Inputs:
        if isinstance(made, Mapping):
            return dict(made)
        if made is None:
            raise SpecError(f"{self.name}: make_inputs returns nothing; it must return the operator's arguments")
        values = made if isinstance(made, list | tuple) else [made]
        try:
            parameters = list(inspect.signature(self.op).parameters)
        except ValueError:
            raise SpecError(f"{self.name}: op does not tell its parameters, so make_inputs must give a dict") from None
        if len(values) > len(parameters):
            raise SpecError(f"{self.name}: make_inputs gives {len(values)} values, but op takes {len(parameters)}")
        return dict(zip(parameters, values, strict=False))

    def leaves(self, inputs: Inputs) -> list[str]:
        """Return the names of the arguments that have a gradient."""
        return [
            name
            for name, value in inputs.items()
            if self.differentiable and is_differentiable(value) and name not in self.fixed
        ]


def called(function: Callable[..., Any], inputs: Inputs) -> Any:
    """Call the function: by name where it has these parameters, otherwise in order, as for PyTorch's built-ins."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return function(*inputs.values())
    known = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    if inputs.keys() <= known or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return function(**inputs)
    return function(*inputs.values())


def is_differentiable(value: object) -> bool:
    """Whether this argument can have a gradient."""
    return isinstance(value, Tensor) and value.is_floating_point()


def source_of(function: Callable[..., Any]) -> str | None:
    """Return the file of the module that defines a function; None for built-ins."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return getattr(module, "__file__", None)


def described(error: BaseException, source: str | None) -> str:
    """Return an error in one line, with the innermost line in the folder of `source` that it passed."""
    lines = [_printable(line) for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) if len(lines) <= 3 else f"{lines[0]} … {lines[-1]}"
    place, traceback = "", error.__traceback__
    while traceback is not None and source is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file.parent == Path(source).parent:
            place = f" ({file.name}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _printable(line: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())


def load_file(path: Path) -> Spec:
    """Return the SPEC of a user's file. Raises SpecError with one line for every problem of the file."""
    if not path.is_file():
        raise SpecError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    given, path = path, path.absolute()
    # Each file gets its own module name, so that a file torch.py does not replace torch.
    name = f"tilesmith_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    source = importlib.util.spec_from_file_location(name, path)
    if source is None or source.loader is None:
        raise SpecError(f"{given}: not a Python file")
    module = importlib.util.module_from_spec(source)
    sys.modules[name] = module  # Triton finds a kernel's source by its module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: the file's neighbours must not hide other modules
    try:
        source.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        script = _has_no_spec(error, path)
        raise SpecError(f"{given}{_why_not_imported(error, str(path))}{script}") from error
    return of_module(module, str(given))


def _has_no_spec(error: BaseException, path: Path) -> str:
    """Return a hint for a script that failed and has no SPEC: `inspect` runs scripts."""
    if isinstance(error, (SpecError, SyntaxError)) or b"SPEC" in path.read_bytes():
        return ""
    return f"; it defines no SPEC: {_SCRIPT}"


def _why_not_imported(error: BaseException, file: str) -> str:
    if isinstance(error, SpecError):
        return f": {error}"
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{f':{error.lineno}' if error.lineno else ''}: syntax error: {error.msg}"
    return f": fails when imported: {described(error, file)}"


def unknown_operator(name: str, known: Sequence[str]) -> str:
    """Return the message for a name that is no operator: the closest names, or all of them."""
    close = difflib.get_close_matches(name, known, n=3)
    names = f"did you mean {' or '.join(close)}?" if close else f"operators are {', '.join(known)}"
    return f"{name!r} is neither an operator nor a Python file; {names}"


def of_module(module: ModuleType, where: str) -> Spec:
    """Return the SPEC of a module."""
    if not hasattr(module, "SPEC"):
        raise SpecError(f"{where}: defines no SPEC; see `tilesmith.Spec` for what it holds; {_SCRIPT}")
    if not isinstance(module.SPEC, Spec):
        raise SpecError(f"{where}: SPEC is a {type(module.SPEC).__name__}, not a tilesmith.Spec")
    return module.SPEC
