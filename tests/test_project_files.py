"""The files around the package are valid and agree with it: workflows, templates, containers, changelog, citation."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilesmith

yaml: Any = pytest.importorskip("yaml")  # a machine with a GPU may not have it

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def project() -> Any:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(read("pyproject.toml"))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def test_version_has_one_place() -> None:
    assert "version" in project()["project"]["dynamic"]
    assert project()["tool"]["hatch"]["version"]["path"] == "src/tilesmith/__init__.py"
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == tilesmith.__version__
    newest = re.findall(r"^## ([\d.]+), ([\d-]+)$", read("CHANGELOG.md"), re.MULTILINE)[0]
    assert newest == (tilesmith.__version__, str(citation["date-released"]))


@pytest.fixture
def build_hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return hatch_build.py; hatchling itself is only in the environments that build wheels."""
    monkeypatch.setitem(
        sys.modules, "hatchling.metadata.plugin.interface", SimpleNamespace(MetadataHookInterface=object)
    )
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def metadata_of_wheel(build_hook: Any) -> dict[str, Any]:
    hook = build_hook["Repository"]()
    hook.root = str(ROOT)
    found = {"version": "1.2.3"}
    hook.update(found)
    assert found.keys() - {"version"} == set(project()["project"]["dynamic"]) - {"version"}
    return found


