"""The files around the package are valid and agree with it: workflows, templates, containers, changelog, citation."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from pathlib import Path
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
    assert project()["project"]["dynamic"] == ["version"]
    assert project()["tool"]["hatch"]["version"]["path"] == "src/tilesmith/__init__.py"
    assert yaml.safe_load(read("CITATION.cff"))["version"] == tilesmith.__version__
    assert re.search(rf"^## {re.escape(tilesmith.__version__)}$", read("CHANGELOG.md"), re.MULTILINE)


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


def test_pre_commit_runs_tools_of_this_project() -> None:
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "figures", "docs"}
    for hook in hooks:
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
