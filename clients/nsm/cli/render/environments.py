"""Environments as text, for `nsm env`: usable ones, builds, and those that lie in a project."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.render.formats import below_home, duration, limit, memory, table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nsm.wire.environments import (
        BuildProgress,
        BuiltRow,
        EnvironmentRow,
        FoundRow,
        PreloadReport,
        SlowImport,
    )


def environments_table(rows: Sequence[EnvironmentRow], home: str, width: int | None = None) -> str:
    """The table of `nsm env`."""
    if not rows:
        return "No environments."
    return table(
        "NAME INTERPRETER LIMIT MEMORY SOURCE DESCRIPTION".split(),
        (
            (
                ", ".join((row.name or "-", *row.aliases)),
                row.interpreter or "-",
                limit(row.timeout_s) if row.interpreter else "-",
                f"{row.memory_mb} MiB" if row.interpreter else "-",
                below_home(row.source, home),
                _environment_note(row),
            )
            for row in rows
        ),
        right="LIMIT MEMORY",
        width=width,
        least="INTERPRETER",
    )


def _environment_note(row: EnvironmentRow) -> str:
    only = f" [only for {row.only_for}]" if row.only_for else ""
    only += f" [in place of {', '.join(row.hides)}]" if row.hides else ""
    if not row.available:
        # What failed and the cause; `nsm env show NAME` has the log's end, too.
        problem = " ".join((row.problem or "").splitlines()[:2])
        return f"unavailable: {problem}{only}"
    separator = ", " if row.description else ""
    preloaded = _preloaded(row)
    preload = f"{separator}with {', '.join(preloaded)}" if preloaded else ""
    if preloaded and (sizes := [each.memory_bytes or 0 for each in row.templates]):
        preload += f" ({memory(sum(sizes))})"
    stateless = "" if row.keeps_state else " (no sessions)"
    cold = f" (starts slowly: {row.cold_start})" if row.cold_start else ""
    cold += f" (not preloaded: {'; '.join(row.not_preloaded)})" if row.not_preloaded else ""
    return f"{row.description}{preload}{stateless}{cold}{only}"


def environment_details(row: EnvironmentRow) -> list[tuple[str, str]]:
    """All that is known of one, as names and texts for `listing`."""
    lines = [("name", ", ".join((row.name or "-", *row.aliases)))]
    if row.available:
        lines += [
            (
                "interpreter",
                f"{row.interpreter}, {row.program}" if row.program else row.interpreter,
            ),
            ("limits", f"{limit(row.timeout_s)} a run, {row.memory_mb} MiB a session"),
        ]
    lines.append(("source", row.source))
    optional = [
        ("description", row.description),
        ("unavailable", row.problem),
        ("preloaded", ", ".join(_preloaded(row))),
        ("not preloaded", "\n".join(row.not_preloaded)),
        ("templates", "\n".join(_templates(row))),
        ("sessions", None if row.keeps_state or not row.available else "none: single runs only"),
        ("starts slowly", row.cold_start),
        ("devices", _devices(row)),
        ("only for", row.only_for),
        ("in place of", ", ".join(row.hides)),
    ]
    lines += [(name, text) for name, text in optional if text]
    # What nix said has lines of its own.
    return [
        (name if number == 0 else "", line)
        for name, text in lines
        for number, line in enumerate(text.splitlines() or [""])
    ]


def _devices(row: EnvironmentRow) -> str:
    nodes = f": {', '.join(row.device_nodes)}" if row.device_nodes else ""
    return ", ".join(row.devices) + nodes


def _templates(row: EnvironmentRow) -> list[str]:
    lines: list[str] = []
    for each in row.templates:
        size = "?" if each.memory_bytes is None else memory(each.memory_bytes)
        where = f" for {each.project}" if each.project else ""
        times = ", ".join(f"{module} in {took:.2f} s" for module, took in each.imported.items())
        lines.append(f"{size}{where}" + (f", imported {times}" if times else ""))
    return lines


def _preloaded(row: EnvironmentRow) -> list[str]:
    """The modules that its sessions find imported."""
    failed = {text.partition(":")[0] for text in row.not_preloaded}
    return [module for module in row.preload if module not in failed]


def suggestions(rows: Sequence[EnvironmentRow]) -> list[str]:
    """A line for each module that sessions often wait for."""
    return [suggestion(row.name, slow) for row in rows for slow in row.slow_imports]


def suggestion(environment: str, slow: SlowImport) -> str:
    """Advice on a module that sessions often wait for."""
    took = f"`import {slow.module}` took {slow.seconds:.1f} s"
    often = f"in {slow.sessions} of the last {slow.of} sessions"
    return visible(f"{took} {often}: `nsm env preload {environment} {slow.module}`")


def preloads(report: PreloadReport) -> str:
    """Modules that an environment preloads after a change."""
    if not report.preload:
        return visible(f"{report.name} preloads nothing")
    known = report.imported
    modules = [
        f"{module} ({known[module]:.2f} s)" if module in known else module
        for module in report.preload
    ]
    text = f"{report.name} preloads {', '.join(modules)}"
    if report.memory_bytes is not None:
        text += f"; its template takes {memory(report.memory_bytes)}"
    return visible(text)


def not_preloaded(rows: Sequence[EnvironmentRow]) -> list[str]:
    """A line for each module that could not be preloaded."""
    lines = [f"{row.name}: not preloaded: {text}" for row in rows for text in row.not_preloaded]
    lines += [
        f"{row.name}: nothing is preloaded: {row.cold_start}"
        for row in rows
        if row.preload and row.cold_start
    ]
    return [visible(line) for line in lines]


# Builds.

_EVERY_S = 0.2
_NOTICEABLE_S = 1.0
_WIDTH = 100

_LOCAL = re.compile(r"(path:|git\+file:(?://)?)?(\.{1,2}(?:/[^#?]*)?)([#?].*)?", re.DOTALL)
"""A scheme if there is one, a path that begins here, and the rest."""


def absolute(reference: str) -> str:
    """A reference that begins in this directory as one that the supervisor understands; any other
    text as it is."""
    from urllib.parse import quote  # noqa: PLC0415  # few commands ask

    match = _LOCAL.fullmatch(reference)
    if match is None:
        return reference
    scheme, path, rest = match.groups(default="")
    if scheme.startswith("git+file"):
        scheme = "git+file://"
    return scheme + quote(os.path.abspath(path)) + rest


def builds_table(rows: Sequence[BuiltRow]) -> str:
    """The table of `nsm env builds`."""
    if not rows:
        return (
            "None was added. `nsm env add REF#NAME` builds one; `nsm env` lists all environments."
        )
    now_s = time.time()
    return table(
        "NAME STATE BUILT REFERENCE NOTE".split(),
        (
            (
                row.name,
                row.state,
                "-" if row.built_at is None else f"{duration(now_s - row.built_at)} ago",
                row.reference,
                _build_note(row),
            )
            for row in rows
        ),
    )


def _build_note(row: BuiltRow) -> str:
    if row.progress is not None:
        return _build_state(row, row.progress)
    if row.state == "failed":
        kept = "" if row.path is None else " (the one built before is used)"
        return f"{row.cause or 'its build failed'}{kept}"
    if row.note:
        return row.note
    others = [who for who in row.wanted_by if who != "nsm env add"]
    return "" if not others else f"named by {', '.join(others)}"


def build_details(row: BuiltRow) -> list[tuple[str, str]]:
    """Lines of `nsm env show NAME` on how an environment was built, as names and texts."""
    lines = [("reference", row.reference), ("build", row.state)]
    if row.progress is not None:
        lines.append(("", _build_state(row, row.progress)))
    if row.path is not None:
        lines.append(("store path", row.path))
    if row.built_at is not None:
        lines.append(("built", f"{duration(time.time() - row.built_at)} ago"))
    if row.lock:
        lines.append(("lock", row.lock))
    if row.note:
        lines.append(("note", row.note))
    if row.wanted_by:
        lines.append(("named by", ", ".join(row.wanted_by)))
    return lines


def added(row: BuiltRow) -> str:
    """Make the last message of `nsm env add`."""
    note = f"\nnote: {visible(row.note)}" if row.note else ""
    return f"{visible(row.name)} is ready: {visible(row.path or '')}{note}"


def updated(row: BuiltRow, before: str | None) -> str:
    """Make the last message of `nsm env update` about one that had this store path before."""
    name, path = visible(row.name), visible(row.path or "")
    if row.path == before:
        return f"{name} is up to date"
    return f"{name} is new: {path}"


def visible_log(text: str) -> str:
    """A piece of a log; nsm cleaned it before, but its file may have been anybody's since."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def progress_line(row: BuiltRow) -> str:
    """Make a line on how a build comes along; empty where none does."""
    if row.progress is None:
        return ""
    return visible(f"{row.name}: {_build_state(row, row.progress)}")[:_WIDTH]


