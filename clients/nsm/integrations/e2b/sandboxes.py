"""Sandboxes of one key: sessions of its scope, with a time at which each is ended.

What has to outlive this process is in the labels of the session: a server that is started again
finds its sandboxes, and gives each its whole time once more.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from nsm import AsyncClient
from nsm.integrations.e2b.errors import RefusalError, gone
from nsm.integrations.e2b.networks import network_of
from nsm.integrations.e2b.settings import DEFAULT_TIMEOUT_S, TEMPLATES
from nsm.wire.answers import read
from nsm.wire.errors import NsmError
from nsm.wire.jobs import StartedJob
from nsm.wire.live import SessionRow
from nsm.wire.sandbox import OpenedSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm import AsyncChangeWatch, AsyncJob
    from nsm.integrations.e2b.contexts import CodeContext
    from nsm.integrations.e2b.settings import ServeSettings

TEMPLATE = "e2b/template"
TIMEOUT = "e2b/timeout"
"""Labels of this server's own."""

MAX_METADATA = 14
"""Labels that are left for a client's metadata."""


class E2bSandbox:
    """One sandbox.

    Attributes:
        id: id of its session, which is that of the sandbox, too.
        name: name of its session.
        env: its environment.
        template: as its client named it.
        metadata: as its client gave it.
        started_at: seconds since 1970.
        ends_at: time at which it is ended, on trio's clock.
        contexts: its interpreters, by id.
        opening: held while a context or a watch is made, as there are at most so many.
        watches: directories that a client watches, by id.
        jobs: jobs that were started here, by their pid.
        tags: names that clients gave to processes, by pid.
    """

    def __init__(self, row: SessionRow, *, ends_in_s: float) -> None:
        labels = dict(row.labels)
        self.id = row.id
        self.name = row.name or row.id
        self.env = row.env
        self.template = labels.pop(TEMPLATE, row.env)
        labels.pop(TIMEOUT, None)
        self.metadata = labels
        self.started_at = time.time() - row.age_s
        self.ends_at = trio.current_time() + ends_in_s
        self.contexts: dict[str, CodeContext] = {}
        self.opening = trio.Lock()
        self.watches: dict[str, AsyncChangeWatch] = {}
        self.jobs: dict[int, AsyncJob] = {}
        self.tags: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<E2bSandbox {self.id}>"

    @property
    def ends_at_text(self) -> str:
        """The time of its end, as E2B writes it."""
        return _time(time.time() + self.ends_at - trio.current_time())

    @property
    def started_at_text(self) -> str:
        """The time of its start, as E2B writes it."""
        return _time(self.started_at)


