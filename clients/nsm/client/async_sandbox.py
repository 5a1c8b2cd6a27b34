"""``client.sandbox(...)`` of the client on trio."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from nsm.client.projects import DEFAULT
from nsm.client.sandbox import open_arguments
from nsm.wire.answers import read
from nsm.wire.errors import NsmError
from nsm.wire.sandbox import OpenedSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self, Unpack

    from nsm.client.async_jobs import AsyncJob
    from nsm.client.async_session_files import AsyncSessionFiles
    from nsm.client.async_standard_input import AsyncInputSource
    from nsm.client.asynchronous import AsyncClient
    from nsm.client.job_steps import ProgramSettings
    from nsm.client.operations import OnOutput
    from nsm.client.sandbox import SandboxSettings
    from nsm.wire.live import ForkReport
    from nsm.wire.ports import PortRow
    from nsm.wire.results import RunResult

CLOSE_TIMEOUT_S = 5.0
"""How long the end of a sandbox may take if the block was cancelled."""


class AsyncSandbox:
    """A session of its own, which ends with the block. `nsm.AsyncClient.sandbox` makes it; the
    session begins with the block. Attributes are those of `Sandbox`.
    """

    id: str
    name: str
    env: str
    labels: Mapping[str, str]
    files: AsyncSessionFiles

    def __init__(self, client: AsyncClient, settings: SandboxSettings) -> None:
        self._client = client
        self._settings = settings
        self._project = settings.get("project", DEFAULT)
        self._project_mode = settings.get("project_mode")

    def __repr__(self) -> str:
        return f"<nsm sandbox {getattr(self, 'name', 'not begun')}>"

    async def __aenter__(self) -> Self:
        """Make the session.

        Raises:
            NsmError: it can't be made.
        """
        client, settings = self._client, self._settings
        arguments = partial(open_arguments, settings)
        wire = await client.carry_out(
            client.in_project("session_open", self._project, self._project_mode, arguments)
        )
        self.id, self.name, self.env, self.labels = read(OpenedSession, wire)
        self.files = client.files(self.id)
        if settings.get("ends_with_client"):
            client.leases.add(self.id)
        try:
            for path, content in (settings.get("files") or {}).items():
                await self.files.write(path, content, parents=True)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session, with all that runs in it, even if this is cancelled."""
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S), suppress(NsmError):
            self._client.leases.discard(self.id)
            await self._client.kill(self.id)

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        stdin: AsyncInputSource | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code, as `nsm.AsyncClient.run`."""
        return await self._client.run(
            code,
            env=self.env,
            session=self.name,
            timeout_s=timeout_s,
            execution_id=execution_id,
            project=self._project,
            project_mode=self._project_mode,
            must_exist=True,
            stdin=stdin,
            on_output=on_output,
        )

    async def exec(self, argv: Sequence[str], **settings: Unpack[ProgramSettings]) -> AsyncJob:
        """Start a program, as `nsm.AsyncClient.exec`."""
        return await self._client.exec(
            self.name,
            argv,
            env=self.env,
            project=self._project,
            project_mode=self._project_mode,
            must_exist=True,
            **settings,
        )

    async def fork(self, *names: str, count: int | None = None) -> ForkReport:
        """Fork it, as `nsm.AsyncClient.fork`; the forks end with it."""
        return await self._client.fork(self.id, *names, count=count)

    async def open_port(
        self, port: int, *, listen: str | None = None, public: bool = False
    ) -> PortRow:
        """Open one of its ports on the host, as `client.ports.open`."""
        return await self._client.ports.open(self.id, port, listen=listen, public=public)
