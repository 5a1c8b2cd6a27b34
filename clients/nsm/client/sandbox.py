"""``client.sandbox(...)``: a session that ends with a block."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from nsm.client import operations
from nsm.client.projects import DEFAULT
from nsm.wire.answers import read
from nsm.wire.errors import NsmError
from nsm.wire.sandbox import OpenedSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Self, Unpack

    from nsm.client.blocking import Client
    from nsm.client.job_steps import ProgramSettings
    from nsm.client.jobs import Job
    from nsm.client.operations import OnOutput
    from nsm.client.projects import Project, ProjectArgument
    from nsm.client.session_files import SessionFiles
    from nsm.client.standard_input import InputSource
    from nsm.wire.live import ForkReport
    from nsm.wire.ports import PortRow
    from nsm.wire.results import RunResult


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


def open_arguments(settings: SandboxSettings, *, project: Project) -> dict[str, Any]:
    """The arguments of `session_open`."""
    arguments = operations.where_arguments(
        env=settings.get("env", "python"),
        session=settings.get("name"),
        project=project,
        project_mode=settings.get("project_mode"),
        network=settings.get("network"),
        secrets=settings.get("secrets"),
    )
    optional = {
        "memory_mb": settings.get("memory_mb"),
        "idle_s": settings.get("idle_s"),
        "environ": dict(settings.get("environ") or {}) or None,
        "labels": dict(settings.get("labels") or {}) or None,
        "ends_with_client": settings.get("ends_with_client") or None,
    }
    return arguments | {key: value for key, value in optional.items() if value is not None}


class Sandbox:
    """A session of its own, which ends with the block. `nsm.Client.sandbox` makes it.

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
    files: SessionFiles

    def __init__(self, client: Client, settings: SandboxSettings) -> None:
        self._client = client
        self._project = settings.get("project", DEFAULT)
        self._project_mode = settings.get("project_mode")
        arguments = partial(open_arguments, settings)
        wire = client.carry_out(
            client.in_project("session_open", self._project, self._project_mode, arguments)
        )
        self.id, self.name, self.env, self.labels = read(OpenedSession, wire)
        self.files = client.files(self.id)
        if settings.get("ends_with_client"):
            client.leases.add(self.id)
        try:
            for path, content in (settings.get("files") or {}).items():
                self.files.write(path, content, parents=True)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<nsm sandbox {self.name} {self.id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, with all that runs in it."""
        self._client.leases.discard(self.id)
        with suppress(NsmError):  # the supervisor may be gone, and this with it
            self._client.kill(self.id)

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        stdin: InputSource | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code, as `nsm.Client.run`."""
        return self._client.run(
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

    def exec(self, argv: Sequence[str], **settings: Unpack[ProgramSettings]) -> Job:
        """Start a program, as `nsm.Client.exec`."""
        return self._client.exec(
            self.name,
            argv,
            env=self.env,
            project=self._project,
            project_mode=self._project_mode,
            must_exist=True,
            **settings,
        )

    def fork(self, *names: str, count: int | None = None) -> ForkReport:
        """Fork it, as `nsm.Client.fork`; the forks end with it."""
        return self._client.fork(self.id, *names, count=count)

    def open_port(self, port: int, *, listen: str | None = None, public: bool = False) -> PortRow:
        """Open one of its ports on the host, as `client.ports.open`."""
        return self._client.ports.open(self.id, port, listen=listen, public=public)
