"""Names of the GPU architectures that kernels compile for: `cuda:90`, `hip:gfx942`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_EXPECTED = "expected cuda:<compute capability>, such as cuda:80 or cuda:90, or hip:<gfx name>, such as hip:gfx942"
_OLDEST_COMPUTE_CAPABILITY = 70


@dataclass(frozen=True)
class Target:
    """One GPU architecture as Triton names it. `Target.parse(str(target))` is the target."""

    backend: str
    arch: int | str

    def __post_init__(self) -> None:
        if self.backend == "cuda":
            known = isinstance(self.arch, int) and self.arch >= _OLDEST_COMPUTE_CAPABILITY
        else:
            known = self.backend == "hip" and re.fullmatch(r"gfx[0-9a-f]{3,4}", str(self.arch)) is not None
        if not known:
            raise ValueError(f"target: unknown target '{self}'; {_EXPECTED}")

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target that `text` names."""
        backend, _, arch = text.partition(":")
        return cls(backend, int(arch) if backend == "cuda" and arch.isdecimal() else arch)

    @property
    def warp_size(self) -> int:
        """Return the threads of a warp; AMD's data-centre GPUs have waves of 64."""
        return 64 if str(self.arch).startswith("gfx9") else 32


DEFAULT_TARGETS = (Target("cuda", 90), Target("hip", "gfx942"))
