"""`tilesmith mcp`: the lab as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tilesmith import nursery_process
from tilesmith.cli.terminal import operators, refuse

SECONDS = 600.0
LONGEST_TEXT = 20_000


def mcp(
    folder: Annotated[Path, typer.Option(help="Paths that tools get are relative to this folder.")] = Path("."),
) -> None:
    """Serve judge, check, inspect, bench and explain to agents, over standard input and output.

    Needs the official SDK: pip install '.[mcp]' in a clone.
    """
    if not folder.is_dir():
        refuse(f"--folder: {folder} is not a folder")
    made = server(folder)
    nursery_process.start_ahead()  # its imports take seconds, which the first judgement then need not wait for
    made.run("stdio")


def server(folder: Path) -> Any:
    """Return the server with its tools."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:
        try:
            from mcp.server.fastmcp import FastMCP as MCPServer  # the SDK before 2.0
        except ImportError:
            refuse("tilesmith mcp needs the MCP SDK: pip install '.[mcp]' in a clone")
    made = MCPServer("tilesmith", instructions=_INSTRUCTIONS)
    tools = _Tools(folder.resolve())
    for tool in (tools.judge, tools.check, tools.inspect, tools.bench, tools.explain):
        made.tool()(tool)
    return made


_INSTRUCTIONS = (
    "Write a Triton kernel for a task, judge it, read the first reason, change the kernel, and judge again. "
    "explain says what a kind of reason means. Nothing here needs a GPU."
)


class _Tools:
    """The tools. Each returns JSON; an error is a text in the field `error`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def judge(self, task: str, candidate: str = "", source: str = "", seed: int | None = None) -> dict[str, Any]:
        """Judge a candidate kernel: right, safe, honest, compiles, bytes moved against the floor, and a reward.

        task: an operator's name such as softmax, or the path of a file with a SPEC, of a KernelBench problem, or of a
        GPU MODE folder. candidate: the path of a Python file or folder; or give its text as source. Without both, the
        operator of the task's own SPEC is judged. seed: repeats a judgement.
        """
        from tilesmith.lab.judge import Candidate, CandidateError, Options, Task, TaskError, default_judge
        from tilesmith.lab.judge.bridges.opening import both_of, candidate_for, task_at, with_format

        refusal = self._refusal(task) or self._refusal(candidate)
        if refusal is not None:
            return {"error": refusal}
        if source and candidate:
            return {"error": "give candidate or source, not both"}
        path = self._folder / task
        known = {} if path.exists() else operators()
        if not source and not candidate and not path.is_file():
            return {"error": "give candidate, a path, or source, the text of the file"}
        try:
            if not source and not candidate:
                chosen, one = both_of(path)
            else:
                chosen = Task.of(known[task]) if task in known else task_at(path)
                text = Candidate.of_text(source) if source else None
                one = with_format(path, text) if text else candidate_for(path, self._folder / candidate)
            return default_judge().judge(chosen, one, Options(seed=seed)).as_json()
        except (TaskError, CandidateError) as error:
            return {"error": str(error)}

    def _refusal(self, path: str) -> str | None:
        """Return why a path cannot be used; None where it can. The path need not exist."""
        found = self._folder / path
        try:
            found.exists()
            is_inside = found.resolve().is_relative_to(self._folder)
        except (OSError, ValueError):  # too long, or a null byte
            return f"{path[:80]!r} cannot be a path"
        return None if is_inside else f"{path!r} lies outside of the folder that tilesmith mcp serves"

    def check(self, what: str) -> dict[str, Any]:
        """Compare an operator, or the operator of a file with a SPEC, with its reference, with all gradients."""
        return self._command("check", what)

    def inspect(self, script: str) -> dict[str, Any]:
        """Explain each kernel that a script launches: accesses, coalescing, registers, races, advice."""
        return self._command("inspect", script)

    def bench(self, what: str, device: str = "") -> dict[str, Any]:
        """Measure an operator or a file with a SPEC beside its rivals; without a GPU, predict for a device."""
        return self._command("bench", what, *(["--device", device] if device else []))

    def explain(self, kind: str) -> dict[str, Any]:
        """Say what a kind of reason in a verdict means and what to do about it."""
        from tilesmith.lab.judge.output.explanations import explained

        try:
            return {"kind": kind, "meaning": explained(kind)}
        except KeyError as error:
            return {"error": str(error.args[0])}

    def _command(self, *arguments: str) -> dict[str, Any]:
        """Run a command of ours in its own process, and return its JSON and what it printed."""
        if any(one.startswith("-") for one in arguments[1:2]):
            return {"error": f"{arguments[1]!r} is no operator and no file"}
        refusal = self._refusal(arguments[1])
        if refusal is not None:
            return {"error": refusal}
        with tempfile.TemporaryDirectory(prefix="tilesmith-mcp-") as scratch:
            result = Path(scratch) / "result.json"
            command = [sys.executable, "-m", "tilesmith", *arguments, "--json", str(result)]
            try:
                ended = subprocess.run(
                    command, cwd=self._folder, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
                )
            except subprocess.TimeoutExpired:
                return {"error": f"was still running after {SECONDS:g} s"}
            content = json.loads(result.read_text()) if result.is_file() else None
        answer = {"status": ended.returncode, "printed": ended.stdout[-LONGEST_TEXT:], "result": content}
        return {**answer, "error": ended.stderr[-LONGEST_TEXT:]} if ended.returncode > 1 else answer
