"""Who may import whom, and the rules of every file, read from the source itself.

Imports are parsed, not executed, so an import inside a function counts too; what is really loaded is
checked where it costs a user time: the command line must start without torch.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "seqplan"
LONGEST_FILE = 300

# Top-level modules that the files of a layer may import, beside the standard library. "seqplan.X" is our own.
PLANNER = {"numpy", "pydantic", "pydantic_core", "yaml", "seqplan.planner", "seqplan.__version__"}
RENDER = {"rich", "pydantic", "seqplan.planner", "seqplan.render"}
CLI = {
    "typer",
    "pydantic",
    "pydantic_core",
    "seqplan.planner",
    "seqplan.profiles",
    "seqplan.render",
    "seqplan.plot",
}
ALLOWED = {
    "planner": PLANNER,
    "profiles": {"yaml", "pydantic", "seqplan.planner", "seqplan.profiles"},
    "runtime": {"torch", "numpy", "pydantic", "rich", "yaml", "seqplan.planner", "seqplan.runtime"},
    "render": RENDER,
    "plot": {"matplotlib", "seqplan.planner"},
    "cli": CLI | {"seqplan.runtime", "seqplan.cli", "seqplan.__version__"},
    "__main__": {"typer", "seqplan.cli", "seqplan.render", "seqplan.planner"},
    "__init__": set(),
}


def layer(path: Path) -> str:
    """planner/x.py -> planner; cli_inputs.py -> cli; render_layout.py -> render."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return first if first.startswith("__") else first.split("_")[0]


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def source_files() -> list[Path]:
    benchmarks = ROOT / "benchmarks"
    return sorted([*package_files(), *Path(__file__).parent.rglob("*.py"), *benchmarks.rglob("*.py")])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def ours(module: str) -> str:
    """seqplan.planner.search -> seqplan.planner; seqplan.cli_inputs -> seqplan.cli; numpy.linalg -> numpy."""
    parts = module.split(".")
    if parts[0] != "seqplan" or len(parts) == 1:
        return parts[0]
    return "seqplan." + (parts[1] if parts[1].startswith("__") else parts[1].split("_")[0])


def imports(tree: ast.AST) -> set[str]:
    """Every module that a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {ours(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that a layer can be read off"
            assert node.module is not None
            if node.module == "seqplan":
                found |= {ours(f"seqplan.{alias.name}") for alias in node.names}
            else:
                found.add(ours(node.module))
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", package_files(), ids=name_of)
def test_a_file_imports_only_what_its_layer_may(path: Path) -> None:
    found = imports(ast.parse(path.read_text(encoding="ascii")))
    assert found <= ALLOWED[layer(path)], (
        f"{name_of(path)} may not import {sorted(found - ALLOWED[layer(path)])}"
    )


def test_the_layers_are_those_of_the_design() -> None:
    assert {layer(path) for path in package_files()} == set(ALLOWED)


@pytest.mark.parametrize("path", source_files(), ids=name_of)
def test_a_file_is_short_ascii_and_says_what_it_is(path: Path) -> None:
    source = path.read_bytes()
    assert source.isascii(), f"{name_of(path)} is not ASCII"
    lines = source.count(b"\n")
    assert lines <= LONGEST_FILE, f"{name_of(path)} has {lines} lines: split it, one idea a file"
    tree = ast.parse(source)
    assert ast.get_docstring(tree) or not tree.body, f"{name_of(path)} has no docstring"


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.split("\n")[-2].split())


def test_the_command_line_starts_without_torch_and_without_rich() -> None:
    loaded = loaded_by("import seqplan.__main__, seqplan.cli")
    assert "typer" in loaded, "the check looked at the wrong interpreter"
    assert not loaded & {"torch", "rich", "transformers"}


def test_the_planner_loads_neither_torch_nor_typer() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (PACKAGE / "planner").rglob("[a-z]*.py")
    ]
    loaded = loaded_by(f"import {', '.join(modules)}, seqplan.profiles")
    assert not loaded & {"torch", "typer", "rich", "click"}
