"""Take the screenshots of docs/images: `make pictures`. Needs Chromium."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tilesmith.cli.tour_chapters.inspection import SCRIPT
from tilesmith.lab import inspect

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lab" / "inspect"))

from browser import CHROMIUM, Browser  # noqa: E402  # a module of the tests

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 830


def main() -> int:
    if CHROMIUM is None:
        print("pictures: chromium is not installed", file=sys.stderr)
        return 2
    found = inspect(str(SCRIPT))
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "inspect.html"
        page.write_text(found.html(), encoding="utf-8")
        with Browser(Path(folder), width=WIDTH, height=HEIGHT) as browser:
            for name, dark in (("inspect.png", False), ("inspect-dark.png", True)):
                browser.resize(WIDTH, HEIGHT, dark)
                browser.open(page)
                browser.ask("document.querySelector('main h2').scrollIntoView({block: 'start', behavior: 'instant'})")
                browser.ask("document.documentElement.style.overflow = 'hidden'")  # no scroll bar in the picture
                browser.ask("window.scrollBy({top: -16, behavior: 'instant'})")
                browser.picture(IMAGES / name)
                print(f"{(IMAGES / name).relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
