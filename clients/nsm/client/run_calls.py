"""Code that runs in sessions: the part of `nsm.Client` that sends it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nsm.client import operations
from nsm.client.projects import DEFAULT, ProjectCalls
from nsm.client.steps import Calls, carry_out
from nsm.wire.answers import read
from nsm.wire.results import RunResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any, Unpack

    from nsm.client.blocking_connection import BlockingWire
    from nsm.client.operations import OnOutput, RunSettings
    from nsm.client.projects import ProjectArgument
    from nsm.client.replays import OnReplayed, ReplayReport, ReplaySettings
    from nsm.client.standard_input import InputSource
    from nsm.transcripts.document import SessionTranscript
    from nsm.wire.messages import Event, Hello


class RunCalls(Calls, ProjectCalls):
    """Calls that run code. `nsm.Client` is one of these."""

    _wire: BlockingWire

    @property
    def server(self) -> Hello:
        """Facts about the supervisor. `nsm.Client` has them."""
        raise NotImplementedError

    def run(
        self,
        code: str,
        *,
        env: str,
        project: ProjectArgument = DEFAULT,
        stdin: InputSource | None = None,
        on_output: OnOutput | None = None,
        **settings: Unpack[RunSettings],
    ) -> RunResult:
        """Run code and wait for what comes of it.

        Ctrl-C (in the main thread, with Python's own handler) interrupts the code; the call returns
        its result, with ``interrupted`` set. A second one raises `KeyboardInterrupt`.

        Example::

            with nsm.Client() as client:
                result = client.run(
                    "for i in range(3): print(i)",
                    env="python",
                    on_output=lambda stream, text: print(stream, text, end=""),
                )
                assert result.exit_code == 0

        Args:
            env: the environment's name, e.g. ``python``, ``bash``, ``node``.
            session: where state is kept; None for a fresh jail that is thrown away, ``new`` for a
                session under a fresh name (``result.session.name``).
            timeout_s: seconds; None for the environment's limit.
            execution_id: to ask for the result again; None to have one made.
            project: directory that the code sees at `mount_point` (``/project``); None for none.
                The default is the client's.
            project_mode: ``readonly``, or ``overlay``: code may change a copy of its session's own.
            network: network of a new session: ``off``, ``full``, or hosts separated by commas
                (docs/how-to/network.md); None for the configured one.
            secrets: names of the secrets of a new session (docs/how-to/secrets.md); None for the
                configured ones.
            reset: run the code in a fresh interpreter of the session. State and background
                processes are gone, files stay.
            must_exist: fail where there is no such session, rather than make one.
            stdin: standard input of the code: bytes, a binary file, or an iterable of bytes, of
                which it may leave some unread. A file with a descriptor is read from that. An
                iterable runs in a thread of its own. What either raises cancels the run. Without,
                standard input is empty.
            on_output: called with ``stdout`` or ``stderr`` and text while the code runs: a preview
                of the result's own text. What it raises cancels the run.

        Raises:
            NsmError: the code could not be run; its subclasses say why. Code that fails is no
                error: see ``exit_code``.
        """
        arguments = partial(
            operations.run_arguments,
            code,
            env=env,
            stream=on_output is not None,
            stdin=stdin is not None,
            inherit=self.server.inherit,
            **settings,
        )
        on_event = None if on_output is None else operations.output_to(on_output)
        steps = self.in_project("run", project, settings.get("project_mode"), arguments)
        if stdin is None:
            call = partial(self.call, on_event=on_event, interruptible=True)
            return read(RunResult, carry_out(steps, call))
        with self.feeding(stdin, on_event) as feed:
            call = partial(self.call, on_event=feed, interruptible=True)
            return read(RunResult, carry_out(steps, call))

    def transcript(self, target: str) -> SessionTranscript:
        """The transcript of a session, live or ended, as a value for `replay`.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no session is meant, or several.
        """
        from nsm.client import replays  # noqa: PLC0415  # few programs ask
        from nsm.transcripts.document import Gatherer  # noqa: PLC0415  # likewise

        gatherer = Gatherer()
        arguments = operations.logs_arguments(target, executions=None, follow=False)
        self.call("logs", arguments, on_event=replays.gather(gatherer))
        return gatherer.transcript()

    def replay(
        self,
        transcript: SessionTranscript,
        *,
        on_replayed: OnReplayed | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> ReplayReport:
        """Run the code of a transcript in a new session, and compare what comes of it.

        Ctrl-C interrupts the code that runs and ends the replay; its report says so.

        Example::

            with nsm.Client() as client:
                client.run("print(6 * 7)", env="python", session="work")
                report = client.replay(client.transcript("work"), on_replayed=print)
                assert report.agrees

        Args:
            transcript: from `transcript`, or from a file (`nsm.read_transcript`).
            on_replayed: called with each execution.
            env: environment; None for the recorded one, which for a file must be a preset.
            until: number of the last execution to replay; None for all.
            name: name of the new session, which is then kept.
            keep: keep the new session, even if it has no name of its own.
            strict: leave no numbers out of the comparison.
            project, project_mode, network: as in `run`. The default is that of the recorded session
                if it still lives, else the client's project and no network.

        Raises:
            NsmError: it could not be replayed to its end; the message says why.
        """
        from nsm.client import replays  # noqa: PLC0415  # few programs replay

        def call(op: str, args: dict[str, Any]) -> dict[str, Any]:
            return self.call(op, args, interruptible=op == "run")

        operations.check_names(settings, replays.ReplaySettings)
        steps = replays.replay(
            self, transcript, settings, inherit=self.server.inherit, on_replayed=on_replayed
        )
        return carry_out(steps, call)

    def run_in(
        self,
        target: str,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code in a live session of any scope; the rest is as in `run`.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no live session is meant, or several.
        """
        arguments = operations.run_in_arguments(
            target,
            code,
            timeout_s=timeout_s,
            execution_id=execution_id,
            stream=on_output is not None,
        )
        on_event = None if on_output is None else operations.output_to(on_output)
        wire = self.call("run_in", arguments, on_event=on_event, interruptible=True)
        return read(RunResult, wire)

    def undo(self, target: str, calls: int = 1) -> RunResult:
        """Undo the last calls of a session: variables, working directory and files go back.

        Returns:
            What was undone. If nothing was, because the state is not kept, its ``exit_code`` is 1,
            and ``stderr`` says why.

        Raises:
            NsmError: undo is turned off, code runs in the session, or there is no such session.
        """
        return read(RunResult, self.call("undo", operations.undo_arguments(target, calls)))

    def feeding(
        self, source: InputSource, on_event: Callable[[Event], object] | None
    ) -> AbstractContextManager[Callable[[Event], object]]:
        """Send input to the code that a call runs, while the block lasts.

        Args:
            on_event: called with the events of the call that are not about input.

        Returns:
            The block's value: what the call has to call with its events.

        Raises:
            UnknownOperationError: the supervisor is too old.
        """
        from nsm.client.standard_input import Feeder  # noqa: PLC0415  # few programs send input

        return Feeder(self._wire, source, on_event)