def _build_state(row: BuiltRow, progress: BuildProgress) -> str:
    for_so_long = duration(row.since_s or 0)
    if row.state == "queued":
        return f"waits for other builds, {for_so_long}"
    parts = [progress.activity or progress.phase]
    if progress.to_build:
        parts.append(f"{progress.built} of {progress.to_build} built")
    if progress.to_download_bytes:
        done, total = progress.downloaded_bytes, progress.to_download_bytes
        parts.append(f"{memory(done)} of {memory(total)}")
    elif progress.downloaded_bytes:
        parts.append(f"{memory(progress.downloaded_bytes)} received")
    return ", ".join([*parts, for_so_long])


class BuildProgressLine:
    """Progress of builds, on standard error: a line that changes on a terminal; else a line for
    each phase."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._next_s = 0.0
        self._phases: dict[str, str] = {}
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            terminal.draw("")

    def show(self, row: BuiltRow) -> None:
        """Show how one is now."""
        if row.progress is None:
            return
        if self._on_terminal:
            now_s = time.monotonic()
            if now_s >= self._next_s:
                self._next_s = now_s + _EVERY_S
                self._shown = True
                terminal.draw(progress_line(row))
            return
        waits = row.state == "queued"
        if waits and (row.since_s or 0) < _NOTICEABLE_S:
            return
        phase = "waiting for other builds" if waits else row.progress.phase
        if self._phases.get(row.reference) != phase:
            self._phases[row.reference] = phase
            sys.stderr.write(f"nsm: {visible(f'{row.name}: {phase}')}\n")
            sys.stderr.flush()


# Environments that lie in a project.

NAMED = 5
"""Largest number of packages to name."""


_LIST = "list of packages"
_LISTS = {
    "uv.lock": "lock of uv",
    "poetry.lock": "lock of Poetry",
    "package-lock.json": "lock of npm",
    "pnpm-lock.yaml": "lock of pnpm",
    "yarn.lock": "lock of Yarn",
    "pyproject.toml": "dependencies of a Python project",
    "pixi.lock": "lock of pixi",
    "conda-lock.yml": "lock of conda",
    "pixi.toml": "packages of conda",
    "environment.yml": "packages of conda",
    "environment.yaml": "packages of conda",
    ".txt": "requirements of Python",
    ".in": "requirements of Python",
}
"""Kinds of lists of packages, by how their names end."""


def found_table(rows: Sequence[FoundRow], width: int | None = None) -> str:
    """The table of `nsm env found`."""
    if not rows:
        return "No environments in this project."
    return table(
        "PATH NAME CONTENT STATE".split(),
        ((row.path, row.name or "-", content(row), _state(row)) for row in rows),
        width=width,
        least="CONTENT",
    )


def hints(rows: Sequence[FoundRow]) -> list[str]:
    """A line for each environment that somebody could agree to use."""
    # Lists are for those languages that have no environment yet.
    has = {_is_node(row) for row in rows if row.kind != "packages" or row.name}
    return [
        f"found: {visible(row.path)} ({content(row)}): {_command(row)} {_effect(row)}"
        for row in rows
        if row.changed
        or (
            row.name is None
            and (row.kind != "packages" or not (row.problem or _is_node(row) in has))
        )
    ]


def _is_node(row: FoundRow) -> bool:
    return row.kind == "node_modules" or row.path.endswith("package-lock.json")


def _effect(row: FoundRow) -> str:
    if row.name:
        return "agrees to what is there now"
    return "makes an environment of it" if row.kind == "packages" else "makes it the project's"


def used(row: FoundRow) -> str:
    """Outcome of `nsm env use`."""
    example = f"nsm run -e {row.name} CODE"
    return f"{visible(row.path)} ({content(row)}) is {row.name} now: `{example}`"


def content(row: FoundRow) -> str:
    """Summary of one: ``Python 3.12.1, numpy, pandas and 14 more``."""
    if row.kind == "packages":
        name = row.path.rpartition("/")[2]
        kind = next((words for end, words in _LISTS.items() if name.endswith(end)), _LIST)
        if not row.package_count:
            return kind
        return f"{kind}, {row.package_count} package{'' if row.package_count == 1 else 's'}"
    kind = f"Python {row.version}".rstrip() if row.kind == "venv" else "Node.js packages"
    chosen = sum(package.chosen for package in row.packages)
    named = [package.name for package in row.packages[: min(NAMED, chosen or NAMED)]]
    more = row.package_count - len(named)
    words = ", ".join([visible(kind), *map(visible, named)])
    if not row.package_count:
        return words if row.problem else f"{words}, no packages"
    return f"{words} and {more} more" if more > 0 and named else words


def _state(row: FoundRow) -> str:
    if row.problem is not None:
        return f"unavailable: {row.problem}"
    if row.changed:
        return f"in use; changed since you agreed: {_command(row)}"
    return "in use" if row.name else f"not in use: {_command(row)}"


def _command(row: FoundRow) -> str:
    return f"`nsm env use {visible(shlex.quote(row.path))}`"
