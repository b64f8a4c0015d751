"""Run a task's file in the judge's process. Tasks are trusted; candidates never come here."""

from __future__ import annotations

import ast
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tilesmith.lab.judge.task import TaskError
from tilesmith.spec import described


class _OnHost(ast.NodeTransformer):
    """Replaces the device of the problem's tensors: the judge keeps inputs in host memory."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        on_gpu = isinstance(node.value, str) and node.value.split(":")[0] == "cuda"
        return ast.copy_location(ast.Constant("cpu"), node) if on_gpu else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and not (isinstance(node.value, ast.Name) and node.value.id == "torch"):
            node.attr = "cpu"
        return node


def load(path: Path, neighbours: Mapping[str, ModuleType] | None = None) -> ModuleType:
    """Import a task's file with its tensors on the host. `neighbours` are modules that it may import by name."""
    name = f"tilesmith_task_{path.stem}_{zlib.crc32(str(path.absolute()).encode()):08x}"
    module = ModuleType(name)
    module.__file__ = str(path)
    hidden = {one: sys.modules.get(one) for one in neighbours or {}}
    sys.modules.update(neighbours or {})
    sys.modules[name] = module  # torch finds a class by its module
    try:
        tree = _OnHost().visit(ast.parse(path.read_bytes(), str(path)))
        exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise TaskError(f"{path}:{error.lineno}: syntax error: {error.msg}") from None
    except Exception as error:
        raise TaskError(f"{path}: fails when imported: {described(error, str(path))}") from None
    finally:
        for one, before in hidden.items():
            if before is None:
                sys.modules.pop(one, None)
            else:
                sys.modules[one] = before
    return module
