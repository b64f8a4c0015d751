"""What an operator may declare beyond its kernels and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tilesmith.ops.runtime.kernels import Kernels

Save = Callable[[Any, tuple[Any, ...], Any], None]
Gradient = Callable[..., Any]
Prepare = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `@operator`. "All arguments" below are those of the operator, in order, defaults filled in.

    Which calls the kernels compute:

    - `takes(*kernel_arguments)`: whether the kernels can compute such a call. If not, `native` computes it.
    - `runs_anywhere`: the forward calls other operators, and these choose between kernels and PyTorch. So the forward
      runs on every device.
    - `alternatives`: other kernels for the same operator. The first whose `when` is true computes the call.
    - `switches()`: settings outside the arguments that decide how a call runs, such as PyTorch's setting for tf32.
    - `sizes(*kernel_arguments)`: what decides whether PyTorch is faster. By default the sizes of all matrices, and all
      arguments that are whole numbers or strings.
    - `most_shapes_by_torch`: `auto` leaves calls of at most this many looks to PyTorch, and all others to the kernels.
      For functions of PyTorch that keep memory for every shape.

    What happens before the kernels run:

    - `complete(*all_arguments)`: returns all arguments with missing values filled in.
    - `autocasts`: torch.autocast applies, as it does to matrix products.
    - `check_values(*all_arguments)`: raises a ValueError for values that make no sense. Called where `debug` is on; may
      wait for the GPU.

    What the user gets:

    - `returns`: all outputs of the kernels, or only the first; the gradient needs the others.
    - `private_outputs`: autograd sees only the first output too, so a backward may overwrite the others.
    - `finish`: by name of an argument, a function of the first output and that argument. It computes the result where
      the argument is not None.
    - `residual`: the operator has an argument `residual`; where that is True, the result is the first argument plus the
      update. "fused": the kernels add, unless autocast rounds the first argument. "separate": PyTorch adds.
    """

    takes: Callable[..., bool] | None = None
    runs_anywhere: bool = False
    alternatives: Sequence[Alternative] = ()
    switches: Callable[[], Hashable] | None = None
    sizes: Callable[..., Sequence[object]] | None = None
    most_shapes_by_torch: int | None = None
    complete: Callable[..., tuple[Any, ...]] | None = None
    autocasts: bool = False
    check_values: Callable[..., None] | None = None
    returns: Literal["all", "first"] = "all"
    private_outputs: bool = False
    finish: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    residual: Literal["fused", "separate"] | None = None


NO_OPTIONS = Options()


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Other kernels for the same operator, used where `when(*all_arguments)` is true.

    `when` sees the arguments before they are checked.
    """

    when: Callable[..., bool]
    forward: Kernels
    save: Save
    gradient: Gradient
    prepare: Prepare | None = None
    options: Options = NO_OPTIONS
