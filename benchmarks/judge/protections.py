"""Print which protections leave a process the GPU, as JSON.

    python benchmarks/judge/protections.py

Each combination of protections is tried in a process of its own that makes a CUDA context, as the judge starts a
candidate's process. Namespaces are tried one by one too. Then a process with all that hold tries to get out.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilesmith.lab.judge.cuda import stage
from tilesmith.lab.judge.isolation import sandbox
from tilesmith.lab.judge.isolation.children import Child, Ended, Nursery
from tilesmith.lab.judge.isolation.limits import Limits

NAMESPACES = {"user": 0x10000000, "processes": 0x20000000, "IPC": 0x08000000, "UTS": 0x04000000,
              "network": 0x40000000, "mounts": 0x00020000}  # fmt: skip
_CONTEXT = """
import ctypes, os, sys
if int(sys.argv[1]) and ctypes.CDLL(None, use_errno=True).unshare(int(sys.argv[1])):
    raise SystemExit("unshare: " + os.strerror(ctypes.get_errno()))
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
cuda = ctypes.CDLL("libcuda.so.1")
made, memory = ctypes.c_void_p(), ctypes.c_uint64()
print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), 0), cuda.cuCtxSetCurrent(made),
      cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20), flush=True)
os._exit(0)
"""
_LANDLOCKED = """
from tilesmith.lab.judge.isolation import sandbox
readable = [*sandbox.readable_paths(), *sandbox.driver_paths(), *{readable}]
if not sandbox.restrict_files(readable, [], devices=sandbox.gpu_devices()):
    raise SystemExit("no Landlock")
"""
_ESCAPES = """
import os, socket


def told(name, attempt):
    try:
        attempt()
        print(name, "POSSIBLE", flush=True)
    except BaseException as error:
        print(name, "refused:", type(error).__name__, error, flush=True)


told("internet socket", lambda: socket.socket(socket.AF_INET).connect(("127.0.0.1", 9)))
told("unix socket", lambda: socket.socket(socket.AF_UNIX))
told("fork", lambda: os.fork() or os._exit(0))
told("program", lambda: os.execv("/bin/true", ["true"]))
told("read /etc/hostname", lambda: open("/etc/hostname").read())
told("list /root", lambda: os.listdir("/root"))
told("write /tmp", lambda: open("/tmp/escaped", "w"))
told("write own folder", lambda: open("own", "w"))
told("signal to process 1", lambda: os.kill(1, 0))
told("signal to the parent", lambda: os.kill(os.getppid(), 0))
print("processes seen", len([one for one in os.listdir("/proc") if one.isdigit()])
      if os.access("/proc", os.R_OK) else "none", "uid", os.getuid(), "pid", os.getpid(), flush=True)


def add(x, y):
    return x
"""


def main() -> None:
    started = time.time()
    found: dict[str, Any] = {
        "kernel": platform.release(), "uid": os.getuid(),
        "max_user_namespaces": _text("/proc/sys/user/max_user_namespaces"),
        "landlock_version": ctypes.CDLL(None).syscall(444, None, 0, 1),
        "devices": sandbox.gpu_devices(),
    }  # fmt: skip
    flags = {"none": 0, **{f"user, {name}": NAMESPACES["user"] | one for name, one in NAMESPACES.items()}}
    flags["all but network"] = sum(one for name, one in NAMESPACES.items() if name != "network")
    with tempfile.TemporaryDirectory() as folder, Nursery() as nursery, ThreadPoolExecutor(8) as pool:
        nursery.start()
        namespaces = {name: pool.submit(_context_in, one) for name, one in flags.items()}
        landlock = {name: pool.submit(_context_with, one) for name, one in _readable().items()}
        files = ((), (sandbox.LANDLOCK,), (sandbox.LANDLOCK, sandbox.WIDE_LANDLOCK))
        others = ((), (sandbox.NAMESPACES,), (sandbox.NAMESPACES, sandbox.SECCOMP, sandbox.RLIMITS))
        dropped = [(*one, *two) for one in files for two in others]
        tried = {" + ".join(one) or "nothing": pool.submit(_child_without, nursery, folder, one) for one in dropped}
        found["driver calls in namespaces (0 is success)"] = {name: one.result() for name, one in namespaces.items()}
        found["driver calls under Landlock (0 is success), also readable"] = {
            name: one.result() for name, one in landlock.items()
        }
        found["candidate's process on the GPU, without"] = {name: one.result() for name, one in tried.items()}
        found["candidate's process without a GPU"] = _on_cpu(nursery, folder)
        found["escapes"] = _escapes(nursery, folder)
    found["seconds"] = round(time.time() - started, 1)
    print(json.dumps(found, indent=1))


def _text(path: str) -> str | None:
    return Path(path).read_text().strip() if os.path.exists(path) else None


def _context_in(flags: int) -> str:
    done = subprocess.run([sys.executable, "-c", _CONTEXT, str(flags)], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr)[-300:].strip()


def _readable() -> dict[str, list[str]]:
    """Return sets of folders that a process may read beside what the judge allows."""
    each = {one: [one] for one in ("/proc", "/etc", "/run", "/var")}
    return {"nothing": [], **each, "all of these": sandbox.system_folders(), "everything": ["/"]}


def _context_with(readable: list[str]) -> str:
    """Return what the driver says in a process that may read these folders too."""
    script = f"import sys\nsys.argv[1:] = ['0']\n{_LANDLOCKED.format(readable=readable)}\n{_CONTEXT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr)[-300:].strip()


def _told(child: Child) -> dict[str, Any]:
    started = time.time()
    try:
        return {"holds": list(child.ready()), "no_gpu": child.no_gpu, "seconds": round(time.time() - started, 2)}
    except Ended as ended:
        return {"ended": str(ended), "printed": child.printed()[-600:]}
    finally:
        child.end()


def _child_without(nursery: Nursery, folder: str, without: tuple[str, ...]) -> dict[str, Any]:
    place = tempfile.mkdtemp(dir=folder)
    return _told(nursery.child("record-on-gpu", place, Limits(), confined=True, on_gpu=True, without=without))


def _on_cpu(nursery: Nursery, folder: str) -> dict[str, Any]:
    return _told(nursery.child("record", tempfile.mkdtemp(dir=folder), Limits(), confined=True))


def _escapes(nursery: Nursery, folder: str) -> dict[str, list[str]]:
    """Return what a candidate's file printed that tries to get out, on the GPU and without one."""
    found = {}
    for name in ("with a GPU", "without a GPU"):
        place = Path(tempfile.mkdtemp(dir=folder))
        (place / "candidate.py").write_text(_ESCAPES)
        try:
            child = (
                stage.started_on_gpu(nursery, place, Limits())
                if name == "with a GPU"
                else nursery.child("record", str(place), Limits(), confined=True)
            )
        except Exception as error:
            found[name] = [str(error)]
            continue
        request = {
            "do": "load",
            "main": "candidate.py",
            "init": [],
            "seed": 0,
            "names": ["add"],
            "parameters": {},
            "turned": None,
        }
        try:
            answer = child.ask(request, 20.0)
            found[name] = [*child.printed().splitlines(), json.dumps(answer)[:300]]
        except Ended as ended:
            found[name] = [*child.printed().splitlines(), str(ended)]
        finally:
            child.end()
    return found


if __name__ == "__main__":
    main()
