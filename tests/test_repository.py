"""The repository's own promises: its commands, its dependencies, and what its documents say."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from seqplan.cli import app

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="ascii")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="ascii")

RUN_TIME = {"torch", "typer", "rich", "pydantic", "pyyaml", "numpy"}
"""All that the package may need; everything else is a tool of the tests."""

EXTRAS = {"plot": {"matplotlib"}}
"""What single options need, installed on request."""

IMPORTED_AS = {"yaml": "pyyaml", "pydantic_core": "pydantic"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ \[;]", line)[0].lower() for line in requirements}


def test_run_time_dependencies_are_those_promised_and_all_used() -> None:
    imported: set[str] = set()
    for path in (ROOT / "seqplan").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    imported -= set(sys.stdlib_module_names) | {"seqplan"}
    assert names(PROJECT["dependencies"]) == RUN_TIME
    optional = PROJECT["optional-dependencies"]
    assert {extra: names(optional[extra]) for extra in optional if extra != "dev"} == EXTRAS
    assert {IMPORTED_AS.get(name, name) for name in imported} == RUN_TIME.union(*EXTRAS.values())


def test_ci_pins_exact_versions_of_things_we_depend_on() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="ascii").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    known = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["dev"])
    assert {name.lower() for name in pins} == known
    assert pins["torch"] == "2.13.0"


def test_no_index_is_named() -> None:
    files = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt", *(ROOT / ".ci").iterdir()]
    assert len(files) >= 6
    for path in files:
        assert not re.search(r"https?://|index-url|find-links", path.read_text(encoding="ascii")), path.name


@pytest.mark.parametrize("script", sorted((ROOT / ".ci").iterdir()), ids=lambda path: path.name)
def test_scripts_stop_at_the_first_error(script: Path) -> None:
    source = script.read_text(encoding="ascii")
    assert source.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in source
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


def test_ci_runs_the_suite_once_and_last() -> None:
    commands = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert commands[-2:] == ["make wheel-check", "make -s check test"]
    assert re.search(r"^check: static test$", MAKEFILE, re.MULTILINE), "check shares the target test"


def test_the_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= {first or second for first, second in named} <= targets


def test_the_house_has_its_seven_names() -> None:
    package = ROOT / "seqplan"
    for name in ("planner", "runtime", "profiles"):
        assert (package / name).is_dir()
        assert f"`{name}/`" in README
    assert (package / "cli.py").is_file()
    for name in ("cli.py", "tests", "pyproject.toml", "README.md"):
        assert f"`{name}" in README
    for name in ("tests", "pyproject.toml", "README.md"):
        assert (ROOT / name).exists()


def test_every_dependency_is_explained() -> None:
    for name in names(PROJECT["dependencies"]) | {"transformers"}:
        assert f"| {name} " in ARCHITECTURE, f"ARCHITECTURE.md does not say why {name}"


def commands_in(document: str) -> list[list[str]]:
    """Each `seqplan ...` line of a code block, continued lines joined; [..] and $ are notation."""
    joined = re.sub(r"\\\n\s*", "", document)
    known = "|".join(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    lines = re.findall(rf"^(?:\$ )?seqplan ((?:{known})\b.*)$", joined, re.MULTILINE)
    return [shlex.split(re.sub(r"[\[\]()|]", " ", line)) for line in lines]


@pytest.mark.parametrize("words", commands_in(README), ids=" ".join)
def test_commands_in_the_readme_exist(words: list[str]) -> None:
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= known, f"README uses {sorted(used - known)}"


def test_the_readme_shows_commands() -> None:
    assert {words[0] for words in commands_in(README)} >= {
        "suggest",
        "explain",
        "run",
        "models",
        "clusters",
        "score",
    }
