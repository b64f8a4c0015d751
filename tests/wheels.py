"""Install the wheel in fresh environments and use it away from the checkout: `make test-wheel`.

Builds the wheel, makes one environment for each Python found and each Triton release asked for, and runs the commands
of `COMMANDS` there as an ordinary user with a read-only home. Prints a table. --json stores the table after each
environment; environments of earlier runs stay in it. Exit status 1 where a command fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TRITONS = ("3.9",)
TIME_LIMIT = 1800  # seconds for one command
NOBODY = 65534  # the user and group that root gives the commands to

COMMANDS = {
    "version": ["--version"],
    "doctor": ["doctor"],
    "tour": ["tour", "--html", "tour.html"],
    "check": ["check", "silu", "--json", "check.json"],
    "check a file": ["check", "doubled.py"],
    "inspect": ["inspect", "script.py", "--html", "inspect.html"],
    "learn list": ["learn", "list"],
    "learn start": ["learn", "start", "vector-add"],
    "learn pages": ["learn", "--html", "site"],
    "learn verify": ["learn", "verify", "vector-add"],
    "train": ["train", "llama", "--num-steps", "2", "--batch-size", "2", "--seq-len", "16", "--hidden-dim", "32",
              "--num-layers", "1", "--num-heads", "2", "--save", "end.safetensors", "--json", "train.json"],
    "bench": ["bench", "silu", "--device", "h200", "--html", "bench.html"],
}  # fmt: skip

KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def doubled_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)


def doubled(x):
    y = torch.empty_like(x)
    doubled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""
SPEC = """

from tilesmith.spec import Case, Spec

