"""The process in which a script runs while it is inspected. Started by its path, with the number of a pipe.

What is found goes through the pipe as it is found, so that it outlives a script that does not.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: a script must not find our modules under the names of its own

import os
import runpy
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

MOST_FRAMES = 20  # the innermost; a recursion without end has a thousand


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    wishes, script, arguments = pipe.recv()
    ending, session = _run(pipe, wishes, script, arguments)
    if session is not None:
        from tilesmith.lab.inspect import inspection_of

        found = inspection_of(session, script, arguments)
        pipe.send(("summary", {"device": found.device, "notes": found.notes, "launches": dict(session.launches)}))
    pipe.send(("ended", ending))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Whatever the script left behind, such as threads, must not keep the process; nor need anything be taken down.
    os._exit(0)


def _run(pipe: Connection, wishes: Any, script: str, arguments: Sequence[str]) -> tuple[Any, Any]:
    import torch

    from tilesmith.lab.inspect import watching
    from tilesmith.lab.inspect.model import Ending
    from tilesmith.lab.inspect.session import InspectError, Session

    session = Session(
        wishes,
        has_gpu=torch.cuda.is_available(),
        report=lambda number, kernel: pipe.send(("kernel", number, kernel)),
        about_to=lambda kernel, target: pipe.send(("compiling", kernel, target)),
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
    """The traceback as Python would have printed it: without what stands above the script."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).resolve() != Path(script).resolve():
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, limit=-MOST_FRAMES))


if __name__ == "__main__":
    main()
