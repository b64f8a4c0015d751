"""The provenance that every stored result carries: GPU, driver, versions, commit, date."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tilesmith
from tilesmith.lab.bench.result import commit
from tilesmith.toolchain.machine import examine


def stamped(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with its provenance."""
    machine = examine()
    return {
        "tilesmith": tilesmith.__version__,
        "device": machine.gpu.name if machine.gpu else None,
        "driver": machine.gpu.driver if machine.gpu else None,
        "torch": machine.torch,
        "triton": machine.triton,
        "commit": commit(Path(tilesmith.__file__).parent),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **content,
    }
