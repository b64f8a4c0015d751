"""One page per command, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tilesmith.cli import app

FOLDER = "reference/commands"
GUIDES = {
    "check": "check", "inspect": "inspect", "bench": "bench", "profile": "profile", "train": "models",
    "compare": "models", "prove": "prove", "debug": "debugging", "learn": "workshop", "tune": "tune",
    "ops": "operators", "studio": "studio",
}  # fmt: skip


def command_pages() -> dict[str, str]:
    """Return the pages of all commands and their index, by path."""
    commands = getattr(get_command(app), "commands")  # noqa: B009  # typer's group, which mypy does not know
    pages = {f"{FOLDER}/{name}.md": command_page(name, command) for name, command in commands.items()}
    lines = ["# Commands\n", "`tilesmith --help` prints the same.\n", "| command | does |", "|---|---|"]
    lines += [f"| [tilesmith {name}]({name}.md) | {_first(one)} |" for name, one in commands.items()]
    return {f"{FOLDER}/index.md": "\n".join(lines) + "\n", **pages}


def command_page(name: str, command: Any) -> str:
    return "\n".join(_parts(name, command)) + "\n"


def _parts(name: str, command: Any) -> Iterator[str]:
    yield f"# tilesmith {name}\n"
    inner = getattr(command, "commands", {})
    yield from _described(f"tilesmith {name}", command)
    for inner_name, one in inner.items():
        yield f"\n## tilesmith {name} {inner_name}\n"
        yield from _described(f"tilesmith {name} {inner_name}", one)
    if name in GUIDES:
        yield f"\nThe guide: [{GUIDES[name]}](../../{GUIDES[name]}.md)."


def _described(line: str, command: Any) -> Iterator[str]:
    yield f"{_plain(command.help)}\n"
    if getattr(command, "commands", None):
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    words = [line, *map(_metavar, arguments), "[OPTIONS]" if options else ""]
    yield f"```text\n{' '.join(word for word in words if word)}\n```\n"
    rows = [(_metavar(one), one.help) for one in arguments]
    rows += [(_spelled(one), _with_default(one)) for one in options if "--help" not in one.opts]
    if rows:
        yield "| argument or option | meaning |"
        yield "|---|---|"
        yield from (f"| `{_in_a_cell(left)}` | {_in_a_cell(_plain(right))} |" for left, right in rows)


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _spelled(option: Any) -> str:
    names = ", ".join(option.opts + option.secondary_opts)
    return names if option.is_flag else f"{names} {_metavar(option)}"


def _with_default(option: Any) -> str:
    default, said = option.default, option.help or ""
    shown = default is not None and default is not False and default != "" and not callable(default)
    return f"{said} Default: `{default}`." if shown and "Default" not in said else said


def _first(command: Any) -> str:
    return _plain(command.help).split("\n")[0]


def _plain(text: str | None) -> str:
    return (text or "").replace("\f", "").strip()
