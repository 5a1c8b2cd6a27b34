"""Programs that nsm starts on the host: the working directory, which may be a stranger's checkout,
decides neither which programs those are nor what they import."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

IN_JAILS = (
    "clients/nsm/integrations/e2b/contexts.py",
    "clients/nsm/integrations/e2b/in_session/",
    "clients/nsm/integrations/jupyter.py",
    "clients/nsm/integrations/openhands.py",
    "clients/nsm/saves/in_session/",
    "clients/nsmbox/start/inside.py",
)
"""Programs of jails, or modules that start some there. The code in a jail decides anyway what runs
in it."""

ELSEWHERE = {
    "clients/nsm/cli/pager.py": "a person's PAGER runs where that person is",
    "clients/nsm/hosts/installer.py": "it is alone on the other machine, in the user's home",
    "supervisor/nsmd/host/command_monitor.py": "a monitor's directory was chosen for it",
}

STARTS = {"Popen", "call", "check_call", "check_output", "run"}
STARTS_OF_TRIO = {"open_process", "run_process"}
STARTS_OF_OS = {"execlp", "execvp", "execvpe", "posix_spawnp", "system"}

UNDER_THEIR_NAMES = {
    "os": STARTS_OF_OS,
    "shutil": {"which"},
    "subprocess": STARTS,
    "trio": STARTS_OF_TRIO | {"lowlevel"},
    "trio.lowlevel": STARTS_OF_TRIO,
}
"""Functions that are called as `MODULE.NAME` only: these tests find the calls by that."""

CALLED = {"which"} | STARTS | STARTS_OF_TRIO | STARTS_OF_OS

PYTHONS = ("sys.executable", "os.path.realpath(sys.executable)")


def faults(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Find starts of programs that the working directory decides on; with their lines."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name not in CALLED:
                continue  # spelling out every call of the sources takes seconds
            owner = ast.unparse(node.func.value)
            given = {keyword.arg for keyword in node.keywords}
            starts = (owner == "subprocess" and name in STARTS) or (
                owner in ("trio", "trio.lowlevel") and name in STARTS_OF_TRIO
            )
            if starts and "cwd" not in given:
                yield node.lineno, 'say where it runs: cwd="/"'
            if (owner, name) == ("shutil", "which") and "path" not in given:
                yield node.lineno, "look for it in `paths.search_path()`"
            if owner == "os" and name in STARTS_OF_OS:
                yield node.lineno, "start it by its absolute path"
        elif isinstance(node, ast.ImportFrom):
            if {each.name for each in node.names} & UNDER_THEIR_NAMES.get(node.module or "", set()):
                yield node.lineno, f"call it as {node.module}.NAME"
        elif isinstance(node, ast.Import):
            if any(each.asname and each.name in UNDER_THEIR_NAMES for each in node.names):
                yield node.lineno, "import it under its own name"
        elif isinstance(node, ast.List | ast.Tuple) and not is_isolated(node):
            yield node.lineno, "start Python with -I, or with -P if it needs PYTHONPATH"


def is_isolated(words: ast.List | ast.Tuple) -> bool:
    """Tell whether words of a command start no Python, or one that is isolated."""
    flat = list(flattened(words))
    texts = [text_of(each) for each in flat]
    pythons = [
        at
        for at, word in enumerate(flat)
        if isinstance(word, ast.Attribute | ast.Call)
        and ast.unparse(word) in PYTHONS
        and not texts[at - 1].startswith("--")
    ]
    if pythons:
        return len(flat) == 1 or texts[pythons[0] + 1 :][:1] in [["-I"], ["-P"]]
    for at in [at for at, text in enumerate(texts) if text in ("-c", "-m")]:
        options = list(itertools.takewhile(lambda text: text.startswith("-"), texts[at::-1]))
        program = texts[at - len(options)] if len(options) <= at else "no program"
        # Python has no options of two dashes.
        may_be_python = "python" in program or not program
        if may_be_python and not any(text[:2] in ("-I", "-P", "--") for text in options):
            return False
    return True


def text_of(word: ast.expr) -> str:
    """A word as it is written; empty where a variable holds it."""
    if isinstance(word, ast.JoinedStr):
        return "text"
    return str(word.value) if isinstance(word, ast.Constant) else ""


def flattened(words: ast.List | ast.Tuple) -> Iterator[ast.expr]:
    for word in words.elts:
        if isinstance(word, ast.Starred) and isinstance(word.value, ast.List | ast.Tuple):
            yield from flattened(word.value)
        else:
            yield word


def found_in(folder: str) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(IN_JAILS) and name not in ELSEWHERE:
            module = ast.parse(path.read_text(encoding="utf-8"))
            yield from (f"{name}:{line}: {fault}" for line, fault in sorted(faults(module)))


@pytest.mark.parametrize("folder", ["agent", "clients", "supervisor"])
def test_the_working_directory_decides_on_no_program(folder: str) -> None:
    found = "\n".join(found_in(folder))
    assert not found, found


@pytest.mark.parametrize("name", [*IN_JAILS, *ELSEWHERE])
def test_exemptions_are_of_use(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize(
    ("code", "is_fault"),
    [
        ('subprocess.run(["git", "status"])', True),
        ('subprocess.run(["git", "status"], cwd="/")', False),
        ("trio.run_process(command)", True),
        ("from subprocess import run", True),
        ("from subprocess import TimeoutExpired", False),
        ("from nsm.git import run", False),
        ("import subprocess as programs", True),
        ('shutil.which("uv")', True),
        ('shutil.which("uv", path=paths.search_path())', False),
        ('os.execvp("git", words)', True),
        ('command = [sys.executable, "-m", "pip"]', True),
        ('command = [sys.executable, *given, "-I"]', True),
        ('command = [os.path.realpath(sys.executable), "-P", "-m", "pip"]', False),
        ('command = (python, "-S", "-c", code)', True),
        ('command = (python, "-I", "-S", "-c", code)', False),
        ('command = ["python3", "-m", "pip"]', True),
        ('command = ["/bin/sh", "-c", script]', False),
    ],
)
def test_faults_are_found(code: str, is_fault: bool) -> None:
    assert any(faults(ast.parse(code))) is is_fault
