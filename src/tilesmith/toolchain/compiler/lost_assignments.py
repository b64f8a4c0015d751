"""Assignments in loops that Triton's front end loses: the compiled kernel then computes something else.

    previous = tl.zeros([16], tl.float32)
    current = previous
    for i in range(n):
        previous = current  # lost: compiled, `previous` stays zero
        current = tl.load(x_ptr + i * 16 + columns)

To find the variables that a loop changes, Triton visits the body once with the values from before the loop. In that
visit `current` still has the value of `previous`, so `previous` seems not to change. Releases 3.6 to 3.9 do so. The
interpreter runs Python, and so computes what is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from triton.compiler import code_generator
from triton.compiler.code_generator import CodeGenerator, flatten_values_to_ir, unflatten_ir_values

from tilesmith.toolchain.compiler.errors import first_line


class LostAssignment(NamedTuple):
    """An assignment of `name` in a loop that the compiled kernel does not have."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return (
            f"Triton loses the assignment to {self.name} in this loop: before the loop {self.name} has the same value "
            f"as the variable that it is assigned from, and Triton takes it for unchanged. Compiled, {self.name} keeps "
            "its first value"
        )

    @property
    def advice(self) -> str:
        """Return what to write instead."""
        return (
            f"Give {self.name} a value of its own before the loop: call tl.zeros, tl.full or tl.load once for each "
            "variable."
        )


@contextmanager
def watched_assignments() -> Iterator[list[LostAssignment]]:
    """Collect the lost assignments of the kernels whose front end runs in this context, each once."""
    found: dict[LostAssignment, None] = {}
    lost: list[LostAssignment] = []
    original = CodeGenerator._find_carries
    depth = 0

    def find_carries(generator: Any, node: Any, liveins: Any, *options: Any, **named: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            place = generator._get_insertion_point_and_loc()
            carried = original(generator, node, liveins, *options, **named)
            # Inside another loop's first visit the values before this loop are not yet those of an iteration.
            if depth == 1:
                generator._set_insertion_point_and_loc(*place)
                found.update(dict.fromkeys(_lost(generator, node, liveins, *carried)))
                lost[:] = found
        finally:
            depth -= 1
        return carried

    CodeGenerator._find_carries = find_carries
    try:
        yield lost
    finally:
        CodeGenerator._find_carries = original


def may_lose_assignments(function: Any) -> bool:
    """Return whether a loop of this @triton.jit function, or of one that it names, assigns one variable to another."""
    return any(_assigns_names(one) for one in _functions(function, {}))


def _functions(function: Any, seen: dict[int, None]) -> Iterator[Any]:
    seen[id(function)] = None
    yield function
    for name in function.fn.__code__.co_names:
        value = function.fn.__globals__.get(name)
        if hasattr(value, "fn") and hasattr(value, "parse") and id(value) not in seen:
            yield from _functions(value, seen)


def _assigns_names(function: Any) -> bool:
    loops = (node for node in ast.walk(function.parse()) if isinstance(node, (ast.For, ast.While)))
    assigned = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Assign))
    return any(
        isinstance(value, ast.Name)
        for node in assigned
        for value in (node.value.elts if isinstance(node.value, ast.Tuple) else [node.value])
    )


def _lost(generator: Any, loop: Any, liveins: Any, names: Sequence[str], handles: Any, types: Any) -> list[Any]:
    """Visit the body again, with other values for what it changes; return what then changes as well."""
    values = {name: value for name, value in liveins.items() if code_generator._is_triton_value(value)}
    live = {name: flatten_values_to_ir([value]) for name, value in values.items()}
    stored = {one.id: one for one in reversed(_names(loop.body)) if isinstance(one.ctx, ast.Store)}
    changed = [live[name] for name in names]
    suspects = [name for name in stored if name in live and name not in names and live[name] in changed]
    if not suspects:
        return []
    builder = generator.builder
    block = builder.create_block()
    for handle in handles:
        block.add_argument(handle.get_type())
    generator.lscope = liveins.copy()
    arguments = [block.arg(number) for number in range(len(handles))]
    for name, value in zip(names, unflatten_ir_values(arguments, types), strict=True):
        generator.lscope[name] = value
    builder.set_insertion_point_to_start(block)
    generator.scf_stack.append(loop)
    with getattr(generator, "_discovering_loop_carries", nullcontext)():
        generator.visit_compound_statement(loop.body)
    generator.scf_stack.pop()
    block.erase()
    after = {name: flatten_values_to_ir([generator.lscope[name]]) for name in suspects}
    generator.lscope, generator.local_defs = liveins.copy(), {}
    function = generator.jit_fn
    file, first = function.fn.__code__.co_filename, first_line(function)
    return [
        LostAssignment(name, file, first + stored[name].lineno - 1)
        for name in suspects
        if after[name] != live[name] and _is_read(name, loop, function.parse())
    ]


def _names(nodes: Sequence[ast.AST]) -> list[Any]:
    found = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)]
    return sorted(found, key=_place)


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_read(name: str, loop: Any, function: ast.AST) -> bool:
    """Return whether anything reads the variable that an iteration leaves: the next one, or code after the loop."""
    body = [one for one in _names(loop.body) if one.id == name]
    stores = [one for one in body if isinstance(one.ctx, ast.Store)]
    # The value of an assignment is read before its target is bound.
    if any(isinstance(one.ctx, ast.Load) and one.lineno <= stores[0].lineno for one in body):
        return True
    around = [
        node
        for node in ast.walk(function)
        if isinstance(node, (ast.For, ast.While)) and _place(node) < _place(loop) and node.end_lineno >= loop.end_lineno
    ]
    inside = {_place(one) for one in body}
    return any(
        one.id == name
        and isinstance(one.ctx, ast.Load)
        and _place(one) not in inside
        and (one.lineno > loop.end_lineno or any(node.lineno <= one.lineno <= node.end_lineno for node in around))
        for one in _names([function])
    )
