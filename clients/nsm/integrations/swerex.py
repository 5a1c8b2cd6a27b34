"""Runtime and deployment of SWE-ReX in a session of nsm.

Example::

    from nsm.integrations.swerex import NsmDeployment
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    deployment = NsmDeployment()
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    seen = await deployment.runtime.run_in_session(BashAction(command="pwd"))
    await deployment.stop()

SWE-ReX checks the syntax of commands in a shell of the host, as part of a here-document that a
command can end. Nothing of that is used here: the check runs in the session too.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING, Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CommandResponse,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileResponse,
    UploadResponse,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

from nsm.integrations.sandboxes import AdapterSandbox, left_out
from nsm.integrations.swerex_shell import BashShell, check_syntax
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    import logging
    from typing import Unpack

    from swerex.deployment.hooks.abstract import DeploymentHook
    from swerex.runtime.abstract import (
        CloseBashSessionRequest,
        Command,
        CreateBashSessionRequest,
        ReadFileRequest,
        UploadRequest,
        WriteFileRequest,
    )

    from nsm import AsyncSessionFiles, SandboxSettings


class NsmRuntime(AbstractRuntime):
    """A runtime in a session of nsm, which is made for the first operation.

    Args:
        logger: of SWE-ReX's kind; None for its usual one.
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self,
        *,
        logger: logging.Logger | None = None,
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self.logger = logger or get_logger("rex-runtime")
        self._sandbox = AdapterSandbox("swe-rex", socket_path=socket_path, **settings)
        self._shells: dict[str, BashShell] = {}

    async def begin(self) -> None:
        """Make the session now.

        Raises:
            NsmError: it can't be made.
        """
        await self._sandbox.aopen()

    async def is_alive(
        self,
        *,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109  # the framework's
    ) -> IsAliveResponse:
        """Make the session if there is none, and return whether it is still there."""
        try:
            await self._sandbox.ado(self._sandbox.files, lambda files: files.stat("."))
        except NsmError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=True)

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        """Start a Bash in a terminal.

        Raises:
            SessionExistsError: there is one of that name.
            CommandTimeoutError: what it was to read first takes too long.
        """
        if request.session in self._shells:
            raise SessionExistsError(f"session {request.session!r} already exists")
        shell = await BashShell.start(self._sandbox)
        output = ""
        if request.startup_source:
            lines = "\n".join(f". {shlex.quote(path)}" for path in request.startup_source)
            action = BashAction(command=lines, timeout=request.startup_timeout, check="ignore")
            try:
                output = (await shell.run(action)).output
            except CommandTimeoutError:
                shell.close()
                raise
        self._shells[request.session] = shell
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        """Run a command in one of its shells, or interrupt what runs there.

        Raises:
            SessionDoesNotExistError: there is no such shell.
            BashIncorrectSyntaxError, CommandTimeoutError, NonZeroExitCodeError, NoExitCodeError:
                as in SWE-ReX's own runtime.
        """
        shell = self._shells.get(action.session)
        if shell is None:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        if isinstance(action, BashInterruptAction):
            return await shell.interrupt(action)
        if action.is_interactive_command or action.is_interactive_quit:
            return await shell.run_interactive(action)
        await check_syntax(self._sandbox, action.command)
        return await shell.run(action)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        """End a shell."""
        shell = self._shells.pop(request.session, None)
        if shell is None:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        shell.close()
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Run a program or a command of a shell to its end.

        Raises:
            CommandTimeoutError: it took too long.
            NonZeroExitCodeError: it failed, and was to be checked.
        """
        given = [command.command] if isinstance(command.command, str) else command.command
        argv = ["sh", "-c", *given] if command.shell else given
        if command.merge_output_streams:
            argv = ["sh", "-c", 'exec "$@" 2>&1', "sh", *argv]
        done = await self._sandbox.execute_async(
            argv,
            cwd=command.cwd,
            environ=command.env,
            timeout_s=command.timeout,
        )
        if done.timed_out:
            raise CommandTimeoutError(f"the command was stopped after {command.timeout} s")
        stdout = done.stdout.decode(errors="backslashreplace")
        stderr = done.stderr.decode(errors="backslashreplace")
        stderr += left_out(done.missing)
        if command.check and done.exit_code:
            what = f"{command.error_msg}: " if command.error_msg else ""
            raise NonZeroExitCodeError(
                f"{what}Command {command.command!r} failed with exit code {done.exit_code}. "
                f"Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
            )
        return CommandResponse(stdout=stdout, stderr=stderr, exit_code=done.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Read a text file."""
        data = await self._sandbox.ado(self._sandbox.files, lambda files: files.read(request.path))
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return ReadFileResponse(content=text)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file, with the directories that are missing."""
        await self._sandbox.ado(self._sandbox.write, request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or a directory of the host."""

        async def upload(files: AsyncSessionFiles) -> None:
            await files.mkdir(posixpath.dirname(request.target_path) or ".", parents=True)
            await files.upload(request.source_path, request.target_path)

        await self._sandbox.ado(self._sandbox.files, upload)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End the session, with its shells."""
        self._shells.clear()
        await self._sandbox.aclose()
        return CloseResponse()


class NsmDeployment(AbstractDeployment):
    """A deployment whose runtime is in a session of nsm.

    Args:
        settings: those of `NsmRuntime`.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **settings: Any) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._settings = settings
        self._hooks = CombinedDeploymentHook()
        self._runtime: NsmRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Add a hook, which is told the steps of `start`."""
        self._hooks.add_hook(hook)

    async def is_alive(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # the framework's name
    ) -> IsAliveResponse:
        """Return whether the session is still there."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="The deployment was not started.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Make the session.

        Raises:
            NsmError: it can't be made.
        """
        self._hooks.on_custom_step("Making a session of nsm")
        runtime = NsmRuntime(logger=self.logger, **self._settings)
        await runtime.begin()
        self._runtime = runtime

    async def stop(self) -> None:
        """End the session."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> NsmRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: there is none.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime
