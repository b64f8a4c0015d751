"""A second opinion from outside the learner's process, on a file that passed its check.

The check runs in the learner's process, where the file could change the check itself. The judge records the launches
of a kernel's file in a confined process and replays them in a clean one (`tilesmith.lab.judge`). A program runs in a
confined process of the judge too; its check runs here, calls the program there, and draws new inputs. So nothing counts
that the file patches, computes in threads or sends in our name.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from tilesmith.lab.judge import Candidate, Judge, Options, Rules, Task
from tilesmith.lab.judge.conversing.program import Forged, Program, ProgramError
from tilesmith.lab.judge.isolation.children import Ended, Nursery
from tilesmith.lab.judge.isolation.limits import Limits
from tilesmith.lab.judge.verdict import Reason
from tilesmith.workshop.checking.program_check import ProgramCheck
from tilesmith.workshop.checking.triton_check import model_spec
from tilesmith.workshop.checking.verdict import Verdict
from tilesmith.workshop.course.exercise import Exercise

SECONDS = 300.0  # of one call, which ended inside: a busy machine may take longer
_STAGES = {"right": "right", "compiles": "compiles"}  # the others are "runs"


def task_of(exercise: Exercise) -> Task:
    """Return the exercise as a task of the judge."""
    spec = model_spec(exercise)
    rules = Rules(
        gradients="required" if exercise.differentiable else "none", tf32=True, wide=False, seconds=SECONDS,
        moves=not exercise.forbid,
    )  # fmt: skip
    return Task(
        spec=spec, rules=rules, given=spec.cases, hidden=(), dtypes=spec.dtypes, layouts=spec.layouts,
        function_names=(exercise.function,),
    )  # fmt: skip


def objection(judge: Judge, exercise: Exercise, file: Path) -> Verdict | None:
    """Return a failed verdict where the judge does not agree that the file solves the exercise."""
    verdict = judge.judge(task_of(exercise), Candidate.of(file), Options(facts=False, device=""))
    if verdict.passed:
        return None
    reason = verdict.reason or Reason("unproven", "runs", "its launches could not be replayed")
    message = f"Your file passes in its own process, but its launches do not pass outside of it: {reason}"
    return Verdict(exercise.id, False, _STAGES.get(reason.stage, "runs"), f"{message}\n{reason.advice}".rstrip())


def program_objection(nursery: Nursery, exercise: Exercise, file: Path) -> Verdict | None:
    """Return a failed verdict where the check of a program fails outside of the program's process."""
    with tempfile.TemporaryDirectory(prefix="tilesmith-") as folder:
        shutil.copyfile(file, Path(folder) / file.name)
        child = nursery.child("converse", folder, Limits(SECONDS), confined=True)
        try:
            verdict = ProgramCheck(exercise, file, program=Program(child, file.name)).verdict()
        except (ProgramError, Forged, Ended) as error:
            verdict = Verdict(exercise.id, False, "runs", str(error))
        finally:
            child.end()
    if verdict.passed:
        return None
    message = f"Your file passes in its own process, but not outside of it: {verdict.message}"
    return replace(verdict, message=message)
