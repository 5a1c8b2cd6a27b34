"""A plan as a command that people can read, and paste into bash."""

from __future__ import annotations

import base64
import os
import shlex

from nsmbox.consent import masking
from nsmbox.model.plan import Plan, Variable
from nsmbox.planning import bwrap

SOCKETS = "/nonexistent/made-by-the-supervisor-at-launch"
"""Stand-in for the directory of a box's sockets, which exists only once there is a box."""

_FIRST_DESCRIPTOR = 10
"""Bash keeps its own from here on upwards, and moves them out of the way of redirections."""


def command(plan: Plan, program: str, *, syscalls: bytes | None) -> str:
    """The whole, for bash; what is secret is the shell's own variable there, or masked.

    Args:
        program: bwrap's path.
    """
    files: list[bytes] = []

    def descriptor(data: bytes) -> int:
        files.append(data)
        return _FIRST_DESCRIPTOR + len(files) - 1

    sockets = SOCKETS if plan.sockets else ""
    lines = bwrap.arguments(plan, descriptor, syscalls=syscalls, sockets=sockets, launched=False)
    words = [
        f"exec env -i {quoted(program)}",
        *_by_option(lines),
        *(_variable(variable) for variable in plan.variables),
        "-- " + " ".join(quoted(word) for word in plan.command),
        *(_redirection(_FIRST_DESCRIPTOR + place, data) for place, data in enumerate(files)),
    ]
    # In a shell of its own, since `exec` would end the one that it is pasted to.
    return "( trap '' INT QUIT\n" + " \\\n  ".join(words) + "\n)"


def quoted(word: str) -> str:
    """A word for bash, of printable ASCII where it has anything that a terminal would obey."""
    if word.isprintable():
        return shlex.quote(word)
    # A byte in hexadecimal ends after two digits (bash(1), QUOTING).
    escaped = {ord("\\"): "\\\\", ord("'"): "\\'", ord("\n"): "\\n"}
    parts = (
        escaped.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(parts)}'"


def _variable(variable: Variable) -> str:
    shown = masking.masked(variable.name, variable.value, secret=variable.secret)
    if variable.inherited and shown != variable.value:
        return f'--setenv {variable.name} "${variable.name}"'
    return f"--setenv {variable.name} {quoted(shown)}"


def _by_option(lines: list[str]) -> list[str]:
    """One option with what it takes on each line; a path may look like an option."""
    grouped: list[list[str]] = []
    rest = list(lines)
    while rest:
        taken = 1 + bwrap.OPERANDS.get(rest[0], 0)
        if grouped and grouped[-1][0] == "--perms" and len(grouped[-1]) == 2:
            grouped[-1] += rest[:taken]
        else:
            grouped.append(rest[:taken])
        rest = rest[taken:]
    return [" ".join(map(quoted, group)) for group in grouped]


def _redirection(number: int, data: bytes) -> str:
    if not data:
        return f"{number}</dev/null"
    return f"{number}< <(base64 -d <<<{base64.b64encode(data).decode()})"
