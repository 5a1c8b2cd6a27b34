"""Programs that save and restore sessions of each interpreter, and their reports."""

from __future__ import annotations

import json
from importlib import resources, util
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

from nsm.saves.reports import NotSaved, RestoredRow, SaveError
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import FileError

if TYPE_CHECKING:
    from nsm.client.session_files import SessionFiles

T = TypeVar("T")

PLACE = "/tmp/.nsm-save"  # noqa: S108  # in the session
"""Directory in the session, for state on its way into a save or out of one."""

INTERPRETERS = ("python", "bash")
"""Interpreters whose sessions can be saved."""

VARIABLE_S = 10.0
"""Time for pickling one variable."""

MAX_REPORT_BYTES = 64 * 1024 * 1024

_RUNNER = """
import sys, types
state = sys.modules['_nsm_state'] = types.ModuleType('_nsm_state')
try:
    path = directory + '/python_' + action + '.py'
    exec(compile(open(path).read(), path, 'exec'), state.__dict__)
    getattr(state, action)(directory)
finally:
    sys.modules.pop('_nsm_state', None)
"""
"""Code that runs a program of `in_session` in Python, and leaves no name there."""


class _Named(NamedTuple):
    name: str


class _Group(NamedTuple):
    names: tuple[str, ...]


class _PythonState(NamedTuple):
    """The saved state of a Python session, as it tells."""

    imports: dict[str, str]
    definitions: tuple[_Named, ...]
    groups: tuple[_Group, ...]
    failed: tuple[NotSaved, ...]


class RestoreOutcome(NamedTuple):
    """Outcome of restoring one thing, as the session tells; `again` is code that could make it."""

    row: Annotated[RestoredRow, ""]
    again: str | None = None


class _PythonReport(NamedTuple):
    rows: tuple[RestoreOutcome, ...]


class SavedState(NamedTuple):
    """Names of what was saved, and what was not."""

    names: tuple[str, ...]
    failed: tuple[NotSaved, ...] = ()


def code(interpreter: str, action: str) -> str:
    """Code that runs the program for an action, ``save`` or ``restore``."""
    if interpreter == "python":
        names = {"action": action, "directory": PLACE}
        return f"# nsm {action}\nexec({_RUNNER!r}, {names!r})\n"
    path = f"{PLACE}/bash_{action}.sh"
    if action == "save":
        return f"# nsm save\n( . {path} )\n"
    # The agent guards code in whose text it sees that.
    return f"# nsm restore\n. {path}  # may set -e, set -u and trap signals\n"


def put_program(files: SessionFiles, interpreter: str, action: str) -> None:
    """Copy the program for an action into the session."""
    name = f"{interpreter}_{action}" + (".py" if interpreter == "python" else ".sh")
    program = resources.files("nsm.saves.in_session").joinpath(name).read_bytes()
    files.write(f"{PLACE}/{name}", program, parents=True)


def put_options(
    files: SessionFiles, interpreter: str, not_saved: tuple[str, ...], seconds: float
) -> str:
    """Write the options of the program that saves; returns their path, which is not to be saved.

    Args:
        not_saved: names of variables of the environment.
        seconds: time for all variables.
    """
    if interpreter == "bash":
        files.write(f"{PLACE}/not_saved", "\n".join(not_saved))
        return f"{PLACE}/not_saved"
    files.write(f"{PLACE}/cloudpickle.py", _cloudpickle())
    options = {"seconds": seconds, "variable_s": VARIABLE_S, "not_saved": not_saved}
    files.write(f"{PLACE}/options.json", json.dumps(options))
    return f"{PLACE}/options.json"


def _cloudpickle() -> bytes:
    """Source of cloudpickle, which is one file."""
    try:
        found = util.find_spec("cloudpickle.cloudpickle")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise SaveError("the Python package cloudpickle is missing", hint="Install nsm again.")
    with open(found.origin, "rb") as file:
        return file.read()


def read_state(files: SessionFiles, interpreter: str) -> SavedState:
    """Read the session's report of what it has written."""
    if interpreter == "bash":
        names = [entry.partition(" ") for entry, _ in _pairs(files, f"{PLACE}/entries")]
        return SavedState(tuple(name for kind, _, name in names if kind != "options"))
    state = _read(_PythonState, files, f"{PLACE}/state.json")
    definitions = [each.name for each in state.definitions]
    variables = [name for group in state.groups for name in group.names]
    return SavedState((*state.imports, *definitions, *variables), state.failed)


def read_report(files: SessionFiles, interpreter: str) -> tuple[RestoreOutcome, ...]:
    """Read the session's report of what it has restored."""
    if interpreter == "python":
        return _read(_PythonReport, files, f"{PLACE}/report.json").rows
    rows = list[RestoreOutcome]()
    for entry, why in _pairs(files, f"{PLACE}/rows"):
        kind, _, name = entry.partition(" ")
        rows.append(RestoreOutcome(RestoredRow(name, kind, why)))
    return tuple(rows)


def _read(kind: type[T], files: SessionFiles, path: str) -> T:
    """Read a report of the session. It may be anything."""
    try:
        return decode(kind, json.loads(_content(files, path)))
    except (ValueError, RecursionError, DecodeError) as error:
        raise SaveError(f"the session wrote no report that nsm can read: {error}") from error


def _pairs(files: SessionFiles, path: str) -> list[tuple[str, str]]:
    """Texts that end in NUL, two by two."""
    texts = _content(files, path).decode("utf-8", "replace").split("\0")
    return list(zip(texts[:-1:2], texts[1::2], strict=False))


def _content(files: SessionFiles, path: str) -> bytes:
    try:
        return files.read(path, max_bytes=MAX_REPORT_BYTES)
    except FileError as error:
        raise SaveError(f"the session wrote no report that nsm can read: {error}") from error
