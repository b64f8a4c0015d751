"""Build the documentation site: `make docs`, or `python docs/sitemaker/build.py [--pages-only]`.

Pages come from docs/, from the files beside README, and from the package itself: operators from their specs, commands
from the command line, the Python interface from docstrings. mkdocs-material turns them into HTML that needs no network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from commands import command_pages  # noqa: E402
from navigation import navigation  # noqa: E402
from operators import operator_pages, survey_images  # noqa: E402
from pages import copied_pages  # noqa: E402
from python_reference import python_pages  # noqa: E402

BUILD = ROOT / "build" / "site"
SITE = ROOT / "site"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--pages-only", action="store_true", help="write the Markdown, do not run mkdocs")
    chosen = parser.parse_args(arguments)
    write_pages(BUILD)
    if chosen.pages_only:
        print(f"{BUILD}: written")
        return 0
    status = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(BUILD / "mkdocs.yml")],
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    ).returncode
    if status == 0:
        print(f"{SITE / 'index.html'}: written; open it in a browser")
    return status


def write_pages(folder: Path) -> dict[str, str]:
    """Write all pages and the settings of mkdocs below a folder. Return the pages by path."""
    pages = {**copied_pages(ROOT), **operator_pages(ROOT), **command_pages(), **python_pages()}
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in {**pages, **survey_images(ROOT)}.items():
        target = folder / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images", dirs_exist_ok=True)
    shutil.copytree(HERE / "assets", folder / "docs" / "assets")
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings(pages), sort_keys=False, allow_unicode=True))
    return pages


def settings(pages: dict[str, str]) -> dict[str, Any]:
    """Return the settings of mkdocs: no fonts, scripts or icons from elsewhere, and a search that needs no server."""
    light, dark = "(prefers-color-scheme: light)", "(prefers-color-scheme: dark)"
    return {
        "site_name": "Tilesmith",
        "site_description": "Faster training of PyTorch models on GPUs; and tools for Triton kernels.",
        "docs_dir": "docs",
        "site_dir": str(SITE),
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.tabs", "navigation.indexes", "navigation.top", "search.highlight", "toc.follow"],
            "icon": {"logo": "material/grid"},
            "palette": [
                {
                    "media": light, "scheme": "default", "primary": "custom", "accent": "teal",
                    "toggle": {"icon": "material/weather-night", "name": "Dark"},
                },
                {
                    "media": dark, "scheme": "slate", "primary": "custom", "accent": "teal",
                    "toggle": {"icon": "material/weather-sunny", "name": "Light"},
                },
            ],
        },
        "extra": {"generator": False, "polyfills": ["assets/iframe-worker.js"]},
        "extra_css": ["assets/site.css"],
        "plugins": [
            "search",
            "offline",
            {
                "mkdocstrings": {
                    "handlers": {
                        "python": {
                            "paths": [str(ROOT / "src")],
                            "options": {
                                "show_root_heading": True,
                                "show_root_full_path": False, "show_source": False, "show_signature_annotations": True,
                                "separate_signature": True, "heading_level": 2, "docstring_style": None,
                                "members_order": "source", "filters": ["!^_"],
                            },
                        }
                    }
                }
            },
        ],
        "markdown_extensions": [
            "tables", "admonition", "attr_list", "md_in_html", {"toc": {"permalink": True}},
            "pymdownx.highlight", "pymdownx.superfences", "pymdownx.details",
        ],
        "validation": {"links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"}},
        "nav": navigation(pages),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
