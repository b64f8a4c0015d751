"""Kernels rebuilt from their descriptions, in a process that never runs the code around them."""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton
from triton.experimental import gluon

from tilesmith.toolchain.portable.rules import BUILTINS, KernelRefused, parsed
from tilesmith.toolchain.portable.values import Decoder, NotPortable

LONGEST_TEXT = 1 << 18
MOST_LINES = 1 << 17


class RebuiltKernels:
    """Kernels by number. Each is compiled from its text alone, at its line of a file with its file's name."""

    def __init__(self, descriptions: Sequence[Mapping[str, Any]], folder: Path) -> None:
        self.descriptions = descriptions
        self._folder = folder
        self._made: dict[int, Any] = {}
        self._being_made: set[int] = set()
        self._decoder = Decoder(_no_tensor, self.kernel)

    def kernel(self, number: int) -> Any:
        """Return the @triton.jit function. Raises KernelRefused or NotPortable."""
        if not isinstance(number, int) or not 0 <= number < len(self.descriptions):
            raise NotPortable(f"kernel {number!r}")
        if number not in self._made:
            if number in self._being_made:
                raise NotPortable("a kernel that calls itself")
            self._being_made.add(number)
            self._made[number] = self._rebuilt(number, self.descriptions[number])
        return self._made[number]

    def _rebuilt(self, number: int, description: Mapping[str, Any]) -> Any:
        text, line, name = str(description["text"]), int(description["line"]), str(description["name"])
        if len(text) > LONGEST_TEXT or not 0 < line < MOST_LINES:
            raise NotPortable(f"kernel {name[:60]} is too long")
        names = {str(key): self._decoder.value(value) for key, value in description["names"].items()}
        is_gluon = bool(description["gluon"])
        module = parsed(text, names, gluon=is_gluon)
        file = self._folder / str(number) / (Path(str(description["file"])).name or "kernel.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        padded = "\n" * (line - 1) + text
        file.write_text(padded, encoding="utf-8")
        # Triton reads the source again by its file. The text here counts, whatever happens to the file.
        linecache.cache[str(file)] = (len(padded), None, padded.splitlines(keepends=True), str(file))
        allowed = {one: getattr(builtins, one) for one in BUILTINS}
        namespace = {**names, "__builtins__": allowed, "__name__": f"judged_{number}"}
        exec(compile(padded, str(file), "exec"), namespace)
        function = namespace[module.body[0].name]  # type: ignore[attr-defined]  # `parsed` returns one function
        if description.get("constexpr"):
            return triton.constexpr_function(function)
        options = description["options"]
        chosen: dict[str, Any] = {
            "do_not_specialize": _names_or_numbers(options["do_not_specialize"]),
            "do_not_specialize_on_alignment": _names_or_numbers(options["do_not_specialize_on_alignment"]),
            "noinline": bool(options["noinline"]),
        }
        if not is_gluon:
            return triton.jit(**chosen)(function)
        return gluon.jit(**chosen)(function)


def _names_or_numbers(values: Sequence[Any]) -> list[Any]:
    return [value if isinstance(value, int) else str(value) for value in values]


def _no_tensor(encoded: Any) -> Any:
    raise NotPortable("a global tensor")


__all__ = ["KernelRefused", "RebuiltKernels"]
