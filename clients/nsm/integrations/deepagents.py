"""Backend of Deep Agents in a session of nsm, and the provider of Deep Agents Code.

Example::

    from deepagents import create_deep_agent
    from nsm.integrations.deepagents import NsmBackend

    with NsmBackend() as backend:
        agent = create_deep_agent(model=model, backend=backend)
        agent.invoke({"messages": [("user", "Count the words of /workspace/notes.txt")]})
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from nsm.integrations.sandboxes import AdapterSandbox, merged_shell

if TYPE_CHECKING:
    from typing import Self, Unpack

    from nsm import CommandResult, SandboxSettings

TIMEOUT_S = 120
"""Time limit of a command where the model gives none, as in Deep Agents' own shell."""

_ERRORS = {
    errno.ENOENT: "file_not_found",
    errno.EISDIR: "is_directory",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOTDIR: "invalid_path",
    errno.ELOOP: "invalid_path",
    errno.ENAMETOOLONG: "invalid_path",
}


class NsmBackend(BaseSandbox):
    """A sandbox in a session of nsm, which is made for the first operation.

    It ends with `close`, with this object or the program, or by its idle time.

    Args:
        session: id of a session that was made before, to use that one.
        timeout_s: time limit of a command where none is given.
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self,
        session: str | None = None,
        *,
        timeout_s: int = TIMEOUT_S,
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self._timeout_s = timeout_s
        self._sandbox = AdapterSandbox(
            "deepagents", session=session, socket_path=socket_path, **settings
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Make the session now.

        Raises:
            NsmError: it can't be made, or the one to be used has ended.
        """
        self._sandbox.open()

    def close(self) -> None:
        """End the session."""
        self._sandbox.close()

    @property
    def id(self) -> str:
        """The session's id. The session is made if there is none."""
        return self._sandbox.session or self._sandbox.open().id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in Bash."""
        limit_s = self._limit(timeout)
        return _response(self._sandbox.execute(merged_shell(command), timeout_s=limit_s), limit_s)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109  # the framework's name
    ) -> ExecuteResponse:
        """Run a command in Bash. It is stopped if the task is cancelled."""
        limit_s = self._limit(timeout)
        done = await self._sandbox.execute_async(merged_shell(command), timeout_s=limit_s)
        return _response(done, limit_s)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; what is wrong with one of them is in its answer."""
        return [FileUploadResponse(path=path, error=self._put(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; what is wrong with one of them is in its answer."""
        return [self._get(path) for path in paths]

    def _limit(self, timeout: int | None) -> int:
        limit = self._timeout_s if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"the timeout must be a number of seconds above 0, not {limit}")
        return limit

    def _put(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.do(self._sandbox.write, path, data)
        except OSError as error:
            return _reason(error)
        return None

    def _get(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            data = self._sandbox.do(self._sandbox.files, lambda files: files.read(path))
        except OSError as error:
            return FileDownloadResponse(path=path, error=_reason(error))
        return FileDownloadResponse(path=path, content=data)


def _reason(error: OSError) -> str:
    return _ERRORS.get(error.errno or 0, str(error))


def _response(done: CommandResult, timeout_s: int) -> ExecuteResponse:
    output = done.stdout.decode(errors="replace")
    if done.timed_out:
        output += f"\n[stopped after {timeout_s} s]"
    return ExecuteResponse(output=output, exit_code=done.exit_code, truncated=done.missing > 0)
