"""Sandbox of Strands Agents in a session of nsm.

Example::

    from strands import Agent
    from nsm.integrations.strands import NsmSandbox

    sandbox = NsmSandbox()
    agent = Agent(model=model, sandbox=sandbox)
    agent("Count the words of notes.txt")
    sandbox.close()
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import codecs
import errno
from typing import TYPE_CHECKING, Any

from strands.sandbox import ExecutionResult, FileInfo, PosixShellSandbox, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.posix_shell import validate_env_keys
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.shell import make_shell

from nsm.integrations.sandboxes import CANNOT_START, READ_S, AdapterSandbox, left_out, shell_words
from nsm.wire.errors import FileError, JobError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Unpack

    from strands.types.tools import AgentTool

    from nsm import AsyncSessionFiles, SandboxSettings
    from nsm.wire.jobs import JobOutput


class NsmSandbox(PosixShellSandbox):
    """A sandbox in a session of nsm, which is made for the first operation.

    It ends with `close`, with this object or the program, or by its idle time.

    Args:
        session: id of a session that was made before, to use that one.
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self,
        session: str | None = None,
        *,
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self._sandbox = AdapterSandbox(
            "strands", session=session, socket_path=socket_path, **settings
        )

    def close(self) -> None:
        """End the session."""
        self._sandbox.close()

    async def aclose(self) -> None:
        """End the session."""
        await self._sandbox.aclose()

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # the framework's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **_: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a command in Bash, and yield its output as it comes, then the result.

        The command is stopped if the task is cancelled or the generator is closed.

        Raises:
            ValueError: a variable has no proper name.
            SandboxTimeoutError: it took too long.
        """
        validate_env_keys(env or {})
        box = self._sandbox
        argv = ["bash", *shell_words(command)]
        try:
            job = await box.ado(
                box.start, argv, cwd=cwd, environ=env, timeout_s=timeout, wait_s=0.25
            )
        except JobError as error:
            if error.data.get("errno") not in CANNOT_START | {"EINVAL": 1}:
                raise
            yield ExecutionResult(exit_code=1, stdout="", stderr=f"{error}\n")
            return
        output = _Output()
        try:
            while True:
                piece = await box.ado(job.read, wait_s=READ_S)
                for chunk in output.add(piece):
                    yield chunk
                if piece.is_last:
                    break
        finally:
            if job.info.running:
                box.submit(box.stop, job)
        for chunk in output.end():
            yield chunk
        stdout, stderr = output.text["stdout"], output.text["stderr"]
        if job.info.timed_out:
            raise SandboxTimeoutError(timeout, stdout, stderr)
        yield ExecutionResult(exit_code=job.info.exit_code or 0, stdout=stdout, stderr=stderr)

    async def read_file(self, path: str, **_: Any) -> bytes:
        """Read a file."""
        return await self._sandbox.ado(self._sandbox.files, lambda files: files.read(path))

    async def write_file(self, path: str, content: bytes, **_: Any) -> None:
        """Write a file, with the directories that are missing. It appears whole, or not at all."""
        await self._sandbox.ado(self._sandbox.write, path, content)

    async def remove_file(self, path: str, **_: Any) -> None:
        """Remove a file or a link."""

        async def remove(files: AsyncSessionFiles) -> None:
            if (await files.stat(path, follow=False)).kind == "directory":
                raise IsADirectoryError(errno.EISDIR, f"{path} is a directory")
            await files.remove(path)

        await self._sandbox.ado(self._sandbox.files, remove)

    async def list_files(self, path: str, **_: Any) -> list[FileInfo]:
        """List a directory, by name.

        Raises:
            SandboxPathNotFoundError: there is no such directory.
        """

        async def entries(files: AsyncSessionFiles) -> list[FileInfo]:
            found: list[FileInfo] = []
            for each in await files.list(path):
                entry = each
                if each.kind == "link":
                    try:
                        entry = await files.stat(f"{path.rstrip('/')}/{each.name}")
                    except FileError:
                        found.append(FileInfo(name=each.name))
                        continue
                size = entry.size if entry.kind == "file" else None
                found.append(FileInfo(each.name, entry.kind == "directory", size))
            return found

        try:
            return await self._sandbox.ado(self._sandbox.files, entries)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SandboxPathNotFoundError(path) from error

    def get_tools(self) -> list[AgentTool]:
        """Tools for an agent, as those of the framework's own sandboxes."""
        editor = make_file_editor(sandbox=self, name="sandbox_file_editor")
        return [editor, make_shell(sandbox=self, name="sandbox_shell")]


class _Output:
    """Text of both streams, as far as it is kept."""

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self._kept = 0
        self._missing = 0
        self.text = {"stdout": "", "stderr": ""}

    def add(self, piece: JobOutput) -> list[StreamChunk]:
        """Take what has come."""
        chunks: list[StreamChunk] = []
        for chunk in chunks_of(piece):
            self._missing += chunk.missing
            text = self._decoders[chunk.stream].decode(chunk.data)
            if self._kept < AdapterSandbox.MAX_OUTPUT_BYTES:
                self.text[chunk.stream] += text
                self._kept += len(chunk.data)
            else:
                self._missing += len(chunk.data)
            if text:
                chunks.append(StreamChunk(text, chunk.stream))
        return chunks

    def end(self) -> list[StreamChunk]:
        """Take the end: half a character, and what is missing."""
        chunks: list[StreamChunk] = []
        for stream, decoder in self._decoders.items():
            text = decoder.decode(b"", final=True)
            if stream == "stderr":
                text += left_out(self._missing)
            if text:
                self.text[stream] += text
                chunks.append(StreamChunk(text, "stderr" if stream == "stderr" else "stdout"))
        return chunks
