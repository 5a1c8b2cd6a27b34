"""Programs of a session that the OpenAI Agents SDK comes back to, with a terminal or without."""

# pyright: basic, reportMissingImports=false, reportIncompatibleVariableOverride=false
# mypy: disable-error-code="misc, no-any-unimported, import-not-found"

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agents.sandbox.errors import ExecTransportError
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)

from nsm.integrations.sandboxes import READ_S
from nsm.wire.errors import JobError, NsmError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from agents.sandbox.types import User

    from nsm import AsyncJob
    from nsm.integrations.sandboxes import AdapterSandbox

ROWS_AND_COLUMNS = (24, 80)
START_YIELD_S = 10.0
"""Time that the SDK's own sessions collect first output, if they are not told."""

INPUT_YIELD_S = 0.25
"""Time that they collect output after input."""

INPUT_TIMEOUT_S = 10.0
"""Time that a program may leave its input unread."""


class Running:
    """A program that runs.

    Attributes:
        output: what it has printed and the SDK has not collected.
        error: why its output cannot be read to its end.
    """

    def __init__(self, command: Sequence[str], job: AsyncJob, *, tty: bool) -> None:
        self.command = command
        self.job = job
        self.tty = tty
        self.output: deque[bytes] = deque()
        self.lock = asyncio.Lock()
        self.notify = asyncio.Event()
        self.closed = asyncio.Event()
        self.last_used = time.monotonic()
        self.error: NsmError | None = None
        self.pump: asyncio.Task[None] | None = None


class TerminalSession(BaseSandboxSession):
    """The part of a session that starts such programs.

    Attributes:
        sandbox: the session of nsm.
    """

    sandbox: AdapterSandbox

    def __init__(self) -> None:
        self._programs: dict[int, Running] = {}

    def supports_pty(self) -> bool:
        """Return True."""
        return True

    @contextmanager
    def _transport(self, command: Sequence[str | Path]) -> Generator[None]:
        try:
            yield
        except NsmError as error:
            raise ExecTransportError(command=command, message=str(error), cause=error) from error

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109  # the framework's name
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a program, and return what it prints at first."""
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        environ = await self.state.manifest.environment.resolve()
        starting = asyncio.ensure_future(
            self.sandbox.ado(
                self.sandbox.start,
                argv,
                cwd=self.state.manifest.root,
                environ=environ,
                timeout_s=timeout,
                tty=ROWS_AND_COLUMNS if tty else None,
            )
        )
        with self._transport(argv):
            try:
                job = await asyncio.shield(starting)
            except asyncio.CancelledError:  # nobody would know of it
                starting.add_done_callback(self._stop_unknown)
                raise
        program = Running(argv, job, tty=tty)
        program.pump = asyncio.create_task(self._pump(program))
        if len(self._programs) >= PTY_PROCESSES_MAX:
            await self._prune()
        number = allocate_pty_process_id(set(self._programs))
        self._programs[number] = program
        yield_s = START_YIELD_S if yield_time_s is None else yield_time_s
        yield_ms = clamp_pty_yield_time_ms(int(yield_s * 1000))
        return await self._update(number, program, yield_ms, max_output_tokens)

    def _stop_unknown(self, starting: asyncio.Future[AsyncJob]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self.sandbox.submit(self.sandbox.stop, starting.result())

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type something into a program's terminal, and return what it prints."""
        program = self._resolve_pty_session_entry(
            pty_processes=self._programs, session_id=session_id
        )
        if chars and not program.tty:
            raise RuntimeError("stdin is not available for this process")
        if chars:
            await self._type(program, chars.encode(errors="replace"))
        yield_ms = resolve_pty_write_yield_time_ms(
            yield_time_ms=int((INPUT_YIELD_S if yield_time_s is None else yield_time_s) * 1000),
            input_empty=not chars,
        )
        return await self._update(session_id, program, yield_ms, max_output_tokens)

    async def _type(self, program: Running, data: bytes) -> None:
        with suppress(JobError):  # it has ended, which the update tells
            try:
                with self._transport(program.command):
                    await asyncio.wait_for(
                        self.sandbox.ado(program.job.write, data), INPUT_TIMEOUT_S
                    )
            except ExecTransportError as error:
                if isinstance(error.cause, JobError):
                    raise error.cause from None
                raise
            except TimeoutError as error:
                message = f"the program has read no input for {INPUT_TIMEOUT_S:g} s"
                raise ExecTransportError(command=program.command, message=message) from error

    async def pty_terminate_all(self) -> None:
        """Stop all these programs."""
        programs, self._programs = list(self._programs.values()), {}
        await asyncio.gather(*map(self._stop, programs))

    async def _pump(self, program: Running) -> None:
        try:
            while True:
                output = await self.sandbox.ado(program.job.read, wait_s=READ_S)
                async with program.lock:
                    program.output.extend(chunk.data for chunk in chunks_of(output))
                program.notify.set()
                if output.is_last:
                    break
        except NsmError as error:
            program.error = error
        finally:
            program.closed.set()
            program.notify.set()

    async def _update(
        self, number: int, program: Running, yield_ms: int, max_output_tokens: int | None
    ) -> PtyExecUpdate:
        output, tokens, closed = await collect_pty_output(
            output_chunks=program.output,
            output_lock=program.lock,
            output_notify=program.notify,
            is_done=program.closed.is_set,
            yield_time_ms=yield_ms,
            max_output_tokens=max_output_tokens,
        )
        program.last_used = time.monotonic()
        exit_code: int | None = None
        if closed:
            self._programs.pop(number, None)
            with self._transport(program.command):
                if program.error is not None:
                    raise program.error
            exit_code = program.job.info.exit_code or 0
        return PtyExecUpdate(None if closed else number, output, exit_code, tokens)

    async def _prune(self) -> None:
        meta = [
            (number, program.last_used, program.closed.is_set())
            for number, program in self._programs.items()
        ]
        number = process_id_to_prune_from_meta(meta)
        if number is not None:
            await self._stop(self._programs.pop(number))

    async def _stop(self, program: Running) -> None:
        if program.job.info.running:
            await self.sandbox.ado(self.sandbox.stop, program.job)
        if program.pump is not None:
            program.pump.cancel()
            await asyncio.gather(program.pump, return_exceptions=True)
