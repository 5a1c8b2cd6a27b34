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
from typing import TYPE_CHECKING, Any, cast

import trio

from nsm.dataclass import dataclass
from nsm.integrations.e2b.errors import RefusalError, gone
from nsm.integrations.e2b.requests import inner
from nsm.wire.code import Place, ProjectPlace, RunOptions, session_open
from nsm.wire.errors import NsmError
from nsm.wire.inspection import network_request
from nsm.wire.sessions import SessionRow

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from nsm import (
        AsyncChangeWatch,
        AsyncClient,
        AsyncJob,
        AsyncSessionFiles,
        ProgramSettings,
        RunResult,
    )
    from nsm.integrations.e2b.access import Key
    from nsm.integrations.e2b.contexts import CodeContext
    from nsm.wire.code import NetworkRequest
    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.sessions import OpenedSession

ENVD_VERSION = "0.6.4"
"""Version of E2B's own program in a sandbox that this server speaks like. Clients choose by it."""

HOME = "/home/user"
"""Home directory of E2B's sandboxes, which programs name in full."""

DEFAULT_TIMEOUT_S = 300
"""Time that a sandbox lives if its client says nothing, as E2B's own do."""

TEMPLATES = ("base", "code-interpreter-v1")
"""Templates that clients ask for by default. They mean the first environment."""


ALL = "0.0.0.0/0"
"""Everything, as clients write it."""

_ALLOW = "allowOut"
_DENY = "denyOut"


TEMPLATE = "e2b/template"
TIMEOUT = "e2b/timeout"
"""Labels of this server's own."""

MAX_METADATA = 14
"""Labels that are left for a client's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Limits of all clients.

    Attributes:
        environments: names of the environments that clients can have; the first is the default.
        project: directory of the host of which each sandbox has a copy as its home directory.
        home: home directory in a sandbox.
        network: what sandboxes reach at most, as `nsm run --network` has it.
        memory_mb: memory of a sandbox; None for the environment's own.
        max_timeout_s: how long a sandbox may live at most.
        max_sandboxes: how many there may be at once, of one key.
    """

    environments: tuple[str, ...] = ("python",)
    project: str | None = None
    home: str = HOME
    network: str = "off"
    memory_mb: int | None = None
    max_timeout_s: int = 3600
    max_sandboxes: int = 100


class E2bSandbox:
    """One sandbox.

    Attributes:
        id: id of its session, which is that of the sandbox, too.
        template, metadata: as its client gave them.
        started_at: seconds since 1970.
        ends_at: time at which it is ended, on trio's clock.
        contexts: its interpreters, by id.
        opening: held while a context is made, as there are at most so many.
        watches: directories that a client watches, by id.
        jobs: jobs that were started here, by their pid.
        tags: names that clients gave to processes, by pid.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        session: SessionRow | OpenedSession,
        *,
        age_s: float,
        ends_in_s: float,
    ) -> None:
        labels = dict(session.labels)
        self.sandboxes = sandboxes
        self.client = sandboxes.client
        self.id = session.id
        self.name = session.name or session.id
        self.env = session.env
        self.template = labels.pop(TEMPLATE, session.env)
        labels.pop(TIMEOUT, None)
        self.metadata = labels
        self.started_at = time.time() - age_s
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

    @property
    def files(self) -> AsyncSessionFiles:
        """Files of the sandbox."""
        return self.client.files(self.id)

    def path(self, given: str) -> str:
        """An absolute path: relative ones begin in the home directory."""
        home = self.sandboxes.settings.home
        if given == "~" or given.startswith("~/"):
            given = home + given[1:]
        return os.path.normpath(os.path.join(home, given))

    async def start(self, argv: list[str], **more: Unpack[ProgramSettings]) -> AsyncJob:
        """Start a program."""
        return await self.client.exec(self.name, argv, **self._place(), **more)

    async def run_fresh(self, code: str) -> RunResult:
        """Run code in a fresh interpreter beside the sandbox's own."""
        limit_s = self.sandboxes.settings.max_timeout_s
        return await self.client.run(
            code, session=self.name, timeout_s=limit_s, fresh=True, **self._place()
        )

    def _place(self) -> Any:
        settings = self.sandboxes.settings
        return {
            "env": self.env,
            "must_exist": True,
            "project": settings.project,
            "project_mode": None if settings.project is None else "overlay",
            "mount_point": settings.home,
        }


