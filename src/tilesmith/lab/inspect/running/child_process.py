"""The child process in which an inspected script runs. Started by its path, with the file descriptor of a pipe.

Each result goes through the pipe at once, so results survive a script that crashes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules must not shadow the script's modules

import atexit
import os
import runpy
import signal
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

ADDRESS = "TILESMITH_INSPECT"  # the environment variable with the address of the inspecting process
_OWN = tuple(f"{Path(__file__).parents[3] / room}{os.sep}" for room in ("lab", "toolchain"))  # run the script's kernels
MOST_FRAMES = 20  # the innermost frames; an endless recursion has a thousand


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    options, script, arguments, address = pipe.recv()
    _announce(address)
    ending, session = _run(pipe, options, script, arguments)
    if session is not None:
        pipe.send(("summary", _summary(session, script, arguments)))
    pipe.send(("ended", ending))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the script left behind must not keep the process alive.
    os._exit(0)


def follow_this_process(address: str) -> None:
    """Inspect the launches of this process, which an inspected script started."""
    with Client(address) as pipe:
        options = pipe.recv()
    session = _session(options, _Line(address))
    from tilesmith.lab.inspect.running.watch import watching

    stack = watching(session)
    stack.__enter__()
    atexit.register(stack.close)  # also keeps the changes in place until then


class _Line:
    """A connection to the inspecting process, opened at the first message, and again after a fork."""

    def __init__(self, address: str, pipe: Connection | None = None) -> None:
        self._address = address
        self._pipe = pipe
        os.register_at_fork(after_in_child=self._forget)

    def send(self, message: Any) -> None:
        if self._pipe is None:
            self._pipe = Client(self._address)
            self._pipe.recv()  # the options, which a fork has already
        self._pipe.send(message)

    def _forget(self) -> None:
        self._pipe = None


def _announce(address: str) -> None:
    """Let processes that the script starts be inspected too."""
    hook = str(Path(__file__).parent / "start_hook")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [hook, os.environ.get("PYTHONPATH", "")]))
    os.environ[ADDRESS] = address


def _session(options: Any, line: _Line) -> Any:
    import torch

    from tilesmith.lab.inspect.session import Session

    return Session(
        options,
        has_gpu=torch.cuda.is_available(),
        report=lambda number, kernel: line.send(("kernel", number, kernel)),
        before_compiling=lambda kernel, target: line.send(("compiling", kernel, target)),
    )


def _run(pipe: Connection, options: Any, script: str, arguments: Sequence[str]) -> tuple[Any, Any]:
    import triton

    from tilesmith.lab.inspect.model import Ending
    from tilesmith.lab.inspect.options import InspectError
    from tilesmith.lab.inspect.running.watch import watching

    session = _session(options, _Line(os.environ[ADDRESS], pipe))
    signal.signal(signal.SIGUSR1, lambda number, frame: pipe.send(("position", _kernel_that_runs(frame))))
    pipe.send(("started", session.has_gpu, session.sector_bytes, triton.__version__))
    sys.argv = [script, *arguments]
    try:
        with watching(session):
            _run_program(script, session)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Ending("finished", status, "" if isinstance(end.code, int | None) else str(end.code)), session
    except InspectError as error:
        return Ending("exception", 2, f"InspectError: {error}"), session
    except BaseException as error:
        return Ending("exception", 1, _message(error), _own_traceback(error, script)), session
    return Ending("finished"), session


def _run_program(script: str, session: Any) -> None:
    """Run a file or a module as `python` would, then the operator of its SPEC, if it has one and launched nothing."""
    from tilesmith.lab.inspect.options import InspectError

    case = session.options.case
    if not Path(script).is_file():
        if case is not None:
            raise InspectError(f"--case {case!r}: {script} is not a file with a SPEC")
        sys.path.insert(0, "")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str(Path(script).resolve().parent))
    from tilesmith.lab.inspect.running.repeated_loops import run_file

    names = run_file(script, session.state, session.note)
    from tilesmith.spec import Spec

    spec = names.get("SPEC")
    if not isinstance(spec, Spec):
        if case is not None:
            raise InspectError(f"--case {case!r}: {script} has no SPEC")
    elif case is not None or not session.launches:
        _call_operator(spec, case, session.note)


def _chosen_case(spec: Any, name: str | None) -> Any:
    """Return the case with this name; by default the largest of those that `check` runs without a GPU."""
    from tilesmith.lab.check import interpretable
    from tilesmith.lab.inspect.options import InspectError
    from tilesmith.spec import SpecError

    if name is not None:
        try:
            return spec.case(name)
        except SpecError as error:
            raise InspectError(f"--case: {error}") from None
    small = [case for case in spec.cases if interpretable(spec, case)] or spec.cases[:1]
    return small[0] if len(small) == 1 else max(small, key=lambda case: _input_bytes(spec, case))


def _input_bytes(spec: Any, case: Any) -> int:
    import torch

    inputs = spec.inputs(case, spec.dtypes[0], "cpu")
    return sum(value.nbytes for value in inputs.values() if isinstance(value, torch.Tensor))


def _call_operator(spec: Any, name: str | None, note: Callable[[str], None]) -> None:
    """Call the operator once on the inputs of one case, forward and backward."""
    import torch

    from tilesmith.spec import called

    case = _chosen_case(spec, name)
    others = "" if name is not None or len(spec.cases) == 1 else "; --case names another"
    note(f"{spec.name} was called with case {case.name}{others}")
    inputs = spec.inputs(case, spec.dtypes[0], "cuda")
    leaves = [inputs[name].requires_grad_() for name in spec.leaves(inputs)] if spec.differentiable else []
    result = called(spec.op, inputs)
    outputs = [one for one in (result if isinstance(result, tuple) else (result,)) if isinstance(one, torch.Tensor)]
    wanted = [one for one in outputs if one.requires_grad]
    if leaves and wanted:
        torch.autograd.grad(wanted, leaves, [torch.ones_like(one) for one in wanted], allow_unused=True)


def _kernel_that_runs(frame: FrameType | None) -> str:
    """Return the kernel that the interpreter runs in this frame, and its line; empty where there is none."""
    from tilesmith.toolchain.interpreter import running

    inside: list[FrameType] = []
    while frame is not None and frame.f_code.co_filename != running.__file__:
        if _is_kernel_code(frame.f_code.co_filename):
            inside.append(frame)
        frame = frame.f_back
    if frame is None or not inside:
        return ""
    file, line = Path(inside[0].f_code.co_filename).name, inside[0].f_lineno
    return f"{inside[-1].f_code.co_name} ({file}:{line})"


def _is_kernel_code(file: str) -> bool:
    """Whether a file that the interpreter is in may hold kernels: not Python's library, PyTorch or what observes."""
    import torch

    from tilesmith.toolchain.interpreter.observing.positions import is_user_code

    library, installed = sysconfig.get_path("stdlib") + os.sep, ("site-packages", "dist-packages")
    if file.startswith(library) and not file.removeprefix(library).startswith(installed):
        return False
    observers, pytorch = Path(__file__).parents[2], Path(torch.__file__).parent
    return is_user_code(file) and not file.startswith((f"{observers}{os.sep}", f"{pytorch}{os.sep}", "<"))


