"""What all tests share: a cache of their own, Ctrl-C, forks for programs, and GPU tests left out without a GPU."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import cache

# Before PyTorch is imported: tests run side by side, and threads of one that wait for each other slow down the next.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import typer.testing
from triton import knobs

from forked import forking
from time_limits import end_after, end_forks_with_this_process

# PyTorch's Inductor sets a folder of its own where none is set: kernels that later tests compile would miss the cache.
os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)

# Without bytecode every process that a test starts would compile our sources again, and every run all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collection and the interpreter make many small objects, hardly any of them in circles.
gc.set_threshold(50_000, 20, 50)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it runs in the background ignore Ctrl-C, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if not torch.cuda.is_available():
    # To seed a GPU at its first use, `torch.manual_seed` keeps the caller's stack for each vendor: a millisecond.
    for vendor in (torch.cuda, torch.xpu, torch.mtia):
        vars(vendor)["manual_seed_all"] = lambda seed: None

# Typer would build all commands again for each one that a test invokes: 60 ms.
vars(typer.testing)["_get_command"] = cache(typer.main.get_command)

STANDARD_ERROR = 2
LONGEST_SECONDS = {"fast": 600, "slow": 3600, "at the end": 120}
"""The time limits of a test, and of the end of the process, which waits for threads and children."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, leave the tests that need one out. Those that `-m` asks for are skipped one by one."""
    if torch.cuda.is_available():
        return
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if "gpu" in config.getoption("markexpr"):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    elif on_gpu:
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(autouse=True)
def as_the_mark_asks(request: pytest.FixtureRequest) -> Iterator[None]:
    """What takes time alone is left to a run of one process, and no process keeps a GPU's memory from the others."""
    crowd = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
    if crowd and request.node.get_closest_marker("alone"):
        pytest.skip("other tests use the GPU at the same time: `make test-gpu` runs it afterwards, alone")
    yield
    if request.node.get_closest_marker("gpu") and torch.cuda.is_available():
        gc.collect()  # a graph that was captured, or a closure over itself, keeps its tensors until then
        torch.cuda.empty_cache()


def pytest_configure() -> None:
    global STANDARD_ERROR
    STANDARD_ERROR = os.dup(2)  # pytest takes descriptor 2 while a test runs
    end_forks_with_this_process()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let the random inputs of a test not depend on the tests before it."""
    torch.manual_seed(0)
    random.seed(0)


def pytest_collection_finish() -> None:
    # What was imported and collected is there to stay: the garbage collector need not go through it again and again.
    gc.freeze()
    # pytest adds a handler to every logger that does not propagate, six times for each test. PyTorch has fifty of them.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs ends its process with the stacks of all threads; pytest-xdist goes on in a new process."""
    end_after(LONGEST_SECONDS["slow" if item.get_closest_marker("slow") else "fast"], STANDARD_ERROR)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # a process of pytest-xdist may wait for its next test much longer


def pytest_unconfigure() -> None:
    end_after(LONGEST_SECONDS["at the end"], STANDARD_ERROR)
    # Else Triton's bindings complain of what is left at the end. Not yet: pytest now collects garbage five times.
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def cache_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads what was tuned on this machine, nor writes there."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TILESMITH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_of_other_modules_in_the_garbage_collector() -> None:
    """Objects of earlier modules stay alive unseen: a search or collection of all objects takes milliseconds.

    Late in a run `gc.collect` would take half a second. For launches with addresses in a table, the interpreter
    searches all objects that the garbage collector knows.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def forked() -> Iterator[None]:
    """Python programs that the test starts are forks of its own process."""
    with forking():
        yield


@pytest.fixture
def interpreted_once() -> Iterator[None]:
    """Launches on the same inputs are interpreted once in this process: for tests that no kernel decides."""
    from interpreted_once import interpreting_once  # only here: it imports all operators

    with interpreting_once():
        yield


@pytest.fixture
def kept_builds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """C++ builds of the CUDA track are kept beside pytest's cache, which `make clean` removes."""
    from kept_builds import keeping_builds  # in tests/workshop

    cache = getattr(request.config, "cache", None)  # None with -p no:cacheprovider
    folder = tmp_path_factory.getbasetemp() / "builds" if cache is None else cache.mkdir("cuda-builds")
    folder.mkdir(exist_ok=True)
    with keeping_builds(folder):
        yield
