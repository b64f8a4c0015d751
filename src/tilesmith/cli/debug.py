"""`tilesmith debug`: a performance-debugging case, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilesmith.cli.terminal import CHECK_FAILED, console, refuse, write_json
from tilesmith.cli.train import end
from tilesmith.storage import write_atomically

if TYPE_CHECKING:
    from tilesmith.training.debugging.case import Observation, Stage

debug = typer.Typer(
    name="debug",
    help="A performance-debugging case in stages; each stage is a program with one real fault.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@debug.command("llama")
def debug_llama(
    stage: Annotated[int | None, typer.Option(min=1, max=6, metavar="N", help="Run one stage, from 1 to 6.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the stage's program instead of running it.")] = False,
    reveal: Annotated[bool, typer.Option("--reveal", help="With --stage: also show evidence, cause and fix.")] = False,
    copy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the stages' programs into a folder of yours, to edit.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results as JSON.")] = None,
) -> None:
    """Debug Tiny LLaMA with five faults, one per stage; the sixth stage has none.

    Without --stage, all six stages run and show symptom, revealing command, evidence, cause and fix. With --stage, one
    stage shows its symptom and the command; add --reveal for the rest. Every number is computed during the run.
    """
    from tilesmith.training.debugging import case

    if show and (stage is None or reveal or json):
        refuse("--show prints the program of one stage: use it with --stage N and nothing else")
    if reveal and stage is None:
        refuse("--reveal needs --stage N; without both, all stages are revealed")
    if show and stage is not None:
        print(case.program_of(stage).read_text(encoding="utf-8"), end="")
        return
    numbers = range(1, case.COUNT + 1) if stage is None else [stage]
    if copy is not None:
        if show or reveal or json:
            refuse("--copy copies programs and runs none: use it alone or with --stage N")
        for number in numbers:
            _copy_program(case.program_of(number), copy)
        return
    try:
        result = [_shown_stage(case.stage(number), reveals=stage is None or reveal) for number in numbers]
    except case.StageError as error:
        end(str(error), CHECK_FAILED)
    if json:
        from tilesmith.training.results.provenance import stamped

        write_json(json, stamped({"model": "llama", "stages": result}))


def _copy_program(program: Path, folder: Path) -> None:
    """Copy a program into the user's folder. A file that is there stays."""
    file = folder / program.name
    if file.exists():
        console.print(f"{file} is there already and stays as it is", markup=False)
        return
    try:
        write_atomically(file, program.read_bytes())
    except OSError as error:
        refuse(f"{error.filename or folder}: {error.strerror or error}")
    console.print(f"wrote {file}; run it with: python {file}", markup=False)


def _shown_stage(stage: Stage, *, reveals: bool) -> dict[str, Any]:
    """Run and show a stage; return it in the format of `--json`, with null where nothing was revealed."""
    from tilesmith.lab.report.content import Listing, Paragraph
    from tilesmith.lab.report.terminal import show_block, show_heading

    title = stage.title if reveals else f"python {stage.program}"
    show_heading(console, f"Stage {stage.number}: {title}", stage.symptom)
    symptom = _observed("What the program shows", "running", stage.run)
    show_block(console, Paragraph("This command reveals the fault:"))
    show_block(console, Listing(f"  {stage.revealing_command}"))
    evidence = _observed("Evidence", "collecting evidence", stage.reveal) if reveals else None
    if reveals:
        show_block(console, Paragraph(f"Cause. {stage.cause}"))
        show_block(console, Paragraph(f"Fix. {stage.fix}"))
    else:
        show_block(
            console, Paragraph(f"Evidence, cause and fix: tilesmith debug llama --stage {stage.number} --reveal")
        )
    return {
        "number": stage.number,
        "program": str(stage.program),
        "symptom": stage.symptom,
        "shown": symptom.as_json(),
        "command": stage.revealing_command,
        "title": stage.title if reveals else None,
        "evidence": evidence.as_json() if evidence else None,
        "cause": stage.cause if reveals else None,
        "fix": stage.fix if reveals else None,
    }


def _observed(caption: str, doing: str, find: Any) -> Observation:
    """Call `find` with a progress message, and show its result as a table."""
    from tilesmith.lab.report.content import Cell, Column, Paragraph, Table
    from tilesmith.lab.report.terminal import show_block

    if console.is_terminal:
        with console.status(f"{doing} …"):
            observed: Observation = find()
    else:
        observed = find()
    rows = [[Cell(fact.name), Cell(fact.text), Cell(fact.kind)] for fact in observed.facts]
    show_block(console, Table(caption, [Column(""), Column("", "number"), Column("")], rows))
    for remark in observed.remarks:
        show_block(console, Paragraph(remark))
    return observed
