"""Pages of the Python interface; mkdocstrings fills them from docstrings."""

from __future__ import annotations

FOLDER = "reference/python"
PAGES = {
    "lab": (
        "ts.lab",
        "What the commands do, from Python. Each call returns an object that prints, renders in a notebook, and has "
        "`to_json()`: the JSON of the command, described by `ts.lab.schema(...)`.",
        (
            "tilesmith.lab.check.check_call.check", "tilesmith.lab.check.check_call.Checked",
            "tilesmith.lab.inspect.inspect_call.inspect", "tilesmith.lab.inspect.model.Inspection",
            "tilesmith.lab.bench.bench_call.bench", "tilesmith.lab.bench.bench_call.Benchmark",
            "tilesmith.lab.profile.profile_call.profile", "tilesmith.lab.profile.profile_call.Profile",
            "tilesmith.lab.schemas.schema", "tilesmith.lab.inspect.assertions",
        ),
    ),
    "spec": ("Spec", "What an operator declares.", ("tilesmith.spec",)),
    "nn": ("ts.nn", "Modules with torch's constructors and state dicts.", ("tilesmith.nn",)),
    "optim": ("ts.optim", "Optimisers with torch's constructors and state dicts.", ("tilesmith.optim.adamw",)),
    "patch": ("ts.patch", "Our operators inside Hugging Face models.", ("tilesmith.patch",)),
    "dispatch": (
        "ts.use and ts.debug",
        "Who computes, and what is checked.",
        ("tilesmith.ops.runtime.dispatch.use", "tilesmith.ops.runtime.dispatch.debug"),
    ),
}  # fmt: skip


def python_pages() -> dict[str, str]:
    """Return the pages by path."""
    pages = {
        f"{FOLDER}/{name}.md": f"# {title}\n\n{about}\n\n" + "\n\n".join(f"::: {one}" for one in objects) + "\n"
        for name, (title, about, objects) in PAGES.items()
    }
    lines = [f"- [{title}]({name}.md): {about}" for name, (title, about, _) in PAGES.items()]
    operators = "- [ts.ops](../operators/index.md): the operators."
    return {f"{FOLDER}/index.md": "# Python\n\n" + "\n".join([operators, *lines]) + "\n", **pages}
