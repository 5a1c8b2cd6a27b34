"""``client.sandbox(...)``: a session that ends with a block."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

from nsm.client.api import ClientMethods
from nsm.client.places import DEFAULT, place_of
from nsm.client.session_files import AsyncSessionFiles, SessionFiles
from nsm.client.steps import AsyncPart, BlockingPart, Calls, SyncOrAsync, method
from nsm.wire.code import RunOptions, session_open
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self, Unpack

    from nsm.client.blocking import Client
    from nsm.client.events import OnOutput
    from nsm.client.jobs import AsyncJob, Job, ProgramSettings
    from nsm.client.places import Project, ProjectArgument
    from nsm.client.steps import InputSource, Steps
    from nsm.wire.code import RunResult
    from nsm.wire.host import PortRow
    from nsm.wire.operation import OperationCall
    from nsm.wire.sessions import ForkReport, OpenedSession

CLOSE_TIMEOUT_S = 5.0
"""Time that the end of a sandbox may take if the block was cancelled."""


class SandboxSettings(TypedDict, total=False):
    """Settings of a sandbox; `nsm.Client.sandbox` describes them."""

    env: str
    name: str | None
    project: ProjectArgument
    project_mode: str | None
    network: str | None
    secrets: Sequence[str] | None
    memory_mb: int | None
    idle_s: float | None
    environ: Mapping[str, str] | None
    files: Mapping[str, bytes | str] | None
    labels: Mapping[str, str] | None
    ends_with_client: bool


class SandboxMethods(Calls):
    """A session of its own, which ends with the block. ``client.sandbox(...)`` makes it.

    Attributes:
        id, name, env: of the session.
        labels: its labels.
        files: its files.

    Raises:
        UnknownSessionError: from each method, once the session has ended.
    """

    id: str
    name: str
    env: str
    labels: Mapping[str, str]
    _client: Any  # `Client` or `AsyncClient`

    def __init__(self, client: ClientMethods, settings: SandboxSettings) -> None:
        self._client = client
        self._settings = settings
        self._project = settings.get("project", DEFAULT)
        self._project_mode = settings.get("project_mode")

    def __repr__(self) -> str:
        return f"<nsm sandbox {getattr(self, 'name', 'not begun')}>"

    @method
    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        stdin: InputSource | None = None,
        on_output: OnOutput | None = None,
        fresh: bool = False,
    ) -> Steps[RunResult]:
        """Run code, as `nsm.Client.run`."""
        result: RunResult = yield from ClientMethods.run.steps(
            *(self._client, code),
            env=self.env,
            session=self.name,
            timeout_s=timeout_s,
            execution_id=execution_id,
            project=self._project,
            project_mode=self._project_mode,
            must_exist=True,
            stdin=stdin,
            on_output=on_output,
            fresh=fresh,
        )
        return result

    @method
    def exec(
        self, argv: Sequence[str], **settings: Unpack[ProgramSettings]
    ) -> Steps[SyncOrAsync[Job, AsyncJob]]:
        """Start a program, as `nsm.Client.exec`."""
        job: SyncOrAsync[Job, AsyncJob] = yield from ClientMethods.exec.steps(
            *(self._client, self.name, argv),
            env=self.env,
            project=self._project,
            project_mode=self._project_mode,
            must_exist=True,
            **settings,
        )
        return job

    @method
    def fork(self, *names: str, count: int | None = None) -> Steps[ForkReport]:
        """Fork it, as `nsm.Client.fork`; the forks end with it."""
        report: ForkReport = yield from ClientMethods.fork.steps(
            self._client, self.id, *names, count=count
        )
        return report

    @method
    def open_port(
        self, port: int, *, listen: str | None = None, public: bool = False
    ) -> Steps[PortRow]:
        """Open one of its ports on the host, as `client.ports.open`."""
        from nsm.client.host import PortMethods

        row: PortRow = yield from PortMethods.open.steps(
            self, self.id, port, listen=listen, public=public
        )
        return row

    def _begin(self) -> Steps[None]:
        settings = self._settings
        name, mode = settings.get("name"), self._project_mode

        def call(project: Project) -> OperationCall[OpenedSession]:
            place = place_of(
                project,
                env=settings.get("env", "python"),
                session=name,
                project_mode=mode,
                network=settings.get("network"),
                secrets=settings.get("secrets"),
            )
            return session_open(
                place,
                RunOptions(),
                idle_s=settings.get("idle_s"),
                labels=dict(settings.get("labels") or {}),
                environ=dict(settings.get("environ") or {}),
                memory_mb=settings.get("memory_mb"),
                ends_with_client=settings.get("ends_with_client", False),
            )

        client: ClientMethods = self._client
        opened = yield from client.in_project(self._project, mode, call)
        self.id, self.name, self.env, self.labels = opened
        if settings.get("ends_with_client"):
            self._client.leases.add(self.id)


class Sandbox(SandboxMethods, BlockingPart):
    """A session of its own, which ends with the block. `nsm.Client.sandbox` makes it.

    Attributes:
        id, name, env: of the session.
        labels: its labels.
        files: its files.

    Raises:
        UnknownSessionError: from each method, once the session has ended.
    """

    files: SessionFiles

    def __init__(self, client: Client, settings: SandboxSettings) -> None:
        super().__init__(client, settings)
        self.carry_out(self._begin())
        self.files = client.files(self.id)
        try:
            for path, content in (settings.get("files") or {}).items():
                self.files.write(path, content, parents=True)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, with all that runs in it."""
        self._client.leases.discard(self.id)
        with suppress(NsmError):  # the supervisor may be gone, and this with it
            self._client.kill(self.id)


class AsyncSandbox(SandboxMethods, AsyncPart):
    """A session of its own, which ends with the block. `nsm.AsyncClient.sandbox` makes it; the
    session begins with the block. Attributes are those of `Sandbox`.
    """

    files: AsyncSessionFiles

    async def __aenter__(self) -> Self:
        """Make the session.

        Raises:
            NsmError: it can't be made.
        """
        await self.carry_out(self._begin())
        self.files = self._client.files(self.id)
        try:
            for path, content in (self._settings.get("files") or {}).items():
                await self.files.write(path, content, parents=True)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session, with all that runs in it, even if this is cancelled."""
        import anyio  # `Sandbox` does without

        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True), suppress(NsmError):
            self._client.leases.discard(self.id)
            await self._client.kill(self.id)
