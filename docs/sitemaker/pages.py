"""Pages that are written by hand: docs/, and the files beside README."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

# The files beside README, and their place in the site.
PROJECT = {
    "ARCHITECTURE.md": "how-it-works/architecture.md",
    "CONTRIBUTING.md": "how-it-works/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "how-it-works/security.md",
    "AGENTS.md": "how-it-works/agents.md",
    "examples/README.md": "guides/examples.md",
    "docs/start.md": "index.md",
}
# The search shows answers and guides before tables that merely contain the words.
FIRST_FOUND = ("questions.md", "guides/")
BOOST = "---\nsearch:\n  boost: 4\n---\n\n"
LINK = re.compile(r"(!?\[(?:[^\]]|\](?!\())*\])\(([^)\s]+)\)")
PICTURE = re.compile(r'<picture>\n<source [^>]*dark[^>]* srcset="(.+?)">\n<img src="(.+?)" alt="(.+?)">\n</picture>')
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def copied_pages(root: Path) -> dict[str, str]:
    """Return the pages by path in the site. Links follow the pages; links to other files become plain text."""
    sources = {path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")} | set(PROJECT)
    places = {source: PROJECT.get(source, source.removeprefix("docs/")) for source in sources}
    images = {path.relative_to(root).as_posix() for path in (root / "docs" / "images").iterdir()}
    places |= {image: image.removeprefix("docs/") for image in images}
    return {
        places[source]: (BOOST if places[source].startswith(FIRST_FOUND) else "")
        + relinked((root / source).read_text(encoding="utf-8"), source, places)
        for source in sorted(sources)
        if (root / source).is_file()
    }


def relinked(text: str, source: str, places: dict[str, str]) -> str:
    """Return the text with links to the new places; code blocks stay unchanged.

    A picture with a dark version becomes two images: the theme shows the one of its colours, also after a switch.
    """

    def link(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        if target.startswith(("https://", "http://", "mailto:", "#")):
            return match[0]
        file, hash_mark, anchor = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        if found == "README.md":
            found = "docs/start.md"
        if found not in places:
            return label[1:-1]
        moved = posixpath.relpath(places[found], posixpath.dirname(places[source]) or ".")
        return f"{label}({moved}{hash_mark}{anchor})"

    text = PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", text)
    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)
