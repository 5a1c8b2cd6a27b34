"""Import rules, and their reasons. The arrows of `docs/explanation/architecture.md`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import nsm
from nsm.cli.main import VERBS_ELSEWHERE

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "agent": sorted((ROOT / "agent").rglob("*.py")),
    "nsm": sorted((ROOT / "clients" / "nsm").rglob("*.py")),
    "nsmbox": sorted((ROOT / "clients" / "nsmbox").rglob("*.py")),
    "nsmd": sorted((ROOT / "supervisor" / "nsmd").rglob("*.py")),
}

LAYERS = (
    ("Linux", "The kernel's interfaces, for whatever is above.", ("host",)),
    ("values", "Frozen values and pure functions.", ("model",)),
    ("foundations", "Each needs only values.", ("config", "fdstore", "denials")),
    ("jails", "Where code runs.", ("jail", "packages", "environments", "agent_link", "network")),
    ("one session", "What runs in one jail, and the record of it.", ("sessions", "audit")),
    (
        "all sessions",
        "What outlives one session.",
        ("pool", "bridge", "restart", "boxes", "ports", "manager"),
    ),
    ("front ends", "How clients reach them.", ("telemetry", "control", "mcp", "http")),
    ("doctor", "What checks the host before anything starts.", ("doctor",)),
    ("program", "What puts all of it together.", ("app", "__main__")),
)
"""`nsmd` from the ground up: name, what belongs there, packages.