class Sandboxes:
    """The sandboxes of one key."""

    def __init__(self, key: Key, client: AsyncClient, settings: ServeSettings) -> None:
        self.key = key
        self.client = client
        self.settings = settings
        self._known: dict[str, E2bSandbox] = {}
        self._opening = 0
        self.envs: dict[str, EnvironmentRow] = {}
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Sandboxes {len(self._known)} of {self.key}>"

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
        settings = self.settings
        shown = None
        if settings.project is not None:
            shown = ProjectPlace(settings.project, settings.home, "overlay", chosen=True)
        place = Place(
            env=self._environment(template),
            project=shown,
            no_project=shown is None,
            network=network_of(settings.network, asked),
        )
        call = session_open(
            place,
            RunOptions(),
            labels={**metadata, TEMPLATE: template, TIMEOUT: str(timeout_s)},
            environ={"HOME": settings.home, **wanted["envs"]},
            memory_mb=settings.memory_mb,
        )
        await self.refresh()
        if len(self._known) + self._opening >= self.settings.max_sandboxes:
            raise RefusalError(
                "resource_exhausted",
                f"there are {len(self._known)} sandboxes already; kill one, or give "
                "`nsm e2b serve` a larger --max-sandboxes",
            )
        self._opening += 1
        try:
            # Nobody would know of a session that is made after its client has gone.
            with trio.CancelScope(shield=True):
                opened = await self.client.ask(call)
                sandbox = E2bSandbox(self, opened, age_s=0.0, ends_in_s=timeout_s)
                self._add(sandbox)
                return sandbox
        finally:
            self._opening -= 1
        raise AssertionError("what is shielded is not cancelled")

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
        """Find a live sandbox."""
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
            if row.scope == self.key.scope and TEMPLATE in row.labels
        ]
        live = {row.id for row in rows}
        for row in rows:
            if row.id not in self._known:
                said = row.labels.get(TIMEOUT, "")
                timeout_s = int(said) if said.isdecimal() else DEFAULT_TIMEOUT_S
                ends_in_s = min(timeout_s, self.settings.max_timeout_s)
                self._add(E2bSandbox(self, row, age_s=row.age_s, ends_in_s=ends_in_s))
        for sandbox_id in before - live:
            self._known.pop(sandbox_id, None)

    async def is_alive(self, sandbox: E2bSandbox) -> bool:
        """Ask whether a sandbox is still there."""
        await self.refresh()
        return sandbox.id in self._known

    async def learn_envs(self) -> None:
        """Learn what sandboxes of each environment have."""
        self.envs = {row.name: row for row in await self.client.envs()}

    def memory_mb(self, sandbox: E2bSandbox) -> int:
        """The memory limit of a sandbox; 0 if it is not known."""
        env = self.envs.get(sandbox.env)
        most = env.memory_mb if env else 0
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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def network_of(most: str, asked: Mapping[str, Any]) -> NetworkRequest:
    """The network of a sandbox.

    Args:
        most: what `serve` was given: ``off``, ``full``, or hosts separated by commas.
        asked: the request of the client.

    Raises:
        RefusalError: the client wants more, or what nsm does not have.
    """
    limit = network_request(most)
    if asked.get("allow_internet_access") is False:
        return network_request("off")
    network = inner(asked, "network")
    allowed, denied = _hosts(network, _ALLOW), _hosts(network, _DENY)
    for name, value in network.items():
        if name not in (_ALLOW, _DENY) and value not in (None, False, {}, []):
            raise RefusalError("unimplemented", f"nsm has no setting network.{name}")
    if any(host != ALL for host in denied):
        raise RefusalError(
            "unimplemented",
            f"{_DENY} can only be {ALL} here; name the hosts that may be reached in {_ALLOW}",
        )
    if not allowed:
        return network_request("off") if denied else limit
    if ALL in allowed:
        return limit
    if any("/" in host for host in allowed):
        raise RefusalError("unimplemented", f"{_ALLOW} can only have names of hosts here")
    if limit.mode != "full":
        more = sorted(set(allowed) - set(limit.allow))
        if more:
            raise RefusalError(
                "permission_denied",
                f"{', '.join(more)} cannot be reached from here (`nsm e2b serve --network`)",
            )
    return network_request(",".join(allowed))


def _hosts(network: Mapping[str, Any], name: str) -> list[str]:
    value: object = network.get(name)
    if value is None:
        return []
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(each, str) for each in items):
        raise RefusalError("invalid_argument", f"network.{name} must be a list of texts")
    return cast("list[str]", items)