SPEC = Spec(
    name="doubled",
    op=doubled,
    reference=lambda x: 2 * x,
    cases=[Case("few", n=100)],
    make_inputs=lambda case, dtype, device, layout: {"x": torch.randn(case.n, dtype=dtype, device=device)},
    differentiable=False,
)
"""


@dataclass
class Environment:
    """One Python with one Triton release, and what became of each command."""

    python: str
    triton: str
    torch: str = ""
    wheel: str = ""
    machine: str = f"{platform.system()} {platform.machine()}"
    commit: str = ""
    date: str = ""
    user: str = "ordinary"
    problem: str = ""
    commands: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def main() -> int:
    options = _options()
    tried = []
    with tempfile.TemporaryDirectory(prefix="tilesmith-wheel-") as folder:
        Path(folder).chmod(0o755)  # an ordinary user enters it
        wheel = _built(Path(folder))
        for python in _pythons(options):
            for triton in options.triton:
                tried.append(_tried(wheel, python, triton, Path(folder), options))
                if options.json:
                    _store(options.json, tried[-1])
    for one in tried:
        works = [name for name, result in one.commands.items() if result == "works"]
        what = one.problem or f"{len(works)} of {len(one.commands)} commands work"
        print(f"Python {one.python}, torch {one.torch}, Triton {one.triton}: {what}")
    return 0 if tried and all(set(one.commands.values()) == {"works"} for one in tried) else 1


def _store(table: Path, tried: Environment) -> None:
    """Put one environment into the table, in place of an earlier run of the same versions."""
    stored = json.loads(table.read_text())["environments"] if table.exists() else []
    versions = ("python", "triton", "torch", "machine")
    new = asdict(tried)
    kept = [one for one in stored if any(one.get(key) != new[key] for key in versions)]
    kept = sorted([*kept, new], key=lambda one: [int(part) for part in one["python"].split(".")] + [one["triton"]])
    table.write_text(json.dumps({"environments": kept}, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--python", nargs="+", default=[], help="interpreters; by default all of 3.10 to 3.13 found")
    parser.add_argument("--triton", nargs="+", default=list(TRITONS), help="releases of Triton, as 3.9")
    parser.add_argument("--torch", default="", help="a build of torch, as 2.13.0; by default that of constraints.txt")
    parser.add_argument("--leave-out", nargs="+", default=[], choices=list(COMMANDS), help="commands not to run")
    parser.add_argument("--keep", type=Path, help="make the environments in this folder, and use those that are there")
    parser.add_argument("--json", type=Path, help="store the table in this file")
    return parser.parse_args()


def _pythons(options: argparse.Namespace) -> Iterator[str]:
    for name in options.python or [f"python{version}" for version in PYTHONS]:
        found = shutil.which(name)
        if found:
            yield found
        elif options.python:
            sys.exit(f"wheels: --python {name} is not on this machine")


def _built(folder: Path) -> Path:
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    (wheel,) = folder.glob("tilesmith-*.whl")
    return wheel


def _tried(wheel: Path, python: str, triton: str, folder: Path, options: argparse.Namespace) -> Environment:
    """Install the wheel in an environment of its own and run every command."""
    version = _run([python, "-c", "import platform; print(platform.python_version())"], folder).stdout.strip()
    result = Environment(python=version, triton=triton, wheel=wheel.name, date=time.strftime("%Y-%m-%d", time.gmtime()))
    result.commit = _run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], folder).stdout.strip()
    environment = (options.keep or folder).resolve() / f"py{version}-triton{triton}"
    own = environment / "bin" / "python"
    pinned = ["--constraint", str(ROOT / "constraints.txt"), "torch"]
    torch = [f"torch=={options.torch}"] if options.torch else pinned
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        if not own.exists():
            _run([python, "-m", "venv", str(environment)], folder)
            _run([*pip, *torch], folder)
        _run([*pip, "--force-reinstall", "--no-deps", str(wheel)], folder)
        _run([*pip, str(wheel)], folder)  # its dependencies
        # Without dependencies: a CUDA build of torch names the one release of Triton that it was built with.
        _run([*pip, "--no-deps", f"triton=={triton}.*"], folder)
        versions = "import torch, triton; print(torch.__version__, triton.__version__)"
        result.torch, result.triton = _run([str(own), "-c", versions], folder).stdout.split()
    except subprocess.CalledProcessError as error:
        result.problem = f"not installed: {error.stderr.strip().splitlines()[-1][:200]}"
        return result
    away = folder / f"{environment.name}-work"
    away.mkdir()
    if os.geteuid() == 0:
        os.chown(away, NOBODY, NOBODY)
        if _outcome([str(own), "-c", ""], away, ordinary=True) != "works":  # a Python in root's own home
            result.user = "root"
    (away / "script.py").write_text(KERNEL + "\n\nprint(doubled(torch.ones(100)).sum())\n")
    (away / "doubled.py").write_text(KERNEL + SPEC)
    for name, arguments in COMMANDS.items():
        if name in options.leave_out:
            continue
        start = time.perf_counter()
        program = str(environment / "bin" / "tilesmith")
        result.commands[name] = _outcome([program, *arguments], away, ordinary=result.user == "ordinary")
        result.seconds[name] = round(time.perf_counter() - start, 1)
        print(f"  {environment.name}: {name}: {result.commands[name]} ({result.seconds[name]} s)", flush=True)
    if not options.keep:
        shutil.rmtree(environment)
    return result


def _outcome(command: list[str], folder: Path, ordinary: bool) -> str:
    """Return "works", or the last line of what the command wrote."""
    try:
        _run(command, folder, ordinary)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr.strip() or error.stdout.strip()).splitlines() or ["nothing written"]
        return f"exit status {error.returncode}: {lines[-1][:300]}"
    except subprocess.TimeoutExpired:
        return f"not over after {TIME_LIMIT} s"
    return "works"


def _run(command: list[str], folder: Path, ordinary: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout with a read-only home; as an ordinary user where asked."""
    left_out = ("PYTHON", "TILESMITH", "TRITON", "XDG", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    is_root = os.geteuid() == 0
    home = folder / "home"
    home.mkdir(exist_ok=True)
    home.chmod(0o555)
    # Root may write to any folder but those of /proc.
    place = "/proc" if is_root and not ordinary else str(home)
    nobody: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root and ordinary else {}
    return subprocess.run(command, cwd=folder, env=kept | {"HOME": place}, check=True, text=True, timeout=TIME_LIMIT,
                          capture_output=True, stdin=subprocess.DEVNULL, **nobody)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
