"""Self-contained HTML pages: one file, no requests, light or dark like the reader's system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape

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
    """Return the page as HTML. `provenance` is shown at the foot: versions, device and date.

    `template` is a template of this package that extends base.html; `content` holds its further variables.
    """
    return _environment().get_template(template).render(
        title=title, summary=summary, sections=sections, provenance=provenance, headlines=headlines, **content
    )  # fmt: skip


def in_notebook(page: str, title: str, height: int = 900) -> str:
    """Return a page in an iframe, which separates its style and script from the notebook's."""
    return (
        f'<iframe title="{escape(title, quote=True)}" sandbox="allow-scripts" srcdoc="{escape(page, quote=True)}" '
        f'width="100%" height="{height}" style="border: 0"></iframe>'
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tilesmith.lab.report"),
        autoescape=True,  # names and messages come from users' code
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template_text(name: str) -> str:
    """Return the text of a template file."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
