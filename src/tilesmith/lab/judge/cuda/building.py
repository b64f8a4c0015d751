"""The build process: compiles a candidate's C++ and CUDA, and puts the library and its device code into the arena.

It runs compilers on the candidate's text and nothing else of the candidate, in a confined process that may start
programs below the readable paths.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tilesmith import messages
from tilesmith.lab.judge.cuda import launch_recorder
from tilesmith.lab.judge.isolation.arena import Arena, aligned
from tilesmith.spec import described

_LIBRARIES = ("c10", "torch_cpu", "torch", "torch_python", "c10_cuda", "torch_cuda")
_HALF = (
    "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)  # fmt: skip
LONGEST_ERROR = 4000


class BuildError(Exception):
    """A compiler refused the sources; the message is its own."""


def build(channel: socket.socket, arena: Arena, facts: dict[str, Any]) -> None:
    """Answer requests until the judge closes the channel."""
    messages.send(channel, {"ready": facts["protections"]})
    while True:
        try:
            request = messages.receive(channel)
        except messages.Closed:
            return
        try:
            answer = built(request, arena, Path(facts["scratch"]))
        except BuildError as error:
            answer = {"error": str(error)[-LONGEST_ERROR:]}
        except Exception as error:  # a request comes from the candidate: whatever it causes is a reason
            answer = {"error": described(error, __file__)[:LONGEST_ERROR]}
        messages.send(channel, answer)


def built(request: dict[str, Any], arena: Arena, scratch: Path) -> dict[str, Any]:
    """Build one extension. Return the places of the library and of each file of device code. Raises BuildError."""
    folder = scratch / str(request["digest"])
    folder.mkdir()
    library, images = _compiled(request, folder)
    room, places = 0, []
    for file in (library, *images):
        content = file.read_bytes()
        arena.bytes_at(room, len(content))[:] = memoryview(content)
        places.append([room, len(content)])
        room = aligned(room + len(content))
    return {"library": places[0], "images": places[1:]}


def _compiled(request: dict[str, Any], folder: Path) -> tuple[Path, list[Path]]:
    texts: dict[str, str] = request["texts"]
    home, root = request["home"], Path(torch.__file__).parent
    python = sysconfig.get_path("include")
    includes = [
        *(f"-I{(folder.parent / one)}" for one in request["includes"]), f"-I{folder.parent}",
        "-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include"),
        "-isystem", f"{home}/include", "-isystem", python,
    ]  # fmt: skip
    common = [f"-DTORCH_EXTENSION_NAME={request['module']}", "-DTORCH_API_INCLUDE_EXTENSION_H", *includes]
    common.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    standard = [] if any("-std" in one for one in request["cflags"] + request["cuda_cflags"]) else ["-std=c++20"]
    commands, objects, kept = [], [], []
    recorder = folder / "launch_recorder.cpp"
    recorder.write_text(launch_recorder.text())
    objects.append(folder / "launch_recorder.o")
    commands.append(
        ["g++", "-c", str(recorder), "-o", str(objects[0]), "-fPIC", "-O1", "-std=c++17", "-isystem", f"{home}/include"]
    )
    for number, (name, text) in enumerate(texts.items()):
        source = folder.parent / name
        if not source.is_file() or source.read_text() != text:
            source = folder / Path(name).name
            source.write_text(text)
        target = folder / f"{number}.o"
        objects.append(target)
        if name.endswith(".cu"):
            keep = folder / f"kept{number}"
            keep.mkdir()
            kept.append(keep)
            chosen = any(one.startswith(("-arch", "--gpu", "-gencode", "--generate")) for one in request["cuda_cflags"])
            code = f"-gencode=arch=compute_{request['architecture']},code=sm_{request['architecture']}"
            commands.append([
                request["nvcc"], "-c", str(source), "-o", str(target), *common, *_HALF, "--expt-relaxed-constexpr",
                "-Xcompiler", "-fPIC", *standard, *([] if chosen else [code]), *request["cuda_cflags"], "--keep",
                "--keep-dir", str(keep),
            ])  # fmt: skip
        else:
            commands.append(
                ["g++", "-c", str(source), "-o", str(target), *common, "-fPIC", *standard, *request["cflags"]]
            )
    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(lambda one: _run(one, folder), commands))
    library = folder / f"{request['module']}.so"
    wraps = [f"-Wl,--wrap={one}" for one in launch_recorder.WRAPPED]
    linked = [f"-l{one}" for one in _LIBRARIES if list((root / "lib").glob(f"lib{one}.so*"))]
    _run(
        ["g++", "-shared", "-o", str(library), *map(str, objects), *wraps, f"-L{root / 'lib'}", *linked,
         *(f"-L{one}" for one in _runtime_folders(home)), *_runtime(home), *request["ldflags"]], folder,
    )  # fmt: skip
    return library, sorted(one for keep in kept for one in keep.glob("*.cubin"))


def _runtime_folders(home: str) -> list[str]:
    """Return the folders that may hold the CUDA runtime: of the toolkit, and of PyTorch's packages."""
    packages = [str(one) for one in Path(torch.__file__).parents[1].glob("nvidia/*/lib")]
    return [one for one in (f"{home}/lib64", f"{home}/lib", *packages) if Path(one).is_dir()]


def _runtime(home: str) -> list[str]:
    """Return the flag for the CUDA runtime. Packages have a file with a version in its name alone."""
    for folder in _runtime_folders(home):
        if (Path(folder) / "libcudart.so").exists():
            return ["-lcudart"]
    for folder in _runtime_folders(home):
        for file in sorted(Path(folder).glob("libcudart.so.*")):
            return [f"-l:{file.name}"]
    return ["-lcudart"]


def _run(command: list[str], folder: Path) -> None:
    own = {**os.environ, "TMPDIR": str(folder)}  # where compilers put their own files
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stderr + done.stdout).replace(str(folder) + "/", "").replace(str(folder.parent) + "/", "")
        raise BuildError(f"{Path(command[0]).name} refuses the sources: {_errors(said)}")


def _errors(said: str) -> str:
    """Return the lines of a compiler that name errors; all lines where none does."""
    lines = [one for one in said.splitlines() if "error" in one.lower()]
    return "\n".join(lines[:8]) or said
