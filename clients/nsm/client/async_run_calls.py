"""Code that runs in sessions: the part of `nsm.AsyncClient` that sends it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nsm.client import operations
from nsm.client.async_steps import AsyncCalls, carry_out
from nsm.client.projects import DEFAULT, ProjectCalls
from nsm.wire.answers import read
from nsm.wire.results import RunResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, Unpack

    from nsm.client.async_standard_input import AsyncInputSource
    from nsm.client.operations import OnOutput, RunSettings
    from nsm.client.projects import ProjectArgument
    from nsm.client.replays import OnReplayed, ReplayReport, ReplaySettings
    from nsm.transcripts.document import SessionTranscript
    from nsm.wire.messages import Hello


class AsyncRunCalls(AsyncCalls, ProjectCalls):
    """Calls that run code. `nsm.AsyncClient` is one of these."""

    server: Hello | None

    async def run(
        self,
        code: str,
        *,
        env: str,
        project: ProjectArgument = DEFAULT,
        stdin: AsyncInputSource | None = None,
        on_output: OnOutput | None = None,
        **settings: Unpack[RunSettings],
    ) -> RunResult:
        """Run code and wait for what comes of it; see `nsm.Client.run`.

        `on_output` is called in the task of this call. It must not block. `stdin` may be an
        asynchronous iterable, too; one that is not asynchronous must not block.
        """
        arguments = partial(
            operations.run_arguments,
            code,
            env=env,
            stream=on_output is not None,
            stdin=stdin is not None,
            inherit=self.server.inherit if self.server else (),
            **settings,
        )
        on_event = None if on_output is None else operations.output_to(on_output)
        call: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
        if stdin is None:
            call = partial(self.call, on_event=on_event)
        else:
            from nsm.client.async_standard_input import call_feeding  # noqa: PLC0415  # for few

            call = partial(call_feeding, self, source=stdin, on_event=on_event)
        steps = self.in_project("run", project, settings.get("project_mode"), arguments)
        return read(RunResult, await carry_out(steps, call))

    async def transcript(self, target: str) -> SessionTranscript:
        """The transcript of a session as a value; see `nsm.Client.transcript`."""
        from nsm.client import replays  # noqa: PLC0415  # few programs ask
        from nsm.transcripts.document import Gatherer  # noqa: PLC0415  # likewise

        gatherer = Gatherer()
        arguments = operations.logs_arguments(target, executions=None, follow=False)
        await self.call("logs", arguments, on_event=replays.gather(gatherer))
        return gatherer.transcript()

    async def replay(
        self,
        transcript: SessionTranscript,
        *,
        on_replayed: OnReplayed | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> ReplayReport:
        """Run the code of a transcript in a new session; see `nsm.Client.replay`.

        `on_replayed` is called in the task of this call. It must not block.
        """
        from nsm.client import replays  # noqa: PLC0415  # few programs replay

        operations.check_names(settings, replays.ReplaySettings)
        inherit = self.server.inherit if self.server else ()
        steps = replays.replay(self, transcript, settings, inherit=inherit, on_replayed=on_replayed)
        return await carry_out(steps, self.call)

    async def run_in(
        self,
        target: str,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code in a live session of any scope; see `nsm.Client.run_in` and `run`."""
        arguments = operations.run_in_arguments(
            target,
            code,
            timeout_s=timeout_s,
            execution_id=execution_id,
            stream=on_output is not None,
        )
        on_event = None if on_output is None else operations.output_to(on_output)
        return read(RunResult, await self.call("run_in", arguments, on_event=on_event))

    async def undo(self, target: str, calls: int = 1) -> RunResult:
        """Undo the last calls of a session; see `nsm.Client.undo`."""
        return read(RunResult, await self.call("undo", operations.undo_arguments(target, calls)))
