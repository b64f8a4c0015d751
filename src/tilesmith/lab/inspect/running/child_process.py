"""The child process in which an inspected script runs. Started by its path, with the file descriptor of a pipe.

Each result goes through the pipe at once, so results survive a script that crashes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: its modules must not shadow the script's modules

import os
import runpy
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

MOST_FRAMES = 20  # the innermost frames; an endless recursion has a thousand


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    options, script, arguments = pipe.recv()
    ending, session = _run(pipe, options, script, arguments)
    if session is not None:
        from tilesmith.lab.inspect.running.watch import inspection_of

        found = inspection_of(session, script, arguments)
        pipe.send(("summary", {"device": found.device, "notes": found.notes, "launches": dict(session.launches)}))
    pipe.send(("ended", ending))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the script left behind must not keep the process alive.
    os._exit(0)


def _run(pipe: Connection, options: Any, script: str, arguments: Sequence[str]) -> tuple[Any, Any]:
    import torch

    from tilesmith.lab.inspect.model import Ending
    from tilesmith.lab.inspect.options import InspectError
    from tilesmith.lab.inspect.running.watch import watching
    from tilesmith.lab.inspect.session import Session

    session = Session(
        options,
        has_gpu=torch.cuda.is_available(),
        report=lambda number, kernel: pipe.send(("kernel", number, kernel)),
        before_compiling=lambda kernel, target: pipe.send(("compiling", kernel, target)),
    )
    pipe.send(("started", session.has_gpu, session.sector_bytes))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        with watching(session):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Ending("finished", status, "" if isinstance(end.code, int | None) else str(end.code)), session
    except InspectError as error:
        return Ending("exception", 2, f"InspectError: {error}"), session
    except BaseException as error:
        return Ending("exception", 1, _message(error), _own_traceback(error, script)), session
    return Ending("finished"), session


def _message(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]


def _own_traceback(error: BaseException, script: str) -> str:
    """Return the traceback as Python prints it: without the frames above the script."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).resolve() != Path(script).resolve():
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, limit=-MOST_FRAMES))


if __name__ == "__main__":
    main()
