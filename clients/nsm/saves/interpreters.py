"""Programs that save and restore sessions of each interpreter, and their reports."""

from __future__ import annotations

import json
from importlib import resources, util
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from nsm.saves.reports import NotSaved, RestoredRow, SaveError
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import FileError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from nsm.client.session_files import SessionFiles

T = TypeVar("T")

PLACE = "/tmp/.nsm-save"  # noqa: S108  # in the session
"""Directory in the session, for state on its way into a save or out of one."""

INTERPRETERS = ("python", "bash", "node")
"""Interpreters whose sessions can be saved."""

VARIABLE_S = 10.0
"""Time for pickling one variable."""

MAX_REPORT_BYTES = 64 * 1024 * 1024

_RUNNER = """
import sys, types
state = sys.modules['_nsm_state'] = types.ModuleType('_nsm_state')
try:
    for part in 'common', action:
        path = directory + '/python_' + part + '.py'
        exec(compile(open(path).read(), path, 'exec'), state.__dict__)
    getattr(state, action)(directory)
finally:
    sys.modules.pop('_nsm_state', None)
"""
"""Code that runs a program of `in_session` in Python, and leaves no name there."""

_SUFFIXES = {"python": ".py", "bash": ".sh", "node": ".js"}
"""Suffixes of the programs of `in_session`."""


class _Named(NamedTuple):
    name: str


class _Group(NamedTuple):
    names: tuple[str, ...]


class _State(NamedTuple):
    """The saved state of a Python or Node session, as it tells."""

    imports: dict[str, Any]
    definitions: tuple[_Named, ...]
    groups: tuple[_Group, ...]
    failed: tuple[NotSaved, ...]
    version: str = ""
    aliases: dict[str, str] = {}  # noqa: RUF012  # nobody changes it


class RestoreOutcome(NamedTuple):
    """Outcome of restoring one thing, as the session tells; `again` is code that could make it."""

    row: Annotated[RestoredRow, ""]
    again: str | None = None


class RestoreReport(NamedTuple):
    """Report of a session on how it was restored.

    Attributes:
        version: of its interpreter; empty if it does not tell.
        packages: for people, those that are of other versions than in the saved session.
    """

    rows: tuple[RestoreOutcome, ...]
    version: str = ""
    packages: tuple[str, ...] = ()


class SavedState(NamedTuple):
    """Names of what was saved, and what was not."""

    names: tuple[str, ...]
    failed: tuple[NotSaved, ...] = ()
    version: str = ""


def code(interpreter: str, action: str) -> str:
    """Code that runs the program for an action, ``save`` or ``restore``."""
    if interpreter == "python":
        names = {"action": action, "directory": PLACE}
        return f"# nsm {action}\nexec({_RUNNER!r}, {names!r})\n"
    path = f"{PLACE}/{interpreter}_{action}{_SUFFIXES[interpreter]}"
    if interpreter == "node":
        # Not by a variable, which would be saved, too.
        return (
            f"// nsm {action}\ntry {{ require('{path}').{action}('{PLACE}', require); }} "
            f"finally {{ delete require.cache['{path}']; }}\n"
        )
    if action == "save":
        return f"# nsm save\n( . {path} )\n"
    # The agent guards code in whose text it sees that.
    return f"# nsm restore\n. {path}  # may set -e, set -u and trap signals\n"


def put_program(files: SessionFiles, interpreter: str, action: str) -> None:
    """Copy the program for an action into the session."""
    for part in ("common", action) if interpreter == "python" else (action,):
        name = f"{interpreter}_{part}{_SUFFIXES[interpreter]}"
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
    if interpreter == "python":
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
    state = _read(_State, files, f"{PLACE}/state.json")
    definitions = [each.name for each in state.definitions]
    variables = [name for group in state.groups for name in group.names]
    everything = (*state.imports, *definitions, *state.aliases, *variables)
    return SavedState(everything, state.failed, state.version)


def read_report(files: SessionFiles, interpreter: str) -> RestoreReport:
    """Read the session's report of what it has restored."""
    if interpreter != "bash":
        return _read(RestoreReport, files, f"{PLACE}/report.json")
    rows = list[RestoreOutcome]()
    for entry, why in _pairs(files, f"{PLACE}/rows"):
        kind, _, name = entry.partition(" ")
        rows.append(RestoreOutcome(RestoredRow(name, kind, why)))
    return RestoreReport(tuple(rows))


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
