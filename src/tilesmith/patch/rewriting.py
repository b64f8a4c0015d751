"""A method of the transformers release at hand, with some of its names or statements replaced by ours.

A method written anew would fit one release. What is replaced here is found in the source that is installed, so that
caches, norms, arguments and results stay as they are there; what is not found is left alone.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any


def rewritten(
    method: Callable[..., Any], names: Mapping[str, Any], changes: Mapping[str, str] | None = None
) -> Callable[..., Any] | None:
    """The method, in which these names mean ours; None where it is not written as the changes expect.

    Changes lead from a regular expression to what takes its place, in the source without comments and with every
    statement on a line of its own. Each has to be found once, after those before it were made.

    The method gets a namespace of its own: to replace a global of its module would change every model of the process.
    """
    plain = inspect.unwrap(method)
    assert isinstance(plain, FunctionType)
    code = _changed(plain, changes) if changes else plain.__code__
    if code is None:
        return None
    namespace = {**plain.__globals__, **names}
    del namespace["__name__"]  # torch.compile looks names up in the module called so, in place of here
    copy = FunctionType(code, namespace, plain.__name__, plain.__defaults__, plain.__closure__)
    copy.__kwdefaults__ = plain.__kwdefaults__
    return functools.wraps(plain)(copy)


def _changed(plain: FunctionType, changes: Mapping[str, str]) -> CodeType | None:
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
    except (OSError, SyntaxError):  # no source, as in a frozen program
        return None
    if plain.__closure__ or not isinstance(function, ast.FunctionDef):
        return None
    function.decorator_list.clear()
    source = "from __future__ import annotations\n" + ast.unparse(function)  # none of which are looked up then
    for pattern, replacement in changes.items():
        source, found = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        if found != 1:
            return None
    file = f"<{plain.__module__}.{plain.__qualname__}, as patched by Tilesmith>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    # The only code inside a module with one function is that function's.
    module = compile(source, file, "exec", dont_inherit=True)
    return next(one for one in module.co_consts if isinstance(one, CodeType))