class Sandboxes:
    """The sandboxes of one key.

    Args:
        client: has a scope of its own.
        scope: that scope.
        settings: what clients can have.
    """

    def __init__(self, client: AsyncClient, scope: str, settings: ServeSettings) -> None:
        self.client = client
        self.settings = settings
        self._scope = scope
        self._known: dict[str, E2bSandbox] = {}
        self._opening = 0
        self._memory_mb: dict[str, int] = {}
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Sandboxes {len(self._known)} of {self._scope}>"

    async def create(self, asked: Mapping[str, Any], **wanted: Any) -> E2bSandbox:
        """Make a sandbox.

        Args:
            asked: the request of the client, for its network.
            wanted: `template`, `timeout_s`, `metadata` and `envs`, checked.

        Raises:
            RefusalError: it asks for more than `serve` was given.
            NsmError: the session can't be made.
        """
        template, timeout_s = wanted["template"], wanted["timeout_s"]
        self.check_timeout(timeout_s)
        metadata: dict[str, str] = wanted["metadata"]
        if len(metadata) > MAX_METADATA:
            raise RefusalError(
                "invalid_argument", f"metadata has at most {MAX_METADATA} names here"
            )
        labels = {**metadata, TEMPLATE: template, TIMEOUT: str(timeout_s)}
        arguments: dict[str, Any] = {
            "env": self._environment(template),
            "labels": labels,
            "environ": {"HOME": self.settings.home, **wanted["envs"]},
            "network": network_of(self.settings.network, asked)._asdict(),
            **self.project_arguments(),
        }
        if self.settings.memory_mb is not None:
            arguments["memory_mb"] = self.settings.memory_mb
        await self.refresh()
        if len(self._known) + self._opening >= self.settings.max_sandboxes:
            raise RefusalError(
                "resource_exhausted",
                f"there are {len(self._known)} sandboxes already; kill one, or give "
                "`nsm e2b serve` a larger --max-sandboxes",
            )
        self._opening += 1
        wire: Any = None
        try:
            # Nobody would know of a session that is made after its client has gone.
            with trio.CancelScope(shield=True):
                wire = await self.client.call("session_open", arguments)
        finally:
            self._opening -= 1
        opened = read(OpenedSession, wire)
        row = _row(opened)
        sandbox = E2bSandbox(row, ends_in_s=timeout_s)
        self._add(sandbox)
        return sandbox

    def project_arguments(self) -> dict[str, Any]:
        """The arguments that say what a session sees of the host."""
        project = self.settings.project
        if project is None:
            return {"no_project": True}
        mount = {"path": project, "mount_point": self.settings.home}
        return {"project": {**mount, "mode": "overlay", "chosen": True}}

    def check_timeout(self, timeout_s: int) -> None:
        """Refuse a time that is longer than `serve` allows."""
        if not 0 <= timeout_s <= self.settings.max_timeout_s:
            raise RefusalError(
                "invalid_argument",
                f"a timeout of {timeout_s} s is not possible here: it is at most "
                f"{self.settings.max_timeout_s} s (`nsm e2b serve --max-timeout`)",
            )

    def _environment(self, template: str) -> str:
        names = self.settings.environments
        if template in TEMPLATES:
            return names[0]
        if template in names:
            return template
        raise RefusalError(
            "not_found",
            f"there is no template {template!r:.80}. Templates are nsm's environments here: "
            f"{', '.join(names)} (`nsm e2b serve --env`)",
        )

    async def find(self, sandbox_id: str) -> E2bSandbox:
        """Find a live sandbox.

        Raises:
            RefusalError: there is none of that id.
        """
        if sandbox_id not in self._known:
            await self.refresh()
        sandbox = self._known.get(sandbox_id)
        if sandbox is None:
            raise gone(sandbox_id)
        return sandbox

    async def all(self) -> list[E2bSandbox]:
        """The live sandboxes, the oldest first."""
        await self.refresh()
        return sorted(self._known.values(), key=lambda each: (each.started_at, each.id))

    async def refresh(self) -> None:
        """Learn which sandboxes there are."""
        before = set(self._known)
        rows = [
            row
            for row in await self.client.sessions()
            if row.scope == self._scope and TEMPLATE in row.labels
        ]
        live = {row.id for row in rows}
        for row in rows:
            if row.id not in self._known:
                said = row.labels.get(TIMEOUT, "")
                timeout_s = int(said) if said.isdecimal() else DEFAULT_TIMEOUT_S
                self._add(E2bSandbox(row, ends_in_s=min(timeout_s, self.settings.max_timeout_s)))
        for sandbox_id in before - live:
            self._known.pop(sandbox_id, None)

    async def is_alive(self, sandbox: E2bSandbox) -> bool:
        """Ask whether a sandbox is still there."""
        await self.refresh()
        return sandbox.id in self._known

    async def learn_memory(self) -> None:
        """Learn how much memory sandboxes of each environment have."""
        self._memory_mb = {row.name: row.memory_mb for row in await self.client.envs()}

    def memory_mb(self, sandbox: E2bSandbox) -> int:
        """The memory limit of a sandbox; 0 if it is not known."""
        most = self._memory_mb.get(sandbox.env, 0)
        return min(most, self.settings.memory_mb or most)

    async def kill(self, sandbox_id: str) -> bool:
        """End a sandbox; False if there was none."""
        with suppress(RefusalError):
            await self.find(sandbox_id)
            with trio.CancelScope(shield=True):
                report = await self.client.kill(sandbox_id)
                self._known.pop(sandbox_id, None)
                return bool(report.killed)
        return False

    def set_timeout(self, sandbox: E2bSandbox, timeout_s: int) -> None:
        """Have a sandbox end so many seconds from now."""
        self.check_timeout(timeout_s)
        sandbox.ends_at = trio.current_time() + timeout_s
        self._wake()

    def extend(self, sandbox: E2bSandbox, timeout_s: int) -> None:
        """Have a sandbox live for at least so many seconds from now."""
        self.check_timeout(timeout_s)
        sandbox.ends_at = max(sandbox.ends_at, trio.current_time() + timeout_s)
        self._wake()

    async def start(self, sandbox: E2bSandbox, argv: list[str], **more: Any) -> StartedJob:
        """Start a program in a sandbox.

        Raises:
            NsmError: it can't be started.
        """
        arguments = {
            "session": sandbox.name,
            "env": sandbox.env,
            "must_exist": True,
            "argv": argv,
            **self.project_arguments(),
            **more,
        }
        return read(StartedJob, await self.client.call("job_start", arguments))

    def path(self, given: str) -> str:
        """An absolute path of a sandbox: relative ones begin in its home directory."""
        home = self.settings.home
        if given == "~" or given.startswith("~/"):
            given = home + given[1:]
        return os.path.normpath(os.path.join(home, given))

    def _add(self, sandbox: E2bSandbox) -> None:
        self._known[sandbox.id] = sandbox
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def end_in_time(self) -> None:
        """End each sandbox when its time is over, until cancelled."""
        with suppress(NsmError):
            await self.refresh()
        while True:
            changed = self._changed
            now = trio.current_time()
            for sandbox in [each for each in self._known.values() if each.ends_at <= now]:
                self._known.pop(sandbox.id, None)
                with suppress(NsmError):  # it may have ended, or the supervisor may be gone
                    await self.client.kill(sandbox.id)
            next_s = min((each.ends_at for each in self._known.values()), default=math.inf)
            with trio.move_on_at(next_s):
                await changed.wait()


def _row(opened: OpenedSession) -> SessionRow:
    """The row of a session that was just made."""
    return SessionRow(
        id=opened.id,
        name=opened.name,
        env=opened.env,
        client="",
        scope="",
        project=None,
        state="idle",
        age_s=0.0,
        idle_s=0.0,
        executions=0,
        memory_bytes=None,
        cpu_s=None,
        pid=0,
        labels=opened.labels,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
