"""Writing of a save: what is in a session becomes a file. Blocks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm._version import program_version
from nsm.client import file_steps
from nsm.saves import interpreters, kept, project_changes
from nsm.saves.history import History
from nsm.saves.interpreters import PLACE
from nsm.saves.reports import Saved, SaveError, check_ran
from nsm.saves.save_file import DIRECTORIES, Manifest, SaveWriter
from nsm.wire.errors import FileError, NsmError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.blocking import Client
    from nsm.saves.interpreters import SavedState

RESERVE_S = 3.0
"""Part of the time of an execution that is not for pickling."""

USUAL_TIMEOUT_S = 30.0
"""Time for an execution where the environment's limit is not known."""

ROOT_LEFT_OUT = "changes of the image's files are not saved, but for those in /workspace and /tmp"
"""Note for a session whose root directory is writable."""

JAIL_VARIABLES = ("HOME", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR", "USER")
"""Variables that are the jail's, beside those that its policy names."""


class _Source(NamedTuple):
    """The session that is saved.

    Attributes:
        overlay: path in the session of its overlay of the project; None if it has none.
        writable_root: its root directory is a copy of an image's files, which it may have changed.
    """

    id: str
    name: str
    env: str
    project: str | None
    executions: int
    variables: tuple[str, ...]
    timeout_s: float
    overlay: str | None
    writable_root: bool


class Saving:
    """One session that is saved: an id, a name, or ``SCOPE/NAME``."""

    def __init__(self, client: Client, target: str) -> None:
        self._client = client
        self._source = self._look(target)
        self._history = History(client, self._source.id)
        self._interpreter = self._history.interpreter
        if self._interpreter not in interpreters.INTERPRETERS:
            raise SaveError(
                f"{self._source.name} is a {self._interpreter} session",
                hint="Only Python, Bash and Node sessions can be saved.",
            )
        self._files = client.files(self._source.id)
        self._notes: list[str] = self._history.gaps
        if self._source.writable_root:
            self._notes.append(ROOT_LEFT_OUT)

    def save(
        self, path: str | None, *, timeout_s: float | None, max_mb: int, automatic: bool = False
    ) -> Saved:
        """Write the file; `Saves.save` says more.

        Args:
            automatic: nobody asked for it: it has a name of its own, and replaces no other save but
                that of this session.
        """
        source, room = self._source, max_mb << 20
        if automatic:
            path = kept.path_of(kept.automatic_name(source.name, source.id))
        elif path is None:
            path = kept.path_of(source.name)
            older = os.path.getsize(path) if os.path.exists(path) else 0
            room = max(0, room - kept.used_bytes() + older)
        with SaveWriter(path, room, max_mb << 20) as writer:
            try:
                state = self._write_state(timeout_s)
                with writer.part("state.tar") as part:
                    self._archive(PLACE, part.write_from)
            finally:
                with suppress(NsmError):
                    self._files.remove(PLACE, recursive=True)
            for name, directory in DIRECTORIES:
                with writer.part(name) as part:
                    self._archive(directory, part.write_from)
            with writer.part("project.changes") as part:
                self._write_changes(part.write)
            with writer.part("transcript.jsonl") as part:
                for line in self._history.lines():
                    part.write(line.encode())
            if self._look(source.id).executions != source.executions + 1:
                self._notes.append("other code ran meanwhile: files may be newer than variables")
            size = writer.finish(
                Manifest(
                    made_at=time.time(),
                    nsm=program_version(),
                    session=source.name,
                    session_id=source.id,
                    env=source.env,
                    interpreter=self._interpreter,
                    interpreter_version=state.version,
                    project=source.project,
                    automatic=automatic,
                    parts={},
                )
            )
        return Saved(path, size, state.names, state.failed, tuple(self._notes))

    def _look(self, target: str) -> _Source:
        inspection = self._client.inspect(target)
        row = inspection.session
        if inspection.policy is None:
            raise SaveError(f"the session {target} has ended, or has only begun")
        envs = [env for env in self._client.envs() if env.name == row.env]
        return _Source(
            row.id,
            row.name or row.id,
            row.env,
            row.project,
            row.executions,
            tuple(inspection.policy.get("variables", ())),
            envs[0].timeout_s if envs else USUAL_TIMEOUT_S,
            project_changes.overlay_of(inspection),
            any(
                (mount.get("path"), mount.get("kind")) == ("/", "overlay")
                for mount in inspection.policy.get("mounts", ())
            ),
        )

    def _write_state(self, timeout_s: float | None) -> SavedState:
        source, files = self._source, self._files
        limit = min(timeout_s or source.timeout_s, source.timeout_s)
        with suppress(FileError):
            files.remove(PLACE, recursive=True)  # of a save that was killed
        interpreters.put_program(files, self._interpreter, "save")
        not_saved = (*source.variables, *JAIL_VARIABLES)
        seconds = max(1.0, limit - RESERVE_S)
        options = interpreters.put_options(files, self._interpreter, not_saved, seconds)
        code = interpreters.code(self._interpreter, "save")
        check_ran(self._client.run_in(source.id, code, timeout_s=limit), "saved")
        files.remove(options)
        return interpreters.read_state(files, self._interpreter)

    def _archive(self, directory: str, take: Callable[[int], object]) -> None:
        steps = file_steps.archive_to_pipe(self._source.id, directory, take)
        for each in self._client.carry_out(steps).skipped:
            self._notes.append(f"{directory}/{each.path}: {each.why}")

    def _write_changes(self, write: Callable[[bytes], object]) -> None:
        source = self._source
        if source.overlay is None:
            return
        count, failed = project_changes.save(self._client, source.id, source.overlay, write)
        self._notes += [f"{each.name}: {each.why}" for each in failed]
        if count:
            self._notes.append(f"with the changes of {count} paths of {source.project}")
