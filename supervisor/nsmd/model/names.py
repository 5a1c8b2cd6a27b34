"""Names of sessions, environments and variables: their checks, and readable new ones."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container

from nsm.wire.errors import BadRequestError

NEW = "new"
"""Name that asks for a new one."""

COMMAND_LINE = "cli"
"""Scope of clients of the control socket that name none. Each project has its own names in it."""

_ID = re.compile(r"[0-9a-f]{4,8}")

ENVIRONMENT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

PROGRAM_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Name of a bridge program."""

MAX_MODULE_CHARS = 100
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIDED_BY_JAILS = frozenset(
    ("HOME", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TMPDIR", "USER")
)
"""Variables of a client that would be wrong in a jail."""

_ALLOWED = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_WORDS = (
    "amber aspen azure basil birch bloom brook cedar chalk cliff cloud clover coral crane "
    "dawn delta dune ember fern field fjord flint frost grove hazel heron indigo iris ivory "
    "jade juniper larch laurel lilac linen lotus maple marsh meadow mist moss nectar ocean "
    "olive onyx opal orchid otter pearl pebble pine plum poppy quartz rain reed river robin "
    "rose ruby sage sand shore sky slate snow spruce stone storm swift teal thyme tide topaz "
    "tulip umber vale violet wave willow wren zinc"
).split()

_TRIES = 100


def check(name: str) -> str:
    """Check a name, and return it. Raises `BadRequestError`."""
    if _ALLOWED.fullmatch(name):
        return name
    raise BadRequestError(
        f"Session name {name[:80]!r} is not allowed.",
        hint="Use 1 to 64 characters of A-Z, a-z, 0-9, '_', '.' and '-'.",
    )


def fresh(prefix: str, taken: Callable[[str], bool]) -> str:
    """Make a readable name that is not taken, e.g. ``python-amber-7``."""
    for _ in range(_TRIES):
        name = f"{prefix}-{secrets.choice(_WORDS)}-{secrets.randbelow(99) + 1}"
        if not taken(name):
            return name
    return f"{prefix}-{secrets.token_hex(8)}"


def fresh_id(taken: Container[str]) -> str:
    """Make a short id for a session that is not taken."""
    while (candidate := secrets.token_hex(4)) in taken:
        pass
    return candidate


def may_be_id(text: str) -> bool:
    """Return whether a text may be a session's id or its beginning."""
    return _ID.fullmatch(text) is not None


def command_line_scope(project: str | None) -> str:
    """Scope of the names that the command line gives in a project."""
    shown = "-" if project is None else project.encode(errors="backslashreplace").decode()
    return f"{COMMAND_LINE}:{shown}"


def owner_of(scope: str) -> str:
    """The scope without its project if it is the command line's, which is one client."""
    return COMMAND_LINE if scope.startswith(f"{COMMAND_LINE}:") else scope


def is_module_name(name: str) -> bool:
    """Return whether a text can be the name of a Python module, in letters that cannot be confused
    with others.
    """
    return len(name) <= MAX_MODULE_CHARS and _MODULE.fullmatch(name) is not None


def why_not_inherited(name: str) -> str | None:
    """Return why a jail must not have a client's variable of that name; None if it may."""
    if not _VARIABLE_NAME.fullmatch(name):
        return f"{name!r:.80} is not the name of a variable"
    if name in _DECIDED_BY_JAILS or name.startswith("LD_"):
        return f"{name} is for the jail to decide; remove it"
    return None