def _summary(session: Any, script: str, arguments: Sequence[str]) -> dict[str, Any]:
    from tilesmith.lab.inspect.running.watch import inspection_of

    found = inspection_of(session, script, arguments)
    return {"device": found.device, "notes": found.notes, "launches": dict(session.launches)}


def _message(error: BaseException) -> str:
    """Return the line of an error that has its class and the start of its message; without one, the failing line."""
    frames = traceback.extract_tb(error.__traceback__)
    if not str(error) and frames:
        return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}"
    lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    found = next((line.strip() for line in lines if type(error).__name__ in line.partition(":")[0]), lines[-1])
    if found.endswith(":"):  # a message of several lines, such as another process's traceback, ends with the reason
        found += f" {lines[-1].strip()}"
    return found.removeprefix(_module(error))


def _own_traceback(error: BaseException, script: str) -> str:
    """Return the traceback as Python prints it: without the frames above the script, and without those of inspect."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).resolve() != Path(script).resolve():
        frame = frame.tb_next
    shown = traceback.TracebackException(type(error), error, frame, limit=-MOST_FRAMES)
    part: traceback.TracebackException | None = shown
    while part is not None:
        frames = [one for one in part.stack if not one.filename.startswith(_OWN)]
        part.stack = traceback.StackSummary.from_list(frames)
        part = part.__cause__ or part.__context__
    return "".join(shown.format()).replace(f"{_module(error)}{type(error).__name__}:", f"{type(error).__name__}:")


def _module(error: BaseException) -> str:
    """Return the module of an error of Tilesmith with a dot; empty for other errors."""
    module = type(error).__module__
    return f"{module}." if module.startswith("tilesmith.") else ""


if __name__ == "__main__":
    main()
