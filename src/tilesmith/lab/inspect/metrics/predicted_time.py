"""Predict how long a launch takes on a Hopper GPU, from its PTX and the trace.

One warp runs through the PTX in order: an instruction waits for the registers that it reads. Loops repeat as often as
the trace says. That gives the time of one program. The longest of five times counts: programs one after another on a
multiprocessor, each pipe's instructions, L1, L2, and memory. Where a multiprocessor holds few programs, loads and
arithmetic overlap less: of the two shorter times a share adds to the longer one.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilesmith.hardware.devices import Device
from tilesmith.hardware.instruction_costs import (
    ATOMIC_LATENCY,
    L2_BYTES_PER_CLOCK,
    L2_LATENCY,
    LAUNCH_US,
    MEMORY_LATENCY,
    MEMORY_SHARE,
    SECTORS_PER_CLOCK,
    cost_of,
)
from tilesmith.lab.inspect.model import AccessFacts, TargetFacts
from tilesmith.toolchain.compiler import Binary
from tilesmith.toolchain.compiler.instructions import Instruction, Loop, parsed

KNOWN_TARGET = "cuda:90"
PARTITIONS = 4  # of a multiprocessor
LANES = 128  # of a multiprocessor, fp32
L1_BYTES = 100_000  # what stays of an argument that all programs read
LONG_CYCLES = 8  # from there on, an instruction stands for several
STEADY = 3  # iterations until a loop's time repeats

Place = tuple[str, int]


def with_predicted_time(
    facts: TargetFacts,
    binary: Binary | str,
    accesses: Sequence[AccessFacts],
    programs: int,
    unique_bytes: int,
    device: Device | None,
) -> TargetFacts:
    """Add the time that a launch is expected to take, and what limits it; nothing where the target is not known."""
    if isinstance(binary, str) or device is None or facts.target != KNOWN_TARGET or "ptx" not in binary.assembly:
        return facts
    program = run_through(binary.assembly["ptx"], accesses, programs, facts.num_warps)
    cycles = device.tflop_per_s["fp32"] * 1e6 / (device.multiprocessors * LANES * 2)  # per µs
    on_each = math.ceil(programs / device.multiprocessors)
    resident = max(1, min(facts.blocks_per_multiprocessor or 1, on_each))
    warps = facts.num_warps / PARTITIONS
    # The warps of a program wait for memory together, and take turns at the pipes.
    busy = max(program.pipes.values(), default=0.0) * warps
    latency = program.waiting + max(program.cycles - program.waiting, busy)
    # Long grids balance out; in short ones the fullest multiprocessor decides.
    share = programs / device.multiprocessors if on_each > 4 * resident else on_each
    working = {name: share * count * warps / cycles for name, count in program.pipes.items()}
    working["latency"] = math.ceil(on_each / resident) * latency / cycles
    moving = {
        "memory": unique_bytes / (MEMORY_SHARE * device.memory_tb_per_s * 1e6),
        "L2": sum(_from_l2(one, device) for one in accesses) / (L2_BYTES_PER_CLOCK * cycles),
        "L1": sum(map(_in_l1, accesses)) / (device.multiprocessors * cycles),
    }
    longer, shorter = sorted([max(working.values()), max(moving.values())], reverse=True)
    times = {**working, **moving}
    return replace(
        facts,
        predicted_us=LAUNCH_US + longer + shorter / resident,
        predicted_limit=max(times, key=lambda name: times[name]),
    )


def _from_l2(access: AccessFacts, device: Device) -> float:
    """Return the bytes that L1 caches do not hold."""
    new = max(access.bytes, access.touched_bytes) * (1 - access.again_in_program)
    if access.kind == "load" and access.unique_bytes < L1_BYTES:
        return min(new, access.unique_bytes * device.multiprocessors)
    return new


def _in_l1(access: AccessFacts) -> float:
    """Return the clocks that the requests of an access take in L1 caches."""
    return (access.requests or 0) * max(1.0, (access.sectors_per_request or 0.0) / SECTORS_PER_CLOCK)


@dataclass
class ProgramTime:
    """The run of one warp, in cycles. `waiting` is for global memory; `pipes` is the work of each pipe."""

    cycles: float = 0.0
    waiting: float = 0.0
    pipes: Counter[str] = field(default_factory=Counter)


def run_through(ptx: str, accesses: Sequence[AccessFacts], programs: int, warps: int) -> ProgramTime:
    """Return the time of one warp. Raises nothing: what PTX does not tell counts as executed once."""
    instructions, loops = parsed(ptx)
    innermost = _innermost(instructions, loops)
    repeats = _repeats(instructions, loops, innermost, accesses, programs, warps)
    run = _Run(instructions, loops, repeats, accesses)
    run.walk(0, len(instructions))
    for instruction, number in zip(instructions, innermost, strict=True):
        pipe, cycles, _ = cost_of(instruction.name)
        times = 1.0 if number is None else repeats[number]
        if pipe:
            run.time.pipes[pipe] += cycles * times  # type: ignore[assignment]  # a Counter of floats
            several = cycles if cycles > LONG_CYCLES and pipe in ("integers", "fp32") else 1
            run.time.pipes["instruction issue"] += several * times  # type: ignore[assignment]
    return run.time


def _innermost(instructions: Sequence[Instruction], loops: Sequence[Loop]) -> list[int | None]:
    found: list[int | None] = [None] * len(instructions)
    for number, loop in enumerate(loops):  # in order of their starts: inner ones come later
        found[loop.first : loop.last + 1] = [number] * (loop.last + 1 - loop.first)
    return found


def _repeats(
    instructions: Sequence[Instruction],
    loops: Sequence[Loop],
    innermost: Sequence[int | None],
    accesses: Sequence[AccessFacts],
    programs: int,
    warps: int,
) -> list[float]:
    """Return how often a program runs the body of each loop, from the requests to global memory in it."""
    left: Counter[Place] = Counter()
    for access in accesses:
        alone = access.bulk or access.requests is None
        count = access.executions / programs if alone else (access.requests or 0) / programs / warps
        left[Path(access.file).name, access.line] += count  # type: ignore[assignment]
    inside: list[Counter[Place]] = [Counter() for _ in loops]
    for instruction, number in zip(instructions, innermost, strict=True):
        if instruction.is_global and number is None:
            left[instruction.place] -= 1
        elif instruction.is_global and number is not None:
            inside[number][instruction.place] += 1
    found: dict[int, float] = {}
    # Of a loop that the compiler unrolled, the unrolled part has most instructions and takes what it can.
    for number in sorted(range(len(loops)), key=lambda one: -max(inside[one].values(), default=0)):
        known = inside[number].keys() & left.keys()
        if known:
            times = max(left[place] / inside[number][place] for place in known)
            shared = any(inside[one].keys() & known for one in range(len(loops)) if one != number and one not in found)
            found[number] = max(0.0, math.floor(times) if shared else times)
            for place in known:
                left[place] -= found[number] * inside[number][place]  # type: ignore[assignment]
    outer = {one: [found[each] for each in found if loops[each].holds(loops[one])] for one in range(len(loops))}
    return [found.get(one, max(outer[one], default=1.0)) for one in range(len(loops))]


class _Run:
    """One warp that runs through the instructions."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        loops: Sequence[Loop],
        repeats: Sequence[float],
        accesses: Sequence[AccessFacts],
    ) -> None:
        self.time = ProgramTime()
        self._instructions = instructions
        self._loops = dict(zip(loops, repeats, strict=True))
        self._latencies = _latencies(accesses)
        self._ready: defaultdict[str, float] = defaultdict(float)  # by register
        self._loaded: set[str] = set()  # registers whose values come from global memory
        self._copied: list[float] = []  # when each group of asynchronous copies is complete
        self._copying = 0.0
        self._multiplied = 0.0  # when the last wgmma is complete

    def walk(self, first: int, end: int, outside: float = 1.0, entered: frozenset[Loop] = frozenset()) -> None:
        """Run instructions; of a loop some iterations, and then as many as are left in a steady state."""
        number = first
        while number < end:
            starting = [one for one in self._loops if one.first == number and one.last < end and one not in entered]
            if not starting:
                self._perform(self._instructions[number])
                number += 1
                continue
            loop = max(starting, key=lambda one: one.last)
            times = max(1.0, self._loops[loop] / outside)
            for _ in range(min(STEADY, math.ceil(times))):
                cycles, waiting = self.time.cycles, self.time.waiting
                self.walk(loop.first, loop.last + 1, outside * times, entered | {loop})
            rest = max(0.0, times - STEADY)
            self.time.waiting += rest * (self.time.waiting - waiting)
            self._skip(rest * (self.time.cycles - cycles))
            number = loop.last + 1

    def _skip(self, cycles: float) -> None:
        now = self.time.cycles
        self._ready.update({name: time + cycles for name, time in self._ready.items() if time > now})
        self._copied = [one + cycles for one in self._copied]
        self._copying += cycles
        self._multiplied += cycles
        self.time.cycles += cycles

    def _perform(self, instruction: Instruction) -> None:
        name = instruction.name
        pipe, cycles, latency = cost_of(name)
        self._wait(instruction.read)
        if name.startswith("wgmma.mma"):
            self._multiplied = max(self._multiplied, self.time.cycles) + cycles
        elif name.startswith("wgmma.wait"):
            self.time.cycles = max(self.time.cycles, self._multiplied)
        elif name.startswith("cp.async.commit"):
            self._copied.append(self._copying)
        elif name.startswith(("cp.async.wait", "mbarrier.try_wait")):
            self._wait_for_copies(instruction)
        elif instruction.is_global and name.startswith("cp."):
            self._copying = max(self._copying, self.time.cycles + self._latency(instruction))
        else:
            if name.startswith(("ld.global", "atom")):
                latency = self._latency(instruction) * (ATOMIC_LATENCY if name.startswith("atom") else 1)
                self._loaded.update(instruction.written)
            else:
                self._loaded.difference_update(instruction.written)
            self._ready.update(dict.fromkeys(instruction.written, self.time.cycles + latency))
        if name.startswith("bar"):
            self.time.cycles += latency
        elif pipe:
            self.time.cycles += cycles / 2 if cycles > LONG_CYCLES and pipe != "tensor cores" else 1

    def _wait(self, registers: Sequence[str]) -> None:
        last = max(registers, key=lambda one: self._ready[one], default="")
        if self._ready[last] > self.time.cycles:
            self.time.waiting += self._ready[last] - self.time.cycles if last in self._loaded else 0
            self.time.cycles = self._ready[last]

    def _wait_for_copies(self, instruction: Instruction) -> None:
        allowed = re.findall(r"\d+", instruction.operands) if instruction.name.startswith("cp.") else []
        groups = self._copied[: len(self._copied) - int(allowed[-1])] if allowed else [self._copying]
        done = max(groups, default=0.0)
        if done > self.time.cycles:
            self.time.waiting += done - self.time.cycles
            self.time.cycles = done

    def _latency(self, instruction: Instruction) -> float:
        return self._latencies.get(instruction.place, MEMORY_LATENCY)


def _latencies(accesses: Sequence[AccessFacts]) -> Mapping[Place, float]:
    """Return the latency of each place: of memory for bytes that are new, of L2 for those read before."""
    found: defaultdict[Place, float] = defaultdict(float)
    for one in accesses:
        new = min(1.0, one.unique_bytes / max(1, one.bytes))
        place = Path(one.file).name, one.line
        found[place] = max(found[place], L2_LATENCY + new * (MEMORY_LATENCY - L2_LATENCY))
    return found
