"""The order of the pages. A page of docs/ that no section names goes to the end of the guides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from operators import FAMILIES, family_of

START = ("index.md", "questions.md")
GUIDES = (
    "guides/speed-up-my-model.md", "guides/is-my-kernel-right.md", "guides/why-is-my-kernel-slow.md",
    "guides/without-a-gpu.md", "guides/in-ci.md", "guides/write-an-operator.md", "guides/teach-a-class.md",
    "guides/fold-models.md", "guides/in-a-notebook.md", "guides/examples.md",
)  # fmt: skip
TOPICS = (
    "operators.md", "patch.md", "prove.md", "fold.md", "check.md", "inspect.md", "judge.md", "bench.md", "tune.md",
    "profile.md", "models.md", "evoformer.md", "debugging.md", "workshop.md", "studio.md", "workshop-coverage.md",
    "workshop-authors.md",
)  # fmt: skip
HOW_IT_WORKS = (
    "how-it-works/dispatch.md", "how-it-works/exact-fp32.md", "how-it-works/hopper.md", "how-it-works/interpreter.md",
    "how-it-works/prediction.md", "how-it-works/architecture.md", "how-it-works/contributing.md",
    "how-it-works/agents.md", "how-it-works/security.md",
)  # fmt: skip
OTHERS = ("performance.md", "glossary.md", "changelog.md")


def navigation(pages: Iterable[str]) -> list[Any]:
    """Return mkdocs' `nav`. Every page is in it once."""
    known = set(pages)
    rest = sorted(
        page
        for page in known - {*START, *GUIDES, *TOPICS, *HOW_IT_WORKS, *OTHERS}
        if not page.startswith(("reference/", "performance/"))
    )
    operators = [
        {family: [page for page in sorted(known) if _is_operator(page) and family_of(_name(page)) == family]}
        for family in (*FAMILIES, "Attention and Evoformer")
    ]
    return [
        {"Start": _present(START, known)},
        {"Guides": [*_present(GUIDES, known), {"In depth": [*_present(TOPICS, known), *rest]}]},
        {
            "Reference": [
                {"Operators": ["reference/operators/index.md", *operators]},
                {"Python": _below("reference/python/", known)},
                {"Commands": _below("reference/commands/", known)},
            ]
        },
        {"How it works": _present(HOW_IT_WORKS, known)},
        {"Performance": ["performance.md", *_below("performance/", known)]},
        {"Glossary": "glossary.md"},
        {"Changelog": "changelog.md"},
    ]


def _present(pages: Iterable[str], known: set[str]) -> list[str]:
    return [page for page in pages if page in known]


def _below(folder: str, known: set[str]) -> list[str]:
    """Return the pages of a folder, its index first."""
    return sorted((page for page in known if page.startswith(folder)), key=lambda page: (_name(page) != "index", page))


def _is_operator(page: str) -> bool:
    return page.startswith("reference/operators/") and _name(page) != "index"


def _name(page: str) -> str:
    return page.rpartition("/")[2].removesuffix(".md")
