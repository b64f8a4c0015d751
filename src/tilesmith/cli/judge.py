"""`tilesmith judge`: is a kernel right, safe, honest and fast, whoever or whatever wrote it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith import nursery_process
from tilesmith.cli.options import Dtypes, listed, listed_dtypes
from tilesmith.cli.terminal import CHECK_FAILED, console, operators, refuse, write_json, write_result

if TYPE_CHECKING:
    from tilesmith.lab.judge import Candidate, Options, Rules, Task

GRADIENTS = ("none", "offered", "required")


def judge(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="An operator, a file with a SPEC, a KernelBench problem, or a GPU MODE folder."
        ),
    ],
    candidates: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CANDIDATE…]", help="Files or folders. Default: the operator of TASK's own SPEC."),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Judge every file and folder inside CANDIDATE.")] = False,
    dtype: Dtypes = None,
    layout: Annotated[list[str] | None, typer.Option(help="A layout name, or all; default: contiguous.")] = None,
    gradients: Annotated[str, typer.Option(help=f"{', '.join(GRADIENTS)}.")] = "offered",
    torch_ops: Annotated[bool, typer.Option("--torch-ops", help="PyTorch may compute too.")] = False,
    tf32: Annotated[bool, typer.Option("--tf32", help="Products of float32 may use tf32.")] = False,
    target: Annotated[list[str] | None, typer.Option(help="Compile for: cuda:90, hip:gfx942, …")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat a judgement. Default: a new seed.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Limit of one call.")] = 20.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Candidates at once.")] = None,
    times: Annotated[bool, typer.Option("--times/--no-times", help="Take times where there is a GPU.")] = True,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the verdict as JSON.")] = None,
    jsonl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append one line per candidate; a later run goes on from there.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")] = None,
) -> None:
    """Judge candidates: they run confined, and their launches are replayed on inputs they never saw.

    Works without a GPU. Exit status 1 unless every candidate passes.
    """
    if gradients not in GRADIENTS:
        refuse(f"--gradients {gradients!r} is not one of {', '.join(GRADIENTS)}")
    nursery_process.start_ahead()
    from tilesmith.lab.judge import CandidateError, Options, TaskError
    from tilesmith.lab.judge.judging import TARGETS

    try:
        options = Options(
            targets=_targets(target) or TARGETS, every_target=bool(target), seed=seed,
            device=None if times else "",
        )  # fmt: skip
        chosen, found = _chosen(task, candidates or [], each, _rules(gradients, torch_ops, tf32, seconds))
        chosen = _narrowed(chosen, listed_dtypes(dtype), listed("--layout", layout))
        verdicts = _verdicts(chosen, found, options, jobs, jsonl)
    except (TaskError, CandidateError) as error:
        refuse(str(error))
    _show(verdicts)
    if json:
        write_json(json, verdicts[0] if len(verdicts) == 1 else verdicts)
    if html:
        from tilesmith.lab.judge.output.page import page

        write_result(html, page(verdicts))
    if any(one["outcome"] != "pass" for one in verdicts):
        raise typer.Exit(CHECK_FAILED)


def _rules(gradients: Any, torch_ops: bool, tf32: bool, seconds: float) -> Rules | None:
    """Return the rules that the options ask for; None where all are at their defaults, which differ between formats."""
    from tilesmith.lab.judge import Rules

    rules = Rules(torch="any" if torch_ops else "movement", gradients=gradients, tf32=tf32, seconds=seconds)
    return None if rules == Rules() else rules


def _targets(names: list[str] | None) -> tuple[str, ...]:
    from tilesmith.toolchain.compiler import Target

    try:
        return tuple(str(Target.parse(name)) for name in names or [])
    except ValueError as error:
        refuse(f"--{error}")


def _chosen(task: str, paths: Sequence[Path], each: bool, rules: Rules | None) -> tuple[Task, list[Candidate]]:
    from tilesmith.lab.judge import Candidate, Task
    from tilesmith.lab.judge.bridges.opening import both_of, candidate_for, task_at
    from tilesmith.lab.judge.series import candidates_in

    known = {} if Path(task).exists() else operators()
    if not paths:
        if task in known:
            refuse(f"{task}: give a candidate; tilesmith check {task} checks our own")
        chosen, own = both_of(task, rules)
        return chosen, [own]

    def read(path: Path) -> Candidate:
        return Candidate.of(path) if task in known else candidate_for(task, path)

    chosen = Task.of(known[task], rules) if task in known else task_at(task, rules)
    if each:
        return chosen, [Candidate.of_each(one, read) for path in paths for one in candidates_in(path)]
    return chosen, [read(one) for one in paths]


def _narrowed(task: Task, dtypes: Sequence[str], layouts: Sequence[str]) -> Task:
    """Return the task with these dtypes and layouts only."""
    spec = task.spec
    known_dtypes = {str(one).removeprefix("torch."): one for one in spec.dtypes}
    known_layouts = {one.name: one for one in spec.layouts}
    for kind, names, known in (("dtype", dtypes, known_dtypes), ("layout", layouts, known_layouts)):
        for name in names:
            if name not in (*known, "all"):
                refuse(f"--{kind} {name!r} is not one of {', '.join([*known, 'all'])}")
    if dtypes and "all" not in dtypes:
        task = replace(task, dtypes=[known_dtypes[name] for name in dtypes])
    if "all" in layouts:
        from tilesmith.lab.expected import writable_layouts

        return replace(task, layouts=tuple(writable_layouts(spec)))
    return replace(task, layouts=[known_layouts[name] for name in layouts]) if layouts else task


def _verdicts(
    task: Task, candidates: Sequence[Candidate], options: Options, jobs: int | None, jsonl: Path | None
) -> list[dict[str, Any]]:
    from tilesmith.lab.judge import default_judge
    from tilesmith.lab.judge.series import judge_series

    if len(candidates) == 1 and jsonl is None:
        with console.status("judging") as status:
            watched = replace(options, progress=lambda what: status.update(f"judging: {what}"))
            return [default_judge().judge(task, candidates[0], watched).as_json()]
    with console.status(f"judging {len(candidates)} candidates") as status:
        done: list[str] = []

        def finished(verdict: dict[str, Any]) -> None:
            done.append(verdict["candidate"])
            status.update(f"judged {len(done)} of {len(candidates)} candidates")

        return judge_series(task, candidates, options=options, jobs=jobs, results=jsonl, finished=finished)


def _show(verdicts: Sequence[dict[str, Any]]) -> None:
    from tilesmith.lab.judge.output.content import comparison, headline, sections, series_table
    from tilesmith.lab.report.terminal import show_block, show_heading

    if len(verdicts) > 2:
        show_block(console, series_table(verdicts))
        passed = sum(one["outcome"] == "pass" for one in verdicts)
        console.print(f"{passed} of {len(verdicts)} candidates pass", markup=False)
        return
    found = sections(verdicts[0]) if len(verdicts) == 1 else comparison(*verdicts)
    for section in found:
        show_heading(console, section.title, section.lead)
        for block in section.blocks:
            show_block(console, block)
    for verdict in verdicts:
        console.print(headline(verdict), markup=False, soft_wrap=True)
