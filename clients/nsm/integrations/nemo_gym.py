"""Sandbox provider of NeMo Gym: each sandbox is a session of a container image.

Example::

    from nemo_gym.sandbox import AsyncSandbox, SandboxSpec
    from nsm.integrations.nemo_gym import NsmSandboxProvider

    async with AsyncSandbox(NsmSandboxProvider()) as sandbox:
        await sandbox.start(SandboxSpec(image="python:3.13-slim"))
        print((await sandbox.exec("python3 --version")).stdout)

NeMo Gym also finds it by the name ``nsm``, as in ``sandbox_provider: {nsm: {}}``.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxStatus,
)

from nsm.integrations.images import ImageSandbox, check_user, image_shell
from nsm.integrations.sandboxes import GONE, texts_of
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Unpack

    from nemo_gym.sandbox.providers.base import SandboxSpec

    from nsm import SandboxSettings

NO_EXIT_CODE = 125
"""Exit code, as of NeMo Gym's own providers, of a command that did not end by itself."""


class NsmSandboxProvider:
    """Provider of sandboxes in sessions of nsm.

    Args:
        root: ``overlay``, in which sandboxes may change the image's files, or ``readonly``.
        fresh: as of `AdapterSandbox`, for the sandboxes of this process.
        timeout_s: of commands for which NeMo Gym names none; None for none.
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`; what a sandbox's own specification says comes first.
    """

    name = "nsm"

    def __init__(
        self,
        *,
        root: str = "overlay",
        fresh: bool = False,
        timeout_s: float | None = 180.0,
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self._root = root
        self._fresh = fresh
        self._timeout_s = timeout_s
        self._socket_path = socket_path
        self._settings = settings

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a session. Its limits of processors, disks and GPUs are those of nsm.

        Raises:
            SandboxCreateError: it can't be made.
        """
        settings: SandboxSettings = {**self._settings}
        if spec.ttl_s is not None:
            settings["idle_s"] = float(spec.ttl_s)
        if spec.resources.memory_mib is not None:
            settings["memory_mb"] = spec.resources.memory_mib
        settings["environ"] = {**(settings.get("environ") or {}), **spec.env}
        settings["labels"] = {**(settings.get("labels") or {}), **spec.metadata}
        if spec.resources.gpu:
            raise SandboxCreateError("a session of nsm has no GPU that a sandbox could ask for")
        sandbox = ImageSandbox(
            "nemo-gym",
            spec.image,
            root=self._root,
            fresh=self._fresh,
            socket_path=self._socket_path,
            **settings,
        )
        try:
            await sandbox.aopen()
            if spec.workdir:
                workdir = spec.workdir
                await sandbox.ado(sandbox.files, lambda files: files.mkdir(workdir, parents=True))
        except (NsmError, OSError) as error:
            await sandbox.aclose()
            raise SandboxCreateError(str(error)) from error
        return SandboxHandle(sandbox_id=sandbox.session or "", provider_name=self.name, raw=sandbox)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command of a shell. A failure without an exit code has an error type."""
        sandbox: ImageSandbox = handle.raw
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            check_user(user)
            done = await sandbox.execute_async(
                image_shell(command), cwd=cwd, environ=env, timeout_s=limit_s
            )
        except (NsmError, OSError) as error:
            return SandboxExecResult(None, str(error), NO_EXIT_CODE, "sandbox")
        stdout, stderr = texts_of(done)
        if done.timed_out:
            stderr += f"\nThe command was stopped after {limit_s:g} s.\n"
            return SandboxExecResult(stdout, stderr, NO_EXIT_CODE, "timeout")
        return SandboxExecResult(stdout, stderr, done.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a file into a sandbox, with the directories that are missing."""
        await handle.raw.ado(handle.raw.upload, source_path, target_path)

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        """Copy a file of a sandbox to the host, with the directories that are missing."""
        await handle.raw.ado(handle.raw.download, source_path, target_path)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Tell whether the session is still there."""
        sandbox: ImageSandbox = handle.raw
        try:
            await sandbox.ado(sandbox.files, lambda files: files.stat("/"))
        except GONE:
            return SandboxStatus.STOPPED
        except (NsmError, OSError):
            return SandboxStatus.UNKNOWN
        return SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        """End the session."""
        with suppress(*GONE):
            await handle.raw.aclose()

    async def aclose(self) -> None:
        """Do nothing: each sandbox has a connection of its own."""
