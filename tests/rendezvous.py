"""Process groups of forks, without a port that somebody else may take first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__


@contextmanager
def rendezvous(processes: int) -> Iterator[list[dict[str, str]]]:
    """Yield the environment of each process. They meet at a store of this process, as those of torchrun do.

    The system chooses the store's port, which is in use from then on.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield [
        {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
        }
        for rank in range(processes)
    ]  # fmt: skip
