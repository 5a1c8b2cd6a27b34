"""The agent's package: what bundles take for granted, maps, and programs in other languages."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sandbox.bundle import bundle, files_of, modules_of

AGENT = Path(__file__).resolve().parents[2] / "agent"
PACKAGE = AGENT / "sandbox"
ENTRIES = [AGENT / "sandbox_agent.py", AGENT / "sandbox_template.py"]
MODULES = sorted(PACKAGE.rglob("*.py"))
TOOLS = {"bundle.py"}
"""Modules that need not travel."""

LAYERS = [
    names.split()
    for names in """
linux framing paths limits certificates \
shared_page bundle
polling capture files file_states overlay_layers job_output job_start workers
session processes input archives template tracing
interpreters
execution stopping checkpoints runners
jobs job completions names ports transfers watches
agent
""".strip().splitlines()
]
"""Modules and packages, the lowest first: each gets from above what it needs, and asks nobody."""


def layer_of(module: str) -> int:
    """Layer of a module, by its own name or that of the package around it."""
    for place in (module, module.rpartition(".")[0], module.partition(".")[0]):
        for layer, names in enumerate(LAYERS):
            if place in names:
                return layer
    raise AssertionError(f"{module} is in no layer")


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a module imports, if only for types."""
    tree = ast.parse(path.read_text())
    found = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {each.partition(".")[2] for each in found if each.startswith("sandbox.")}


def names_of(tree: ast.Module) -> list[str]:
    """Names that the top level of a module defines."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [x for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)]
            found += [each.id for each in names if isinstance(each.ctx, ast.Store)]
    return [name for name in found if name != "TYPE_CHECKING"]


def name(path: Path) -> str:
    return str(path.relative_to(AGENT))


@pytest.mark.parametrize("entry", ENTRIES, ids=name)
def test_names_are_unique_in_a_bundle(entry: Path) -> None:
    """The modules share one name space."""
    counts: Counter[str] = Counter()
    imported: set[str] = set()
    for _, text in modules_of(str(entry)):
        tree = ast.parse(text)
        counts.update(names_of(tree))
        imported.update(
            alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
        )
    assert not [each for each, count in counts.items() if count > 1]
    assert not imported & counts.keys()


@pytest.mark.parametrize("entry", ENTRIES, ids=name)
def test_a_bundle_imports_nothing_of_the_package(entry: Path) -> None:
    tree = ast.parse(bundle(str(entry)))
    running = [node for node in tree.body if not isinstance(node, ast.If)]
    for top in running:
        for node in ast.walk(top):
            if isinstance(node, ast.ImportFrom):
                assert not str(node.module).startswith("sandbox"), ast.unparse(node)
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("sandbox") for alias in node.names)


def test_modules_import_each_other_in_the_one_way_that_a_bundle_knows() -> None:
    for path in [*ENTRIES, *MODULES]:
        for node in ast.walk(ast.parse(path.read_text(), str(path), feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "sandbox" for alias in node.names), path
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "sandbox":
                assert not any(alias.asname for alias in node.names), (path, ast.unparse(node))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_a_module_imports_nothing_of_a_higher_layer() -> None:
    """Nor for types only: what is above passes values and functions down."""
    for path in MODULES:
        if module := module_of(path):
            own = layer_of(module)
            assert not [each for each in imports_of(path) if layer_of(each) > own], module


def test_everything_is_in_a_bundle() -> None:
    used = {path for entry in ENTRIES for path in files_of(str(entry))}
    there = {
        str(path)
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in TOOLS
    }
    only_maps = {
        str(path)
        for path in PACKAGE.rglob("__init__.py")
        if len(ast.parse(path.read_text()).body) == 1
    }
    assert there - used - only_maps == set()


def test_shellcheck_finds_no_fault() -> None:
    shellcheck = shutil.which("shellcheck", path=str(AGENT.parent / ".venv/bin"))
    if shellcheck is None:
        pytest.skip("not here: shellcheck has no wheel for this processor")
    command = [shellcheck, *map(str, sorted(PACKAGE.rglob("*.sh")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
