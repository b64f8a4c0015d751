"""A process that has imported PyTorch and Triton once, and forks a new child for each candidate in milliseconds.

The nursery never runs a candidate's code. A child starts as a fork of it, behind a supervisor: the supervisor reports
how the child ended, and ends it when the judge is gone. Inside new namespaces the supervisor is process 1, so every
process that a child could start ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from tilesmith.lab.judge.isolation import limits as process_limits
from tilesmith.lab.judge.isolation import sandbox
from tilesmith.lab.judge.isolation.arena import Arena
from tilesmith.lab.judge.isolation.limits import Limits

MOST_DESCRIPTORS = 8
LONGEST_REQUEST = 1 << 16
_POLL_SECONDS = 0.02
_IDLE_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork a child for each request on the socket whose descriptor is the last argument."""
    serve(socket.socket(fileno=int(sys.argv[-1])))


def serve(requests: socket.socket) -> NoReturn:
    """Fork a child for each request, until the other end is closed."""
    roles = _roles()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the judge, which then closes the socket
    _prepare_when_idle(requests)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, MOST_DESCRIPTORS)
        if not data:
            os._exit(0)
        starter = os.fork()
        if starter == 0:
            try:
                _start(json.loads(data), descriptors, roles)
            except BaseException:  # the judge reads what a child printed
                traceback.print_exc()
            os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(starter, 0)


def _roles() -> dict[str, Callable[[socket.socket, Arena, dict[str, Any]], None]]:
    """Import what children need, and return their main functions."""
    from tilesmith.lab.judge.conversing.host import converse
    from tilesmith.lab.judge.cuda.building import build
    from tilesmith.lab.judge.cuda.worker import record_on_gpu
    from tilesmith.lab.judge.recording.worker import record
    from tilesmith.lab.judge.replaying.worker import replay
    from tilesmith.lab.judge.timing.worker import time_tapes

    return {
        "converse": converse, "record": record, "replay": replay, "time": time_tapes, "build": build,
        "record-on-gpu": record_on_gpu,
    }  # fmt: skip


def _prepare_when_idle(requests: socket.socket) -> None:
    """Let the compiler hash its own files once, for all children; but not while the judge waits for the first child."""
    from tilesmith.toolchain.compiler import prepare

    select.select([requests], [], [], _IDLE_SECONDS)
    if not select.select([requests], [], [], 0)[0]:
        prepare()


def _start(request: dict[str, Any], descriptors: list[int], roles: dict[str, Any]) -> None:
    channel, status, arena, output = descriptors
    os.setsid()
    wanted = sandbox.NAMESPACES not in request["without"]
    separate = bool(request["confined"]) and wanted and sandbox.enter_namespaces(on_gpu=bool(request["on_gpu"]))
    supervisor = os.fork()
    if supervisor:
        os.write(status, f"pid {supervisor} {os.getpid()}\n".encode())
        os._exit(0)
    child = os.fork()
    if child:
        sandbox.close_other_files([status])
        _supervise(child, status)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, stream)
    sandbox.close_other_files([channel, arena])
    _run(request, socket.socket(fileno=channel), arena, roles, separate)


def _run(request: dict[str, Any], channel: socket.socket, arena: int, roles: dict[str, Any], separate: bool) -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    protections = [sandbox.NAMESPACES] if separate else []
    memory = Arena(arena, request["arena_bytes"])
    cache = [request["cache"]] if request["cache"] else []
    if cache:
        os.environ["TRITON_CACHE_DIR"] = cache[0]
    if request["confined"]:
        programs = bool(request["programs"])
        if separate:
            sandbox.limit_folder(request["scratch"])
        os.chdir(request["scratch"])
        tempfile.tempdir = request["scratch"]
        writable = [request["scratch"], *cache]
        on_gpu = bool(request["on_gpu"])
        devices = sandbox.gpu_devices() if on_gpu else []
        without = request["without"]
        readable = [*sandbox.readable_paths(), *(sandbox.driver_paths() if on_gpu else [])]
        if sandbox.LANDLOCK not in without:
            if sandbox.restrict_files(readable, writable, programs=programs, devices=devices):
                protections.append(sandbox.LANDLOCK)
        elif sandbox.WIDE_LANDLOCK not in without:
            readable += sandbox.system_folders()
            if sandbox.restrict_files(readable, writable, programs=programs, devices=devices):
                protections.append(sandbox.WIDE_LANDLOCK)
        limits = Limits(**request["limits"])
        if sandbox.RLIMITS not in without and process_limits.apply(limits, on_gpu=on_gpu):
            protections.append(sandbox.RLIMITS)
        if sandbox.SECCOMP not in without and sandbox.deny_calls(programs=programs, unix_sockets=on_gpu):
            protections.append(sandbox.SECCOMP)
    roles[request["role"]](channel, memory, {"protections": protections, "scratch": request["scratch"]})
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a candidate may have closed or replaced the stream
            stream.flush()
    os._exit(0)


def _supervise(child: int, status: int) -> None:
    """Wait for the child and report its end. End it when nobody reads the status any more."""
    listener = select.poll()
    listener.register(status, select.POLLERR)
    while True:
        with suppress(ChildProcessError):
            ended, how = os.waitpid(child, os.WNOHANG)
            if ended == child:
                code = os.waitstatus_to_exitcode(how)
                with suppress(OSError):
                    os.write(status, f"{'exit' if code >= 0 else 'signal'} {abs(code)}\n".encode())
                os._exit(0)
        if listener.poll(0):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os._exit(0)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
