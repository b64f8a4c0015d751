"""Pages that need nothing but a browser: one file, no request, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from tilesmith.lab.report.content import Headline, Section


def render(
    template: str,
    *,
    title: str,
    summary: str,
    sections: Sequence[Section],
    provenance: Mapping[str, str],
    headlines: Sequence[Headline] = (),
    **content: object,
) -> str:
    """The page as HTML. `provenance` says at its foot what the figures were made with, and when.

    `template` is a file of this package's templates that extends base.html; `content` is what it needs beside the rest.
    """
    return _environment().get_template(template).render(
        title=title, summary=summary, sections=sections, provenance=provenance, headlines=headlines, **content
    )  # fmt: skip


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tilesmith.lab.report"),
        autoescape=True,  # kernels, files and messages are named by others
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template_text(name: str) -> str:
    """A file of this package's templates as it is."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
