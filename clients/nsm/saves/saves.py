"""Saves of sessions, made and restored. Blocks."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from nsm._version import program_version
from nsm.saves import interpreters, kept
from nsm.saves.interpreters import PLACE, RestoreOutcome, SavedState
from nsm.saves.reports import Restored, RestoredRow, Saved, SaveError
from nsm.saves.save_file import Manifest, SaveReader, SaveWriter, opened
from nsm.wire.errors import FileError, NsmError
from nsm.wire.transcripts import SessionStart, entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.blocking import Client
    from nsm.client.sandbox import Sandbox
    from nsm.client.session_files import SessionFiles
    from nsm.wire.messages import Event
    from nsm.wire.results import RunResult

DIRECTORIES = (("workspace.tar", "/workspace"), ("tmp.tar", "/tmp"))  # noqa: S108  # in the session
"""Parts that are directories of the session."""

MAX_MB = 10 * 1024
"""Largest size of a save, and of all saves in nsm's directory together, unless more is allowed."""

RESERVE_S = 3.0
"""Part of the time of an execution that is not for pickling."""

USUAL_TIMEOUT_S = 30.0
"""Time for an execution where the environment's limit is not known."""

JAIL_VARIABLES = ("HOME", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR", "USER")
"""Variables that are the jail's, beside those that its policy names."""


class _Source(NamedTuple):
    """The session that is saved."""

    id: str
    name: str
    env: str
    interpreter: str
    project: str | None
    executions: int
    variables: tuple[str, ...]
    timeout_s: float


class Saves:
    """Operations on saves.

    Args:
        client: its connection passes descriptors, as one to the supervisor's own socket does.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # Sessions to files.

    def save(
        self,
        target: str,
        path: str | None = None,
        *,
        timeout_s: float | None = None,
        max_mb: int = MAX_MB,
    ) -> Saved:
        """Write what is in a session into a file. The session itself stays as it was.

        Args:
            target: an id, a name, or ``SCOPE/NAME``.
            path: of the file; None for nsm's directory, under the session's name. An older save
                there is replaced.
            timeout_s: time for pickling all variables; None for the environment's limit.
            max_mb: largest size of the file; in nsm's directory, of all saves.

        Raises:
            SaveError: the session cannot be saved. No file is left.
            NsmError: there is no such session, or it has ended.
            OSError: the file cannot be written.
        """
        transcript: list[str] = []
        source = self._source(target, transcript)
        room = max_mb << 20
        if path is None:
            path = kept.path_of(source.name)
            older = os.path.getsize(path) if os.path.exists(path) else 0
            room = max(0, room - kept.used_bytes() + older)
        files = self._client.files(source.id)
        with SaveWriter(path, room) as writer:
            try:
                state = self._write_state(files, source, timeout_s)
                writer.add("state.tar", lambda write: files.archive(PLACE, write))
            finally:
                with suppress(NsmError):
                    files.remove(PLACE, recursive=True)
            notes = list[str]()
            for name, directory in DIRECTORIES:

                def archive(write: Callable[[bytes], object], of: str = directory) -> None:
                    report = files.archive(of, write)
                    notes.extend(f"{of}/{each.path}: {each.why}" for each in report.skipped)

                writer.add(name, archive)
            writer.add(
                "transcript.jsonl", lambda write: [write(line.encode()) for line in transcript]
            )
            if self._source(source.id, []).executions != source.executions + 1:
                notes.append("other code ran meanwhile: files may be newer than variables")
            size = writer.finish(
                Manifest(
                    made_at=time.time(),
                    nsm=program_version(),
                    session=source.name,
                    env=source.env,
                    interpreter=source.interpreter,
                    project=source.project,
                    parts={},
                )
            )
        return Saved(path, size, state.names, state.failed, tuple(notes))

    def _source(self, target: str, transcript: list[str]) -> _Source:
        starts: list[SessionStart] = []

        def on_event(event: Event) -> None:
            if event.event == "session":
                transcript.clear()  # it starts again if the connection was lost
            transcript.append(json.dumps({"event": event.event, **event.data}) + "\n")
            found = entry(event.event, event.data)
            if isinstance(found, SessionStart):
                starts[:] = [found]

        inspection = self._client.inspect(target)
        row = inspection.session
        self._client.call("logs", {"target": row.id, "follow": False}, on_event=on_event)
        if inspection.policy is None or not starts:
            raise SaveError(f"the session {target} has ended, or has only begun")
        if starts[0].interpreter not in interpreters.INTERPRETERS:
            raise SaveError(
                f"{row.name or row.id} is a {starts[0].interpreter} session",
                hint="Only Python and Bash sessions can be saved.",
            )
        limits = [env.timeout_s for env in self._client.envs() if env.name == row.env]
        return _Source(
            row.id,
            row.name or row.id,
            row.env,
            starts[0].interpreter,
            row.project,
            row.executions,
            tuple(inspection.policy.get("variables", ())),
            limits[0] if limits else USUAL_TIMEOUT_S,
        )

    def _write_state(
        self, files: SessionFiles, source: _Source, timeout_s: float | None
    ) -> SavedState:
        limit = min(timeout_s or source.timeout_s, source.timeout_s)
        with suppress(FileError):
            files.remove(PLACE, recursive=True)  # of a save that was killed
        interpreters.put_program(files, source.interpreter, "save")
        not_saved = (*source.variables, *JAIL_VARIABLES)
        seconds = max(1.0, limit - RESERVE_S)
        options = interpreters.put_options(files, source.interpreter, not_saved, seconds)
        code = interpreters.code(source.interpreter, "save")
        _check(self._client.run_in(source.id, code, timeout_s=limit), "saved")
        files.remove(options)
        return interpreters.read_state(files, source.interpreter)

    # Files to sessions.

    def restore(
        self,
        save: str,
        name: str | None = None,
        *,
        env: str = "",
        timeout_s: float | None = None,
        replay: bool = False,
    ) -> Restored:
        """Make a session of a save.

        The save may come from anywhere: nothing of it is unpacked or loaded outside of the new
        session.

        Args:
            save: a path, or the name of a save in nsm's directory.
            name: of the new session; None for that of the saved one.
            env: its environment; empty for that of the saved one, which has to be a preset if the
                save is not in nsm's directory.
            timeout_s: time for loading all variables; None for the environment's limit.
            replay: make again what cannot be restored, by running the code that made it.

        Raises:
            SaveError: it is no save, or was changed; the session that was begun is gone.
            NsmError: the session cannot be made, for example since there is one of that name.
        """
        path = kept.found(save)
        with opened(path) as reader:
            manifest = reader.manifest
            if manifest.interpreter not in interpreters.INTERPRETERS:
                raise SaveError(
                    f"this nsm cannot restore a session of {manifest.interpreter!r:.20}"
                )
            chosen = env or manifest.env
            self._check_env(chosen, manifest.interpreter, trusted=bool(env) or kept.is_kept(path))
            sandbox = self._client.sandbox(
                env=chosen, name=manifest.session if name is None else name
            )
            try:
                outcomes = self._fill(sandbox, reader, timeout_s)
            except BaseException:
                sandbox.close()
                raise
        rows = [each.row for each in outcomes]
        if replay:
            rows = _replayed(sandbox, outcomes)
        return Restored(sandbox.id, sandbox.name, sandbox.env, tuple(rows))

    def _check_env(self, name: str, interpreter: str, *, trusted: bool) -> None:
        """Refuse an environment of another interpreter, before there is a session.

        Args:
            trusted: the user has chosen it, or has made the save; else only a preset will do.
        """
        rows = self._client.envs()
        row = next((row for row in rows if name in (row.name, *row.aliases)), None)
        if not trusted and (row is None or row.source != "preset"):
            raise SaveError(
                f"the save names the environment {name!r:.80}. A file does not choose an "
                "environment that you have set up, since that may have variables of yours",
                hint="Name the environment: `--env`, or `env` in Python.",
            )
        if row is not None and row.interpreter not in ("", interpreter):
            raise SaveError(
                f"the save is of {interpreter}, and the environment {name!r} runs "
                f"{row.interpreter}",
                hint="`nsm env` lists the environments.",
            )

    def _fill(
        self, sandbox: Sandbox, reader: SaveReader, timeout_s: float | None
    ) -> list[RestoreOutcome]:
        files = sandbox.files
        left_out = list[RestoreOutcome]()
        for name, directory in (*DIRECTORIES, ("state.tar", PLACE)):

            def unpack(read: Callable[[int], bytes], into: str = directory) -> None:
                for each in files.unpack(into, read).skipped:
                    row = RestoredRow(f"{into}/{each.path}", "file", each.why)
                    left_out.append(RestoreOutcome(row))

            reader.read_part(name, unpack)
        reader.read_part("transcript.jsonl", lambda _: None)
        interpreter = reader.manifest.interpreter
        interpreters.put_program(files, interpreter, "restore")
        try:
            code = interpreters.code(interpreter, "restore")
            _check(sandbox.run(code, timeout_s=timeout_s), "restored")
            rows = interpreters.read_report(files, interpreter)
        finally:
            with suppress(NsmError):
                files.remove(PLACE, recursive=True)
        return [*rows, *left_out]


def _replayed(sandbox: Sandbox, outcomes: list[RestoreOutcome]) -> list[RestoredRow]:
    """Run the code that made what was not restored, each piece once."""
    failures = dict[str, str]()
    rows = list[RestoredRow]()
    for row, code in outcomes:
        if row.restored or code is None:
            rows.append(row)
            continue
        if code not in failures:
            result = sandbox.run(code)
            lines = result.stderr.strip().splitlines() or [f"exit code {result.exit_code}"]
            failures[code] = "" if result.exit_code == 0 else lines[-1]
        if failures[code]:
            rows.append(row._replace(why=f"{row.why}; its code failed: {failures[code]}"))
        else:
            rows.append(row._replace(replayed=True))
    return rows


def _check(result: RunResult, done: str) -> None:
    """Check that nsm's own program ran to its end in the session.

    Raises:
        SaveError: it did not.
    """
    if result.exit_code == 0:
        return
    why = (result.stderr.strip().splitlines() or ["it failed, and printed no reason"])[-1]
    if result.timed_out:
        why = f"it took longer than {result.timeout_s:g} s"
    if result.interpreter_restarted:
        why += f". Its interpreter was restarted: {result.restart_reason}"
    raise SaveError(f"the session was not {done}: {why}")
