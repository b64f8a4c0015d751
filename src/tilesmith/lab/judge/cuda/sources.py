"""What a candidate asks torch.utils.cpp_extension to build, as plain data.

The texts around the sources (headers, the bindings of `functions`) are those that PyTorch documents for `load_inline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CPP_HEADERS = ("#include <torch/extension.h>",)
_CUDA_HEADERS = ("#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>")
_LINKED = ("-l", "-L", "-Wl,-rpath")


class CannotBuild(Exception):
    """A request that the judge does not build; the message says why."""


def of_inline(
    name: str, cpp_sources: str | Sequence[str], cuda_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the request for a `load_inline`. Raises CannotBuild."""
    implicit = not options.get("no_implicit_headers")
    cpp = [*(_CPP_HEADERS if implicit else ()), *_listed(cpp_sources)]
    if functions is not None:
        documented = functions if isinstance(functions, Mapping) else dict.fromkeys(_listed(functions), "")
        checked = options.get("with_pytorch_error_handling", True)
        bound = [f'm.def("{one}", {f"torch::wrap_pybind_function({one})" if checked else one});' for one in documented]
        cpp += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *bound, "}"]
    texts = {"main.cpp": "\n".join(cpp)}
    cuda = _listed(cuda_sources)
    if cuda:
        texts["cuda.cu"] = "\n".join([*(_CUDA_HEADERS if implicit else ()), *cuda])
    return _request(name, texts, Path(), options)


def of_files(name: str, sources: str | Sequence[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Return the request for a `load` of files in the candidate's folder. Raises CannotBuild."""
    texts = {}
    for one in _listed(sources):
        path = (folder / one).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise CannotBuild(f"the source {path.name} lies outside of the candidate's folder")
        texts[str(path.relative_to(folder.resolve()))] = path.read_text()
    return _request(name, texts, folder, options)


def _request(name: str, texts: Mapping[str, str], folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    if options.get("sycl_sources") or options.get("is_standalone"):
        raise CannotBuild("SYCL sources and standalone programs")
    if not str(name).isidentifier():
        raise CannotBuild(f"an extension named {name!r}")
    includes = [Path(str(one)) for one in _listed(options.get("extra_include_paths"))]
    return {
        "name": str(name),
        "texts": dict(texts),
        "cflags": _listed(options.get("extra_cflags")),
        "cuda_cflags": _listed(options.get("extra_cuda_cflags")),
        "ldflags": [one for one in _listed(options.get("extra_ldflags")) if one.startswith(_LINKED)],
        "includes": [_inside(one, folder) for one in includes],
    }


def _inside(path: Path, folder: Path) -> str:
    """Return a folder of the candidate by its relative path, others as they are."""
    return str(path.relative_to(folder)) if folder != Path() and path.is_relative_to(folder) else str(path)


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [one for one in ([value] if isinstance(value, str) else map(str, value)) if one]
