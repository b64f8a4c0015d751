"""Results whose texts are HTML, and what a browser makes of their pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "lab" / "inspect"))

from browser import Browser  # a module of other tests

EVIL = '</script></style></title><img src="x" onerror="window.injected = 1"><script>window.injected = 2</script>\'">'


def hostile(write_page: Callable[[Any], str], result: Any) -> tuple[str, set[str]]:
    """Return a page with HTML in every text that does not decide how the page is made, and the keys of these texts."""
    keys = set()
    for key in sorted(set(_string_keys(result))):
        try:
            write_page(poisoned(result, {key}))
        except (LookupError, ValueError, TypeError):
            continue  # a dtype, a mode: one of a few known words
        keys.add(key)
    return write_page(poisoned(result, keys)), keys


def poisoned(value: Any, keys: set[str], key: str = "") -> Any:
    """Return the result with HTML at the end of the texts under these keys."""
    if isinstance(value, str):
        return value + EVIL if key in keys else value
    if isinstance(value, dict):
        return {name: poisoned(inner, keys, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [poisoned(inner, keys, key) for inner in value]
    return value


def _string_keys(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        yield key
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _string_keys(inner, name)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _string_keys(inner, key)


def require_harmless(pages: dict[str, str], folder: Path) -> None:
    """Open every page in a browser: the HTML shows as text, no script of it runs, and nothing is fetched."""
    with Browser(folder) as browser:
        for name, text in pages.items():
            assert "onerror=" in text, f"{name} shows no hostile text"
            (folder / f"{name}.html").write_text(text, encoding="utf-8")
            browser.open(folder / f"{name}.html")
            assert browser.ask("window.injected === undefined"), f"{name} ran a script from a name"
            assert browser.ask("document.querySelector('img[src=x]') === null"), f"{name} has an element of a name"
            assert not browser.complaints, f"{name}: {browser.complaints}"
