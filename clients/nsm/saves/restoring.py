"""Restoring of a save: a file becomes a new session. Blocks."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from nsm.client import file_steps
from nsm.client.places import DEFAULT
from nsm.client.retry import CutOffError, done_again
from nsm.saves import history, interpreters, kept, project_changes
from nsm.saves.interpreters import PLACE, RestoreOutcome
from nsm.saves.reports import Restored, RestoredRow, SaveError, check_ran
from nsm.saves.save_file import DIRECTORIES, SaveReader, opened
from nsm.wire.errors import NsmError, ResultLostError, UnknownOperationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.blocking import Client
    from nsm.client.sandbox import Sandbox


def restore(
    client: Client,
    save: str,
    name: str | None,
    *,
    env: str,
    timeout_s: float | None,
    rerun: bool,
    max_mb: int | None,
) -> Restored:
    """Make a session of a save; `nsm.saves.Saves.restore` says more."""
    path = kept.found(save)
    with opened(path) as reader:
        manifest = reader.manifest
        reader.check_size(kept.most_unpacked(path) if max_mb is None else max_mb << 20)
        if manifest.interpreter not in interpreters.INTERPRETERS:
            raise SaveError(f"this nsm cannot restore a session of {manifest.interpreter!r:.20}")
        chosen = env or manifest.env
        _check_env(client, chosen, manifest.interpreter, trusted=bool(env) or kept.is_kept(path))
        has_changes = bool(manifest.parts["project.changes"].size)
        sandbox = client.sandbox(
            env=chosen,
            name=manifest.session if name is None else name,
            project=DEFAULT,
            project_mode="overlay" if has_changes else None,
            labels=history.label_of(path),
            ends_with_client=True,  # nothing half-made is left if this process is killed
        )
        try:
            # Not if the fate of code is unknown: it may still run, and load variables.
            filling = done_again(
                lambda: _filled(client, sandbox, reader, timeout_s),
                after=(CutOffError, ResultLostError),
            )
            with suppress(UnknownOperationError):  # an older supervisor ends no session by itself
                client.call("session_keep", {"target": sandbox.id})
            client.leases.discard(sandbox.id)
        except BaseException:
            sandbox.close()
            raise
    rows = [each.row for each in filling.outcomes]
    interrupted = False
    if rerun:
        rows, interrupted = _rerun(sandbox, filling.outcomes, timeout_s)
    return Restored(
        sandbox.id, sandbox.name, sandbox.env, tuple(rows), tuple(filling.notes), interrupted
    )


def _filled(
    client: Client, sandbox: Sandbox, reader: SaveReader, timeout_s: float | None
) -> _Filling:
    """Fill a new session, or one that was filled in part."""
    filling = _Filling(client, sandbox, reader)
    filling.fill(timeout_s)
    return filling


def _check_env(client: Client, name: str, interpreter: str, *, trusted: bool) -> None:
    """Refuse an environment of another interpreter, before there is a session.

    Args:
        trusted: the user has chosen it, or has made the save; else only a preset will do.
    """
    rows = client.envs()
    row = next((row for row in rows if name in (row.name, *row.aliases)), None)
    if not trusted and (row is None or row.source != "preset"):
        raise SaveError(
            f"the save names the environment {name!r:.80}. A file does not choose an "
            "environment that you have set up, since that may have variables of yours",
            hint="Name the environment: `--env`, or `env` in Python.",
        )
    if row is not None and row.interpreter not in ("", interpreter):
        raise SaveError(
            f"the save is of {interpreter}, and the environment {name!r} runs {row.interpreter}",
            hint="`nsm env` lists the environments.",
        )


class _Filling:
    """A new session that is filled from a save."""

    def __init__(self, client: Client, sandbox: Sandbox, reader: SaveReader) -> None:
        self._client = client
        self._sandbox = sandbox
        self._reader = reader
        self._left_out: list[RestoreOutcome] = []
        self.outcomes: list[RestoreOutcome] = []
        self.notes: list[str] = []

    def fill(self, timeout_s: float | None) -> None:
        """Fill the new session from the save."""
        files, interpreter = self._sandbox.files, self._reader.manifest.interpreter
        for name, directory in (*DIRECTORIES, ("state.tar", PLACE)):
            self._unpack(name, directory)
        self._reader.read_part("project.changes", self._make_changes)
        self._reader.read_part("transcript.jsonl", lambda _: None)
        interpreters.put_program(files, interpreter, "restore")
        try:
            code = interpreters.code(interpreter, "restore")
            check_ran(self._sandbox.run(code, timeout_s=timeout_s), "restored")
            report = interpreters.read_report(files, interpreter)
        finally:
            with suppress(NsmError):
                files.remove(PLACE, recursive=True)
        self.outcomes = [*report.rows, *self._left_out]
        self._compare(report.version, report.packages)

    def _unpack(self, name: str, directory: str) -> None:
        give = partial(self._reader.send_part, name)
        steps = file_steps.unpack_from_pipe(self._sandbox.id, directory, give)
        for each in self._client.carry_out(steps).skipped:
            self._leave_out(RestoredRow(f"{directory}/{each.path}", "file", each.why))

    def _leave_out(self, row: RestoredRow) -> None:
        self._left_out.append(RestoreOutcome(row))

    def _make_changes(self, read: Callable[[int], bytes]) -> None:
        manifest = self._reader.manifest
        if not manifest.parts["project.changes"].size:
            return
        seen = self._client.inspect(self._sandbox.id)
        overlay, project = project_changes.overlay_of(seen), seen.session.project
        if overlay is None or project is None:
            self._leave_out(
                RestoredRow("of the project", "change", "the new session has no copy of a project")
            )
            return
        if project != manifest.project:
            self.notes.append(
                f"the save has changes of {manifest.project}, this session has {project}"
            )
        for row in project_changes.restore(self._client, self._sandbox.id, overlay, project, read):
            self._leave_out(row)

    def _compare(self, version: str, packages: tuple[str, ...]) -> None:
        """Note how the environment differs from that of the saved session."""
        manifest = self._reader.manifest
        saved = manifest.interpreter_version
        if saved and version and saved != version:
            self.notes.append(f"saved with {manifest.interpreter} {saved}, restored with {version}")
        self.notes += packages


def _rerun(
    sandbox: Sandbox, outcomes: list[RestoreOutcome], timeout_s: float | None
) -> tuple[list[RestoredRow], bool]:
    """Run the code that made what was not restored, each piece once.

    Returns:
        What became of each thing; True if somebody interrupted it, and the rest was not run.
    """
    failures = dict[str, str]()
    rows = list[RestoredRow]()
    interrupted = False
    for row, code in outcomes:
        if row.restored or code is None or (interrupted and code not in failures):
            rows.append(row)
            continue
        if code not in failures:
            result = sandbox.run(code, timeout_s=timeout_s)
            lines = result.stderr.strip().splitlines() or [f"exit code {result.exit_code}"]
            failures[code] = "" if result.exit_code == 0 else lines[-1]
            if result.timed_out:
                failures[code] = f"it took longer than {result.timeout_s:g} s"
            if result.interrupted:
                interrupted, failures[code] = True, "it was interrupted"
        if failures[code]:
            rows.append(row._replace(why=f"{row.why}; its code failed: {failures[code]}"))
        else:
            rows.append(row._replace(remade=True))
    return rows, interrupted
