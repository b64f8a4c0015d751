"""What the build process made: a library for the candidate's process, device code for the clean one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilesmith.lab.judge.cuda import launch_recorder
from tilesmith.lab.judge.cuda.toolkit import BUILT, Toolkit
from tilesmith.lab.judge.isolation.children import Child, Ended
from tilesmith.lab.judge.recorded import Failure
from tilesmith.lab.judge.verdict import Reason
from tilesmith.storage import write_atomically
from tilesmith.toolchain.cache_folder import cache_folder

SECONDS_TO_BUILD = 400.0  # nvcc takes half a minute for PyTorch's headers, and longer on a loaded machine
LARGEST_FILE = 64 << 20
_PARTS = {"name": str, "texts": dict, "cflags": list, "cuda_cflags": list, "ldflags": list, "includes": list}


@dataclass
class Builds:
    """The extensions of one candidate. `start` starts a child of a role; `images` is where the clean process looks."""

    toolkit: Toolkit
    start: Callable[[], AbstractContextManager[Child]]
    images: Path
    modules: dict[str, str] = field(default_factory=dict)  # by digest: names of extensions

    def answer(self, request: Any, child: Child) -> dict[str, Any]:
        """Build what a candidate asks for, and put the library at the end of its arena. Raises Failure."""
        if not _is_request(request):
            raise Failure(Reason("garbage", "loads", "the candidate's process sends a damaged request to build"))
        toolkit = self.toolkit
        versions = [torch.__version__, toolkit.nvcc, toolkit.architecture, launch_recorder.text()]
        digest = hashlib.sha256(json.dumps([request, versions], sort_keys=True).encode()).hexdigest()[:16]
        module = f"{request['name'][:40]}_{digest}"
        kept = Path(cache_folder()) / "cuda-extensions" / digest
        if not (kept / "done").is_file():
            self._build({**request, "digest": digest, "module": module}, kept)
        self.modules[digest] = module
        _copy_images(kept, self.images / BUILT / digest)
        places, at = [], child.arena.size
        for file in (kept / "library.so", *sorted(kept.glob("*.cubin"))):
            content = file.read_bytes()
            at -= len(content)
            child.arena.bytes_at(at, len(content))[:] = memoryview(content)
            places.append([at, len(content)])
        return {"module": module, "digest": digest, "library": places[0], "images": places[1:]}

    def _build(self, request: dict[str, Any], kept: Path) -> None:
        toolkit = self.toolkit
        facts = {"nvcc": toolkit.nvcc, "home": toolkit.home, "architecture": toolkit.architecture}
        with self.start() as child:
            try:
                answer = child.ask({**request, **facts}, SECONDS_TO_BUILD)
            except Ended as ended:
                raise Failure(Reason("compiler", "compiles", f"the compiler {ended}")) from None
            if "error" in answer:
                advice = "The sources must compile as torch.utils.cpp_extension compiles them."
                raise Failure(Reason("compile-error", "compiles", str(answer["error"])[:600], advice))
            kept.mkdir(parents=True, exist_ok=True)
            for name, place in zip(_names(answer), [answer["library"], *answer["images"]], strict=True):
                at, length = place
                if length > LARGEST_FILE:
                    raise Failure(Reason("compiler", "compiles", f"the library has {length:,} bytes"))
                write_atomically(kept / name, bytes(child.arena.bytes_at(at, length)))
            (kept / "done").touch()


def _names(answer: dict[str, Any]) -> list[str]:
    return ["library.so", *(f"{number}.cubin" for number in range(len(answer["images"])))]


def _copy_images(kept: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in kept.glob("*.cubin"):
        (folder / one.name).write_bytes(one.read_bytes())


def _is_request(request: Any) -> bool:
    if not isinstance(request, dict) or set(request) != set(_PARTS):
        return False
    texts_only = all(isinstance(request[name], kind) for name, kind in _PARTS.items())
    listed = [one for name in ("cflags", "cuda_cflags", "ldflags", "includes") for one in request[name]]
    texts = request["texts"]
    names = isinstance(texts, dict) and all(isinstance(one, str) for pair in texts.items() for one in pair)
    return texts_only and names and all(isinstance(one, str) for one in listed) and request["name"].isidentifier()
