"""Signals: whom they reach is known by a descriptor, or is a child that nobody has reaped.

For kill(2), 0 and negative numbers are groups, and -1 is everybody, forks of a session included.
Any other number is another process's once its own has been reaped.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("agent", "supervisor", "clients", "tools", "systemd")

BY_NUMBER = {"kill", "killpg", "pthread_kill", "tgkill", "tkill", "kill_group"}
"""Functions that take a number, in `os`, `signal` or the C library."""

MODULES = {"os", "signal", "posix", "libc"}

OWN_NUMBER = "os.getpid()"

SAFE = {
    "agent/sandbox/processes.py:signal_child": "waitid(2) has just said that it is a child",
    "agent/sandbox/processes.py:signal_group": "likewise, the leader",
    "agent/sandbox/tracing/ptrace.py:Traced.detach": "it is traced: only we reap it",
    "agent/sandbox/tracing/ptrace.py:Traced.kill": "it is traced: only we reap it",
    "supervisor/nsmd/host/processes.py:signal_child": "waitid(2) has just said that it is a child",
    "supervisor/nsmd/host/processes.py:signal_group": "likewise, the leader",
    "clients/nsmbox/start/relay.py:_wait": "its only child, which `_follow` reaps before the end",
    "clients/nsmbox/start/relay.py:_end": "its only child, which is reaped in the next line",
    "clients/nsm/saves/in_session/python_save.py:_save_in_child": "a child, which is reaped next",
    "clients/nsm/cli/foreground.py:Foreground._send_input": "the main thread, which lives",
    "tools/guestagent.py:kill": "the leader is reaped only when this cannot be called any more",
}
"""Places that send signals by a number, and why it is the right one's."""


def sent_by_number(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each use of such a function: the class and function that it is in, and the use."""
    for node in ast.iter_child_nodes(tree):
        inner = owner
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = f"{owner}.{node.name}".lstrip(".")
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from ((inner, node) for name in node.names if name.name in BY_NUMBER)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) in {"os.kill", "signal.pthread_kill"}
            and ast.unparse(node.args[0]) == OWN_NUMBER
        ):
            yield from sent_by_number(ast.Tuple(node.args), inner)
            continue
        if (
            isinstance(node, ast.Attribute)
            and node.attr in BY_NUMBER
            and isinstance(node.value, ast.Name)
            and node.value.id in MODULES
        ):
            yield inner, node
        yield from sent_by_number(node, inner)


def negative(tree: ast.AST) -> list[str]:
    """Calls that signal with a number that is written as negative, or as 0."""
    names = BY_NUMBER | {"signal_child", "signal_group"}
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in names
        and node.args
        and (
            isinstance(node.args[0], ast.UnaryOp)
            or (isinstance(node.args[0], ast.Constant) and not node.args[0].value)
        )
    ]


def programs() -> Iterator[tuple[str, ast.AST]]:
    """Sources that may send signals; to parse them all takes seconds."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "kill" in text or "signal_" in text:
                yield str(path.relative_to(ROOT)), ast.parse(text)


def test_signals_are_sent_by_number_only_where_that_is_safe() -> None:
    trees = dict(programs())
    found = {f"{name}:{owner}" for name, tree in trees.items() for owner, _ in sent_by_number(tree)}
    assert found == SAFE.keys(), (
        "use a pidfd, `signal_child` or `signal_group`, or say why it is safe"
    )
    # No number is negative or 0.
    assert not [(name, call) for name, tree in trees.items() for call in negative(tree)]