def test_wheel_of_a_release_leads_into_its_repository(build_hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESMITH_REPOSITORY", "https://host.example/owner/name")
    found = metadata_of_wheel(build_hook)
    assert found["urls"]["Repository"] == "https://host.example/owner/name"
    text = found["readme"]["text"]
    targets = re.findall(r"\]\(([^)\s]+)|(?:src|srcset)=\"([^\"]+)", text)
    tag = "https://host.example/owner/name/(raw|blob)/v1.2.3/"
    files = [re.sub(tag, "", one).partition("#")[0] for pair in targets for one in pair if re.match(tag, one)]
    assert len(files) > 20
    assert all((ROOT / file).exists() for file in files)
    assert all(one.startswith("https://") for pair in targets for one in pair if one)
    pictures = re.findall(r"/(raw|blob)/v1.2.3/docs/images/", text)
    assert len(pictures) >= 3
    assert set(pictures) == {"raw"}


def test_wheel_built_elsewhere_names_no_repository(build_hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILESMITH_REPOSITORY", raising=False)
    found = metadata_of_wheel(build_hook)
    assert found["urls"] == {}
    assert found["readme"]["text"] == read("README.md")


def test_release_tells_the_wheel_its_repository() -> None:
    steps = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]["wheel"]["steps"]
    (build,) = [step for step in steps if step.get("run") == "python -m build"]
    assert build["env"] == {"TILESMITH_REPOSITORY": "${{ github.server_url }}/${{ github.repository }}"}


def commands(text: str) -> list[str]:
    """Return the shell commands of a text, without options that do not change their result."""
    joined = text.replace("\\\n", " ")
    parts = [part.strip(" ;") for line in joined.splitlines() for part in re.split(r"&&|\|\||; then|;\s+fi", line)]
    said = r" --quiet| --disable-pip-version-check| --no-cache-dir| --index-url \S+|^[A-Z_]+=\S+ "
    return [" ".join(re.sub(said, " ", part).split()) for part in parts if part]


def commands_outside_the_makefile() -> dict[str, list[str]]:
    """Return the commands of workflows and containers by file."""
    found: dict[str, list[str]] = {path.name: [] for path in WORKFLOWS}
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            found[path.name] += [one for step in job["steps"] for one in commands(step.get("run", ""))]
    joined = read("Dockerfile").replace("\\\n", " ")
    found["Dockerfile"] = [one for line in re.findall(r"^RUN (.*)$", joined, re.MULTILINE) for one in commands(line)]
    container = json.loads(read(".devcontainer/devcontainer.json"))
    found["devcontainer.json"] = commands(f"{container['postCreateCommand']}\n{container['postAttachCommand']}")
    return found


# Commands that are no target of make: tools of a runner or an image, and the two steps of a release.
OTHERS = (
    "command -v chromium", 'sudo ln -s "$(command -v google-chrome)" /usr/local/bin/chromium', "apt-get update",
    "apt-get install --yes --no-install-recommends gcc g++ git make", "rm -rf /var/lib/apt/lists/*",
    'if [ "$TORCH_BUILD" = cpu ]', "python -m pip install build twine", "python -m build",
    "python -m twine check --strict dist/*", 'test -f "dist/tilesmith-${GITHUB_REF_NAME#v}-py3-none-any.whl"',
)  # fmt: skip


def test_workflows_and_containers_run_what_the_makefile_runs() -> None:
    recipe = read("Makefile").replace("$(BIN)", ".venv/bin").replace("$(VENV)", ".venv").replace("$(PYTHON)", "python")
    of_make = {one.removeprefix("@") for line in recipe.splitlines() for one in commands(line.strip())}
    targets = {f"make {target}" for target in make_targets()}
    found = commands_outside_the_makefile()
    assert all(found.values()), "every file has commands"
    unknown = {file: [one for one in had if one not in {*of_make, *targets, *OTHERS}] for file, had in found.items()}
    assert not any(unknown.values()), unknown


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_knows_what_every_target_needs() -> None:
    called = {one.removeprefix("make ") for had in commands_outside_the_makefile().values() for one in had
              if one.startswith("make ")}  # fmt: skip
    assert called == {"test", "docs", "setup", "tour"}
    done = subprocess.run(["make", "--dry-run", *sorted(called)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_valid_and_calls_targets_that_exist(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content[True], "YAML reads the key `on` as true"
    assert content["permissions"] == {"contents": "read"}, "jobs ask for more where they need it"
    steps = [step for job in content["jobs"].values() for step in job["steps"]]
    assert all("uses" in step or "run" in step for step in steps)
    called = {target for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called <= make_targets()


def test_workflows_test_build_the_site_and_publish() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    for wanted in ("make test", "make docs", "python -m build", "gh-action-pypi-publish", "id-token: write"):
        assert wanted in text
    assert "password" not in text, "trusted publishing needs no token"


@pytest.mark.parametrize("path", [one for one in FORMS if one.name != "config.yml"], ids=lambda path: path.name)
def test_issue_form_is_valid(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(content)
    names = [part["id"] for part in content["body"]]
    assert len(names) == len(set(names))
    assert all(part["type"] in ("textarea", "input", "dropdown", "markdown") for part in content["body"])


def test_containers_end_in_the_tour() -> None:
    assert "make tour" in read("Dockerfile").splitlines()[-1]
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert container["postAttachCommand"] == "make tour"
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert "ARG TORCH_BUILD" in read("Dockerfile")
    # The workspace has its own environment: the image's would run the image's copy of the sources.
    assert f" AS {container['build']['target']}\n" in read("Dockerfile")
    assert container["remoteEnv"]["PATH"].startswith("${containerWorkspaceFolder}/.venv/bin:")


def test_pre_commit_runs_tools_of_this_project() -> None:
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "figures", "docs"}
    for hook in hooks:
        # pre-commit names the files, and ruff then forgets what pyproject.toml excludes.
        assert "ruff" not in hook["entry"] or "--force-exclude" in hook["entry"]
        for path in re.findall(r"tests/\S+\.py", hook["entry"]):
            assert (ROOT / path).is_file()


def test_agents_find_every_path_that_is_named() -> None:
    for path in re.findall(r"`((?:src|tests|docs|benchmarks)/?[\w/.]*)`", read("AGENTS.md")):
        assert (ROOT / path).exists(), path


def test_classifiers_name_the_supported_pythons() -> None:
    named = {one.rsplit(" ", 1)[1] for one in project()["project"]["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert named == {"3.10", "3.11", "3.12", "3.13"}
    assert project()["project"]["requires-python"] == ">=3.10,<3.14"


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "AGENTS.md", "CITATION.cff"])
def test_file_is_there_and_says_something(name: str) -> None:
    assert len(read(name).split()) > 20


def test_generic_named_tuples_are_those_of_typing_extensions() -> None:
    """On Python 3.10, typing's NamedTuple with another base raises a TypeError when the module is imported."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        if "NamedTuple, Generic" in path.read_text():
            tree = ast.parse(path.read_text())
            names = [one.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "typing"
                     for one in node.names]  # fmt: skip
            found += [str(path)] if "NamedTuple" in names else []
    assert found == []
