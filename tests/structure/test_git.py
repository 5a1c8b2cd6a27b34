"""One place that starts git: `nsm.git`, which trusts no configuration of a repository."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THE_PLACE = ROOT / "clients" / "nsm" / "git.py"
SOURCES = sorted(
    path
    for package in ("agent", "clients", "supervisor")
    for path in (ROOT / package).rglob("*.py")
    if path != THE_PLACE
)

STARTERS = re.compile(
    r"(subprocess|asyncio|trio|anyio|os|pty)\.(lowlevel\.)?"
    r"(run|call|check_call|check_output|getoutput|getstatusoutput|Popen|popen|system|spawn\w*|exec\w*"
    r"|posix_spawnp?|run_process|open_process|create_subprocess_\w+)"
    r"|Popen|run_process|open_process|run_monitored|create_subprocess_\w+"
)
PROGRAM = re.compile(r"(\S*/)?git")
OF_A_SHELL = re.compile(rf"{PROGRAM.pattern}(\s.*)?", re.DOTALL)


def starts_of_git(text: str) -> list[int]:
    """Lines that start git, or make a command that does."""
    found: set[int] = set()
    if not re.search(r"git\b", text, re.IGNORECASE):
        return []  # parsing all sources takes seconds
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]) if _is_text(
                first, PROGRAM
            ):
                found.add(node.lineno)
            case ast.Call(func=func, args=args) if STARTERS.fullmatch(ast.unparse(func)):
                inner = [each for arg in args for each in ast.walk(arg)]
                if any(map(_is_git, inner)):
                    found.add(node.lineno)
            case _:
                pass
    return sorted(found)


def _is_text(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(pattern.fullmatch(node.value))
    )


def _is_git(node: ast.AST) -> bool:
    """Return whether a value may be git's program: text, or a variable of that name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower().strip("_") == "git"
        case _:
            return _is_text(node, OF_A_SHELL)


def test_code_that_only_names_git_is_not_found() -> None:
    assert not starts_of_git('nsm.git.run(git, ["log"], {})\nif tool.name == "git": pass')
    assert starts_of_git(THE_PLACE.read_text()), "the test sees the one that there is"


def test_git_is_started_at_one_place() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": "start git with nsm.git.run"
        for path in SOURCES
        for line in starts_of_git(path.read_text())
    }
    assert not found
