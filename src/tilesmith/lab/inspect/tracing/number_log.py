"""Precision of the traced programs of a launch: dots, sums, the first NaN, and the error of each line."""

from __future__ import annotations

import linecache
from collections import defaultdict
from dataclasses import dataclass

from tilesmith.lab.inspect.model import LineError, Program
from tilesmith.toolchain.interpreter import Birth, Dot, Operation, Rounding
from tilesmith.toolchain.interpreter.values.precision import EPSILON

HALF = ("fp16", "bf16")
LONG_SUM = 8  # additions of a reduction in half precision
LONG_LOOP = 4  # additions of one line to its own result
_ADDITIONS = ("fadd", "fma")

Line = tuple[str, int]


@dataclass
class LineNumbers:
    """The worst error of one line beside float64, and all that the line adds to it; relative, in one format."""

    format: str
    error: float = 0.0
    introduced: float = 0.0


@dataclass(frozen=True)
class StoredError:
    """The worst error of the values that a line stores."""

    argument: str
    format: str
    error: float
    program: Program

    @property
    def ulp(self) -> float:
        return self.error / EPSILON[self.format]


class NumberLog:
    """Collects what concerns precision."""

    def __init__(self) -> None:
        self.dots: dict[Line, str] = {}  # what is imprecise about a dot, by line
        self.sums: dict[Line, tuple[str, int]] = {}  # format and additions of sums in half precision
        self.births: dict[Line, Birth] = {}
        self.lines: defaultdict[tuple[Program, str, int], LineNumbers]
        self.lines = defaultdict(lambda: LineNumbers(""))  # by program, file and line
        self.stored: dict[Line, StoredError] = {}
        self._chains: dict[int, int] = {}  # additions of one line that follow from each other, by operation
        self._program: Program | None = None
        self._line_of: dict[int, Line] = {}

    def dot(self, dot: Dot) -> None:
        line = (dot.file, dot.line)
        if dot.operand_format == "fp32" and dot.input_precision == "tf32":
            self.dots[line] = "tf32 of a sum" if dot.of_sum else "tf32"
        elif dot.accumulator_format in HALF:
            self.dots[line] = dot.accumulator_format

    def operation(self, operation: Operation) -> None:
        """Count additions in half precision: those of a reduction, and those of a loop."""
        if operation.program != self._program:
            self._program = operation.program
            self._chains.clear()
            self._line_of.clear()
        if operation.format not in HALF:
            return
        line = (operation.file, operation.line)
        additions, most = 0, LONG_SUM
        if operation.kind == "reduce" and operation.name == "reduce":
            additions = operation.elements // max(1, _results(operation))
        elif operation.name in _ADDITIONS:
            before = [self._chains.get(one, 0) for one in operation.inputs if self._line_of.get(one) == line]
            additions = self._chains[operation.number] = 1 + max(before, default=0)
            self._line_of[operation.number] = line
            most = LONG_LOOP
        if additions >= most:
            self.sums[line] = (operation.format, max(additions, self.sums.get(line, ("", 0))[1]))

    def not_finite(self, birth: Birth) -> None:
        self.births.setdefault((birth.file, birth.line), birth)

    def rounding(self, rounding: Rounding) -> None:
        line = (rounding.file, rounding.line)
        if rounding.stored is not None:
            before = self.stored.get(line)
            if before is None or rounding.error > before.error:
                self.stored[line] = StoredError(rounding.stored, rounding.format, rounding.error, rounding.program)
            return
        numbers = self.lines[rounding.program, rounding.file, rounding.line]
        numbers.format = numbers.format or rounding.format
        numbers.error = max(numbers.error, rounding.error)
        numbers.introduced += rounding.introduced

    def line_errors(self) -> tuple[LineError, ...]:
        """Return the error of each line in the program where the line adds most."""
        worst: dict[Line, LineNumbers] = {}
        for (_, file, line), numbers in self.lines.items():
            known = worst.get((file, line))
            if known is None or numbers.introduced > known.introduced:
                worst[file, line] = numbers
        return tuple(
            LineError(
                file, line, linecache.getline(file, line).strip(), numbers.format,
                numbers.error / EPSILON[numbers.format], numbers.introduced / EPSILON[numbers.format],
            )
            for (file, line), numbers in sorted(worst.items())
        )  # fmt: skip

    def blamed(self, program: Program) -> Line | None:
        """Return the line that adds most to the error in one program."""
        lines = {(file, line): one.introduced for (of, file, line), one in self.lines.items() if of == program}
        return max(lines, key=lambda line: lines[line]) if lines else None


def _results(operation: Operation) -> int:
    size = 1
    for length in operation.shape:
        size *= length
    return size
