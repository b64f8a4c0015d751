"""`judge`: the function that users call."""

from __future__ import annotations

from pathlib import Path

from tilesmith.lab.judge.bridges.opening import both_of, candidate_for, task_at
from tilesmith.lab.judge.candidate import Candidate
from tilesmith.lab.judge.judging import Options, default_judge
from tilesmith.lab.judge.task import Rules, Task
from tilesmith.lab.judge.verdict import Verdict
from tilesmith.spec import Spec


def judge(
    task: Task | Spec | Path | str,
    candidate: Candidate | Path | str | None = None,
    *,
    rules: Rules | None = None,
    options: Options | None = None,
) -> Verdict:
    """Judge one candidate on a task, and return the verdict.

    `task` is a `Task`, a `Spec`, or the path of a file with a SPEC, of a KernelBench problem, or of a GPU MODE folder.
    `candidate` is a `Candidate` or the path of a file or folder; without it, a file with a SPEC is split into both.
    Raises TaskError or CandidateError.
    """
    if candidate is None and isinstance(task, Path | str):
        chosen, one = both_of(task, rules)
        return default_judge().judge(chosen, one, options)
    if candidate is None:
        raise TypeError("judge: candidate is missing; only a file with a SPEC is a task and a candidate at once")
    if isinstance(task, Path | str):
        one = candidate if isinstance(candidate, Candidate) else candidate_for(task, candidate)
        return default_judge().judge(task_at(task, rules), one, options)
    one = candidate if isinstance(candidate, Candidate) else Candidate.of(candidate)
    return default_judge().judge(task if isinstance(task, Task) else Task.of(task, rules), one, options)
