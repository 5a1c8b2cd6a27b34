"""Environment of Harbor: a session of the task's container image.

    harbor run -e nsm.integrations.harbor:NsmTaskEnvironment ...

A task needs `docker_image` in its `task.toml`: nsm runs images and builds none from Dockerfiles.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.models.task.config import NetworkMode
from harbor.models.trial.config import ResourceMode
from pydantic import BaseModel

from nsm.integrations.images import ImageSandbox, check_user, image_shell
from nsm.integrations.sandboxes import texts_of

if TYPE_CHECKING:
    from pathlib import Path

try:
    from harbor.environments.options import EnvironmentOptions
except ImportError:  # before 0.26, which gives the constructor such settings as they are
    EnvironmentOptions = BaseModel

TIMED_OUT = 124
"""Exit code of a command that took too long, as of timeout(1)."""


class NsmOptions(EnvironmentOptions):  # pyright: ignore[reportGeneralTypeIssues]
    """Settings that `--ek NAME=VALUE` gives.

    Attributes:
        root: ``overlay``, in which a task may change the image's files, or ``readonly``.
        idle_s: the session ends when it was idle for so long; None for what is configured.
        socket_path: socket of the supervisor; None for the usual one.
    """

    root: str = "overlay"
    idle_s: float | None = None
    socket_path: str | None = None


class NsmTaskEnvironment(BaseEnvironment):
    """A session of the image that the task names. It reaches the hosts that the task may reach."""

    options_model = NsmOptions
    options: NsmOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if EnvironmentOptions is BaseModel:
            names = kwargs.keys() & NsmOptions.model_fields.keys()
            self.options = NsmOptions(**{name: kwargs.pop(name) for name in names})
        super().__init__(*args, **kwargs)
        self._sandbox: ImageSandbox | None = None

    @staticmethod
    def type() -> str:
        return "nsm"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image:
            raise ValueError(
                f"The task {self.environment_name} names no `docker_image` in [environment] of its "
                "task.toml. nsm runs images; build its Dockerfile elsewhere and name the image."
            )

    @property
    def _network(self) -> str:
        """The task's hosts, as of `nsm.Client.sandbox`."""
        if self._network_policy.network_mode == NetworkMode.NO_NETWORK:
            return "off"
        if self._network_policy.network_mode == NetworkMode.ALLOWLIST:
            return ",".join(self._network_policy.allowed_hosts) or "off"
        return "*"

    @property
    def _open(self) -> ImageSandbox:
        if self._sandbox is None:
            raise RuntimeError("This environment was not started, or has been stopped.")
        return self._sandbox

    async def start(self, force_build: bool) -> None:  # noqa: ARG002  # there is nothing to build
        """Make the session, and the directories and files that the task wants in it.

        Raises:
            NsmError: it can't be made.
        """
        limit = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        sandbox = ImageSandbox(
            "harbor",
            self.task_env_config.docker_image,
            root=self.options.root,
            socket_path=self.options.socket_path,
            network=self._network,
            memory_mb=limit,
            idle_s=self.options.idle_s,
            labels={"session": self.session_id[:64]},
        )
        self._sandbox = sandbox
        await sandbox.aopen()
        folders = [*self._mount_targets(writable_only=True)]
        if self.task_env_config.workdir:
            folders.append(self.task_env_config.workdir)
        for folder in folders:
            await sandbox.ado(
                sandbox.files, lambda files, path=folder: files.mkdir(path, parents=True)
            )
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:  # noqa: ARG002  # a session is gone either way
        """End the session."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.aclose()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command of a shell.

        Raises:
            BadRequestError: a session has no such user.
            NsmError: the session has ended.
        """
        check_user(self._resolve_user(user))
        done = await self._open.execute_async(
            image_shell(command),
            cwd=cwd or self.task_env_config.workdir,
            environ=self._merge_env(env),
            timeout_s=timeout_sec,
        )
        stdout, stderr = texts_of(done)
        code = TIMED_OUT if done.timed_out else done.exit_code
        return ExecResult(stdout=stdout, stderr=stderr, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the session, with the directories that are missing."""
        await self._open.ado(self._open.upload, source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory into one of the session."""
        await self._open.ado(self._open.upload, source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the session to the host."""
        await self._open.ado(self._open.download, source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a directory of the session into one of the host."""
        await self._open.ado(self._open.download, source_dir, target_dir)