A package imports from its own layer and from lower ones.
"""


def imports_of(path: Path, *, only_at_start: bool = False) -> frozenset[str]:
    """The modules that a file imports, as dotted names; `TYPE_CHECKING` blocks left out.

    Args:
        only_at_start: leave out imports inside functions.
    """
    at_start, later = _imports_of(path)
    return at_start if only_at_start else at_start | later


@cache
def _imports_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The same, outside and inside functions."""
    at_start: set[str] = set()
    later: set[str] = set()

    def visit(node: ast.AST, found: set[str]) -> None:
        match node:
            case ast.expr():
                pass
            case ast.Import(names=names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.update(f"{module}.{alias.name}" for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                for statement in orelse:
                    visit(statement, found)
            case _:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found = later
                for child in ast.iter_child_nodes(node):
                    visit(child, found)

    visit(ast.parse(path.read_text(), str(path)), at_start)
    return frozenset(at_start), frozenset(later)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_the_agent_needs_nothing_but_python() -> None:
    """The agent runs under whatever Python an environment has."""
    for path in SOURCES["agent"]:
        foreign = {
            name
            for name in imports_of(path)
            if name.split(".")[0] not in sys.stdlib_module_names | {"__main__", "sandbox"}
        }
        # What code in the session may have imported is only looked up, never required.
        assert foreign <= {"matplotlib", "numpy"} or not foreign, foreign


def test_nobody_imports_the_daemon() -> None:
    """Clients reach it over the socket only, so either side can be replaced."""
    for owner in ("agent", "nsm", "nsmbox"):
        for path in SOURCES[owner]:
            assert not [n for n in imports_of(path) if within(n, ("nsmd",))], path


def test_the_wire_does_no_io() -> None:
    """Protocol code is tested without sockets and used by blocking and trio clients alike."""
    doing_io = ("os", "socket", "selectors", "subprocess", "trio", "time", "asyncio", "threading")
    for path in (ROOT / "clients" / "nsm" / "wire").glob("*.py"):
        names = imports_of(path)
        assert not [n for n in names if within(n, doing_io)], path
        own = [n for n in names if within(n, ("nsm",))]
        assert all(within(n, ("nsm.wire",)) for n in own), path


def test_the_daemon_uses_of_the_client_what_both_need() -> None:
    """The protocol, the paths and the line format; never a client's own code."""
    shared = (
        "nsm.wire",
        "nsm.dataclass",
        "nsm.below",
        "nsm.git",
        "nsm.paths",
        "nsm.jsonlines",
        "nsm.shortage",
        "nsm.http",
        "nsm._version",
        "nsm.jail",
        "nsm.checks",
        "nsm.autorun",
        "nsm.setup.json_text",
    )
    for path in SOURCES["nsmd"]:
        own = [n for n in imports_of(path) if within(n, ("nsm",))]
        # The package itself is asked for its place.
        assert all(n == "nsm" or within(n, shared) for n in own), (path, own)


BOX_MAY_USE = {
    "nsm.Client": "sessions and programs of a box are asked of the supervisor",
    "nsm.below": "files in directories that a box can write are opened without following links",
    "nsm.git": "git is started at one place",
    "nsm.dataclass": "values are made as in all of nsm",
    "nsm.paths": "files are where nsm has them, and opened and replaced as nsm does",
    "nsm.wire": "answers of the supervisor, errors, and how a network is spelled",
    "nsm.autorun": "one table says what the host runs by itself",
    "nsm.checks": "`--check` prints the rows that `nsm doctor` prints",
    "nsm.jail": "system calls, sockets, proxies and failures as sessions have them",
    "nsm.cli.options": "`nsm box` has a parser as all verbs",
    "nsm.cli.connection": "`nsm box --list` starts no supervisor, as all verbs that list",
    "nsm.cli.terminal": "notes and JSON are written as by all verbs",
    "nsm.cli.render.formats": "tables, durations and foreign text are shown as by all verbs",
}
"""Names of `nsm` that `nsmbox` imports, and why; a package stands for its modules, too."""


def test_the_box_uses_public_names_of_nsm() -> None:
    used: set[str] = set()
    for path in SOURCES["nsmbox"]:
        for name in imports_of(path):
            if name == "nsm" or not within(name, ("nsm",)):
                continue
            assert not any(part.startswith("_") for part in name.split(".")), (path, name)
            allowed = [each for each in BOX_MAY_USE if within(name, (each,))]
            assert allowed, f"{path}: {name} is not in BOX_MAY_USE"
            used.update(allowed)
    assert used == set(BOX_MAY_USE)


INTEGRATIONS_MAY_USE = {
    **{f"nsm.{name}": "it is public" for name in nsm.__all__},
    "nsm.integrations": "they use each other",
    "nsm.paths": "it is public",
    "nsm.saves": "it is public",
    "nsm.wire": "it is public: values and errors",
    "nsm.dataclass": "values are made as in all of nsm",
    "nsm.http": "`nsm e2b serve` answers by HTTP as the supervisor does",
    "nsm.startup": "a node of a Ray cluster passes connections on byte for byte",
}
"""Names of `nsm` that integrations import, and why."""


def test_integrations_use_public_names_of_nsm() -> None:
    """They follow releases of others, and are not to stand in the way of nsm's own."""
    used: set[str] = set()
    for path in (ROOT / "clients" / "nsm" / "integrations").rglob("*.py"):
        for name in imports_of(path):
            if within(name, ("nsm",)) and name != "nsm":
                assert not any(part.startswith("_") for part in name.split(".")), (path, name)
                allowed = [each for each in INTEGRATIONS_MAY_USE if within(name, (each,))]
                assert allowed, f"{path}: {name} is not in INTEGRATIONS_MAY_USE"
                used.update(allowed)
    unused = INTEGRATIONS_MAY_USE.keys() - used - {f"nsm.{name}" for name in nsm.__all__}
    assert not unused


def test_nsm_finds_the_box_by_a_name_in_a_table() -> None:
    """Each of the two products works without the other, and no other verb loads the box."""
    for path in SOURCES["nsm"]:
        assert not [n for n in imports_of(path) if within(n, ("nsmbox",))], path
    assert VERBS_ELSEWHERE == {"box": "nsmbox.cli.box"}


def test_no_layer_of_the_daemon_imports_a_higher_one() -> None:
    """Each can be read and tested with what is below it."""
    layer_of = {name: layer for layer, (_, _, names) in enumerate(LAYERS) for name in names}
    for own, others in imports_between_packages().items():
        assert own in layer_of, f"{own} has no layer: add it to LAYERS"
        for other in others:
            assert layer_of[other] <= layer_of[own], f"{own} imports {other}, which is higher"


def test_packages_of_the_daemon_form_no_cycle() -> None:
    assert not circle(imports_between_packages())


def test_the_daemon_has_few_packages_and_no_loose_modules() -> None:
    base = ROOT / "supervisor" / "nsmd"
    assert {path.name for path in base.glob("*.py")} == {"__init__.py", "__main__.py"}
    # One more than before `environments` was cut in two, since it had 15,000 lines.
    assert len([path for path in base.iterdir() if (path / "__init__.py").is_file()]) <= 24


def imports_between_packages() -> dict[str, set[str]]:
    """List the packages of the daemon that each of them imports, except itself."""
    base = ROOT / "supervisor" / "nsmd"
    found: dict[str, set[str]] = {}
    for path in SOURCES["nsmd"]:
        own = path.relative_to(base).parts[0].removesuffix(".py")
        if own != "__init__":
            others = {n.split(".")[1] for n in imports_of(path) if n.startswith("nsmd.")}
            found.setdefault(own, set()).update(others - {own})
    return found


HEAVY_AT_START = ("mcp", "pydantic", "prometheus_client", "starlette", "yaml")

PROGRAMS = [
    (
        "nsmd.app.daemon",
        (
            *HEAVY_AT_START,
            *("annotated_types", "sandbox_agent", "sandbox_template", "sandbox.agent"),
            *("nsmd.denials.explaining", "nsmd.denials.messages", "nsmd.sessions.changes"),
            "nsmd.environments.devshell.project_shells",
        ),
        "the control socket answers before what the first calls may not need",
    ),
    (
        "nsmbox.cli.common",
        (*HEAVY_AT_START, "trio", "dataclasses", "inspect"),
        "`nsm box` takes little longer than bubblewrap",
    ),
    (
        "nsm.shim",
        (*HEAVY_AT_START, "trio", "cbor2", "argparse", "nsm.wire"),
        "an editor starts it for each window: 30 ms and 6 MB, not 1 s and 60 MB",
    ),
    ("nsm.cli.main", (*HEAVY_AT_START, "trio"), "`nsm ps` takes three times an empty Python"),
    (
        "nsm.cli.verbs.screens",
        ("prompt_toolkit", "asyncio"),
        "shells ask for its options at each Tab",
    ),
    ("nsm", (*HEAVY_AT_START, "trio"), "the blocking client is light"),
]


@pytest.mark.parametrize(("module", "unwanted", "why"), PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_a_program_loads_no_heavy_module_at_start(
    module: str, unwanted: tuple[str, ...], why: str
) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not [name for name in loaded if within(name, unwanted)], why


def test_modules_of_sessions_are_loaded_after_the_first_calls() -> None:
    """While a supervisor runs, an upgrade may replace its modules by those of another version.

    They are loaded whether or not an MCP client comes.
    """
    code = """
import sys, trio.testing
from nsmd.app.daemon import load_the_rest
trio.run(load_the_rest, clock=trio.testing.MockClock(autojump_threshold=0))
assert "mcp" not in sys.modules
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [path.relative_to(ROOT / "supervisor").with_suffix("") for path in SOURCES["nsmd"]]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    later = {name for name in names if within(name, ("nsmd.denials", "nsmd.sessions"))}
    # The program that forks sessions is a process of its own each time.
    later = {name for name in later if not within(name, ("nsmd.sessions.forking",))}
    assert later <= {*loaded}


def test_dataclasses_are_made_without_compiling_each() -> None:
    """The standard library's decorator took a third of the supervisor's start."""
    for owner in ("nsm", "nsmbox", "nsmd"):
        for path in SOURCES[owner]:
            slow = {"dataclasses.dataclass", "dataclasses.field"} & imports_of(path)
            assert not slow or path.name == "dataclass.py", f"{path}: take them from nsm.dataclass"


PACKAGES = ("agent", "clients", "supervisor")


def modules() -> dict[str, Path]:
    """Our modules by their dotted names."""
    return {
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for root in PACKAGES
        for path in (ROOT / root).rglob("*.py")
    }


def circle(imports: dict[str, set[str]]) -> set[str]:
    """Names that import each other, and those that stand on them."""
    left = set(imports)
    while free := {name for name in left if not imports[name] & left}:
        left -= free
    return left


def test_no_modules_import_one_another() -> None:
    """Imports for annotations alone (`TYPE_CHECKING`) are left out: they tie nothing together."""
    known = modules()
    imports: dict[str, set[str]] = {}
    for module, path in known.items():
        names = imports_of(path, only_at_start=True)
        used = {name if name in known else name.rpartition(".")[0] for name in names}
        imports[module] = (used & set(known)) - {module}
    assert not circle(imports)
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}


MAPS = sorted(
    path
    for folder in ("agent/sandbox", "clients", "supervisor")
    for path in (ROOT / folder).rglob("__init__.py")
)


def test_the_docstring_of_a_package_names_all_that_is_in_it() -> None:
    for path in MAPS:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        inside = {each.stem for each in path.parent.glob("[a-z]*.py")}
        folders = {each.name for each in path.parent.iterdir() if each.is_dir()}
        inside |= {name for name in folders if not name.startswith("__")}
        missing = {name for name in inside if not re.search(rf"(?<!\w){name}\b", docstring)}
        gone = {
            name
            for name in re.findall(r"^(?:- `(\w+)`:|([a-z_0-9]+)  )", docstring, re.MULTILINE)
            if (name[0] or name[1]) not in inside
        }
        assert (missing, gone) == (set(), set()), path
