"""The methods of both clients, each written once.

What only a few programs ask for is imported by the method that needs it: `nsm ps` must not pay
for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nsm.client import events
from nsm.client.places import DEFAULT, ProjectCalls
from nsm.client.steps import SyncOrAsync, ask, handle_method, method
from nsm.client.supervisor import SupervisorMethods
from nsm.wire.messages import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from nsm.client.events import OnEntry, OnOutput
    from nsm.client.fresh import AsyncFreshMap, FreshMap, MapSettings
    from nsm.client.jobs import AsyncJob, Job, JobSettings
    from nsm.client.places import Project, ProjectArgument, RunSettings
    from nsm.client.replays import OnReplayed, ReplayReport, ReplaySettings
    from nsm.client.session_files import AsyncSessionFiles, SessionFiles
    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.transcripts.document import SessionTranscript
    from nsm.wire.code import RunResult
    from nsm.wire.errors import NsmError
    from nsm.wire.fresh import FreshProgram
    from nsm.wire.inspection import Inspection, NetworkReport
    from nsm.wire.jobs import JobInfo
    from nsm.wire.messages import Hello
    from nsm.wire.operation import OperationCall
    from nsm.wire.sessions import Check, Completions, ForkReport, KillReport, SessionRow
    from nsm.wire.transcripts import EndedRow, LogEnd

NetworkAction: TypeAlias = Literal["list", "allow", "deny", "off"]


class ClientMethods(SupervisorMethods, ProjectCalls):
    """Methods of `nsm.Client` and `nsm.AsyncClient`."""

    leases: set[str]

    @property
    def server(self) -> Hello:
        """Introduction of the supervisor: its version, process id, our rights."""
        raise NotImplementedError

    # Code.

    @method
    def run(
        self,
        code: str,
        *,
        env: str,
        project: ProjectArgument = DEFAULT,
        stdin: InputSource | None = None,
        on_output: OnOutput | None = None,
        **settings: Unpack[RunSettings],
    ) -> Steps[RunResult]:
        """Run code and wait for what comes of it.

        Ctrl-C (in the main thread, with Python's own handler) interrupts the code; the call returns
        its result, with ``interrupted`` set. A second one raises `KeyboardInterrupt`. With
        `nsm.AsyncClient`, cancelling the call interrupts the code.

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
            secrets: names of the secrets of a new session (docs/how-to/network.md); None for the
                configured ones.
            reset: run the code in a fresh interpreter of the session. State and background
                processes are gone, files stay.
            fresh: run the code in a fresh interpreter of the session, as one program of `map`, and
                without `stdin`, `on_output`, `execution_id` and `reset`.
            must_exist: fail where there is no such session, rather than make one.
            stdin: standard input of the code: bytes, a binary file, or an iterable of bytes, of
                which it may leave some unread. A file with a descriptor is read from that. An
                iterable runs in a thread of its own; with `nsm.AsyncClient` in the task of this
                call, and it may be an asynchronous one. What either raises cancels the run.
                Without, standard input is empty.
            on_output: called with ``stdout`` or ``stderr`` and text while the code runs: a preview
                of the result's own text. What it raises cancels the run.

        Raises:
            NsmError: the code could not be run; its subclasses say why. Code that fails is no
                error: see ``exit_code``.
        """
        from nsm.client import places
        from nsm.wire.code import RunOptions, run
        from nsm.wire.fresh import run_fresh

        places.check_names(settings, places.RunSettings)
        checked = places.checked_code(code)
        reset = settings.get("reset", False)
        mode = settings.get("project_mode")
        if settings.get("fresh"):
            places.check_fresh(settings, stdin is not None or on_output is not None)
        options = RunOptions(
            settings.get("timeout_s"),
            settings.get("execution_id"),
            stream=on_output is not None,
            stdin=stdin is not None,
        )

        def call(seen: Project) -> OperationCall[RunResult]:
            place = places.place_of(
                seen,
                env=env,
                session=settings.get("session"),
                mount_point=settings.get("mount_point"),
                project_mode=mode,
                network=settings.get("network"),
                secrets=settings.get("secrets"),
                must_exist=settings.get("must_exist", False),
                inherit=self.server.inherit,
            )
            if settings.get("fresh"):
                return run_fresh(place, options, checked)
            return run(place, options, checked, reset=reset)

        hear = None if on_output is None else events.output_to(on_output)
        return (
            yield from self.in_project(project, mode, call, hear, interruptible=True, stdin=stdin)
        )

    @method
    def map(
        self,
        programs: Iterable[str | FreshProgram | NsmError],
        *,
        session: str,
        at_once: int | None = None,
        in_order: bool = False,
        **settings: Unpack[MapSettings],
    ) -> Steps[SyncOrAsync[FreshMap, AsyncFreshMap]]:
        """Run programs in a session, each in a fresh interpreter, and iterate over their results.

        Each program has a process of its own in which no other code has run, an empty working
        directory, and its own output, time limit and exit code. It ends with all that it has
        started. Programs share the session's files, network and limits, and can disturb each other
        if they want to: run programs of one owner in one session.

        Programs are taken from the iterable as others end. Leaving a ``with`` block ends those that
        run.

        Example::

            with nsm.Client() as client:
                programs = (f"print({number} ** 2)" for number in range(10_000))
                for result in client.map(programs, session="grader", env="python"):
                    print(result.number, result.stdout, end="")

        Args:
            programs: code, or `nsm.FreshProgram` with a time limit or arguments of its own. An
                error in its place becomes its result.
            session: its name; it is made where there is none.
            at_once: number of programs that run at the same time, at most 64; None for as many as
                there are processors.
            in_order: results in the order of the programs, rather than of their ends.
            timeout_s: limit for each program that has none; None for the environment's.
            env, project, network, secrets, ...: as in `run`.

        Raises:
            NsmError: the session cannot be used. A program that cannot be run is no error: see
                `nsm.FreshResult.error`.
        """
        from nsm.client import fresh

        opened = yield from fresh.open_session(
            self, session, at_once, settings, self.server.inherit
        )
        results = self._choose(fresh.FreshMap, fresh.AsyncFreshMap)(self)
        either: Any = results
        either.begin(opened, programs, settings.get("timeout_s"), in_order=in_order)
        return results

    @method
    def run_in(
        self,
        target: str,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> Steps[RunResult]:
        """Run code in a live session of any scope; the rest is as in `run`.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no live session is meant, or several.
        """
        from nsm.client import places
        from nsm.wire.code import RunOptions, run_in

        options = RunOptions(timeout_s, execution_id, stream=on_output is not None)
        call = run_in(target, options, places.checked_code(code))
        hear = None if on_output is None else events.output_to(on_output)
        return (yield from ask(call, hear, interruptible=True))

    @method
    def undo(self, target: str, calls: int = 1) -> Steps[RunResult]:
        """Undo the last calls of a session: variables, working directory and files go back.

        Returns:
            What was undone. If nothing was, because the state is not kept, its ``exit_code`` is 1,
            and ``stderr`` says why.

        Raises:
            NsmError: undo is turned off, code runs in the session, or there is no such session.
        """
        from nsm.wire.code import RunOptions, undo

        return (yield from ask(undo(target, RunOptions(), calls)))

    @method
    def result(self, execution_id: str) -> Steps[RunResult]:
        """The result of an execution, once more or still to come.

        Raises:
            UnknownExecutionError: it was never run, or too long ago.
        """
        from nsm.wire.code import result

        return (yield from ask(result(execution_id), interruptible=True))

    @method
    def transcript(self, target: str) -> Steps[SessionTranscript]:
        """The transcript of a session, live or ended, as a value for `replay`.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no session is meant, or several.
        """
        from nsm.transcripts.document import Gatherer
        from nsm.wire.code import logs

        gatherer = Gatherer()
        yield from ask(logs(target), events.entries_to(gatherer.take))
        return gatherer.transcript()

    @method
    def replay(
        self,
        transcript: SessionTranscript,
        *,
        on_replayed: OnReplayed | None = None,
        **settings: Unpack[ReplaySettings],
    ) -> Steps[ReplayReport]:
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
            project, project_mode, network: as in `run`. The default is that of the recorded session
                if it still lives, else the client's project and no network.

        Raises:
            NsmError: it could not be replayed to its end; the message says why.
        """
        from nsm.client import places, replays

        places.check_names(settings, replays.ReplaySettings)
        return (
            yield from replays.replay(
                self, transcript, settings, inherit=self.server.inherit, on_replayed=on_replayed
            )
        )

    # Sessions.

    @method
    def sessions(self) -> Steps[list[SessionRow]]:
        """All live sessions, of every scope."""
        rows: list[object] = []
        answer = yield "sessions", {"stream": True}, events.rows_to(rows), False, None
        return events.rows_of(rows, answer)

    @method
    def ended_sessions(self) -> Steps[list[EndedRow]]:
        """Sessions that are over and whose transcripts are kept, the newest last."""
        from nsm.wire.transcripts import EndedRow

        answer = yield "sessions", {"all": True, "stream": True}, None, False, None
        return read(list[EndedRow], answer, "ended")

    # One session, whoever it belongs to. A target is an id, a name or ``scope/name``.

    @method
    def logs(
        self,
        target: str,
        *,
        executions: int | None = None,
        follow: bool = False,
        on_entry: OnEntry,
    ) -> Steps[LogEnd]:
        """Read the transcript of a session, live or ended.

        Args:
            executions: only that many of the last ones; None for all that are kept.
            follow: wait for what comes until the session ends. Ctrl-C ends the waiting.
            on_entry: called with each entry (`nsm.wire.transcripts.Entry`). While it takes its
                time, output may be left out, which the next piece's `skipped` says. What it raises
                ends the call.

        Returns:
            The session's state at the end, and why it ended.

        Raises:
            UnknownSessionError, AmbiguousSessionError: no session is meant, or several.
        """
        from nsm.wire.code import logs
        from nsm.wire.transcripts import LogEnd

        call = logs(target, executions=executions, follow=follow)
        hear = events.entries_to(on_entry)
        return read(LogEnd, (yield from ask(call, hear, interruptible=True)))

    @method
    def complete(self, target: str, code: str, cursor: int) -> Steps[Completions]:
        """Complete code at a place, from the session's live names.

        Args:
            cursor: the place, in characters (code points) from the beginning of `code`.
        """
        from nsm.wire.code import complete

        return (yield from ask(complete(target, code, cursor)))

    @method
    def check(self, target: str, code: str) -> Steps[Check]:
        """Check whether code is complete, in a session of Node; others answer ``unknown``."""
        from nsm.wire.code import check

        return (yield from ask(check(target, code)))

    @method
    def kill(self, targets: str | Iterable[str]) -> Steps[KillReport]:
        """End sessions by id, name or ``scope/name``; the report says which could not be found."""
        from nsm.wire.code import kill

        return (yield from ask(kill((targets,) if isinstance(targets, str) else tuple(targets))))

    @method
    def kill_all(self) -> Steps[KillReport]:
        """End every session."""
        from nsm.wire.code import kill

        return (yield from ask(kill(all=True)))

    @method
    def kill_labelled(self, labels: Mapping[str, str]) -> Steps[KillReport]:
        """End the sessions that have all these labels."""
        from nsm.wire.code import kill

        return (yield from ask(kill(labels=dict(labels))))

    @method
    def kill_idle(self, idle_s: float) -> Steps[KillReport]:
        """End the sessions that have been idle for `idle_s` seconds or longer."""
        from nsm.wire.code import kill

        return (yield from ask(kill(idle_s=idle_s)))

    @method
    def fork(self, target: str, *names: str, count: int | None = None) -> Steps[ForkReport]:
        """Fork a running Python or Bash session; the forks have its variables and files.

        Args:
            target: id, name or ``scope/name``.
            names: names of the forks; those that are missing are made up.
            count: number of forks; default as many as names, one at least.

        Raises:
            ForkRefusedError: it cannot be forked; it goes on as before.
        """
        from nsm.wire.code import session_fork

        return (yield from ask(session_fork(target, names, count)))

    @method
    def interrupt(self, target: str, execution_id: str | None = None) -> Steps[bool]:
        """Interrupt what runs in a session; False when nothing did.

        Args:
            execution_id: interrupt only this one, which may also still wait for others.
        """
        from nsm.wire.code import interrupt

        return read(bool, (yield from ask(interrupt(target, execution_id))), "interrupted")

    @method
    def inspect(self, target: str) -> Steps[Inspection]:
        """The rules of a live session, and what the kernel says of its jail."""
        from nsm.wire.inspection import inspect

        return (yield from ask(inspect(target)))

    @method
    def network(
        self, target: str, action: NetworkAction = "list", hosts: Iterable[str] = ()
    ) -> Steps[NetworkReport]:
        """Show the hosts that a live session may reach, after a change if one is asked for.

        Args:
            action: ``allow`` and ``deny`` take hosts, as patterns (docs/how-to/network.md):
                ``deny`` takes patterns away. ``off`` takes all away.
        """
        from nsm.wire.inspection import net

        return (yield from ask(net(target, action, tuple(hosts))))

    @handle_method
    def files(self, session: str) -> SyncOrAsync[SessionFiles, AsyncSessionFiles]:
        """Files of a live session: list, read, write, remove, copy directories and more.

        Args:
            session: an id or a name.
        """
        from nsm.client.session_files import AsyncSessionFiles, SessionFiles

        return self._choose(SessionFiles, AsyncSessionFiles)(self, session)

    # Programs in sessions.

    @method
    def exec(
        self, session: str, argv: Sequence[str], **settings: Unpack[JobSettings]
    ) -> Steps[SyncOrAsync[Job, AsyncJob]]:
        """Start a program in a session, beside its interpreter.

        It is the session's: it runs on when this client or the supervisor ends, and ends with the
        session. If the call is cancelled, it may have been started.

        Example::

            with nsm.Client() as client:
                result = client.exec("work", ["ls", "-l"], env="bash").collect()
                assert result.exit_code == 0

        Args:
            session: its name; it is made where there is none. ``new`` for a fresh name.
            argv: the program and its arguments. No shell sees them; for a line of shell, use
                ``["sh", "-c", line]``.
            env: environment of a new session; empty for the configured one, or else ``bash``.
            cwd: working directory in the session; relative to its workspace, which is the default.
            environ: variables besides the session's.
            stdin: the program's whole input, of which it may leave some unread; or True to
                `Job.write` it; without, it is empty.
            tty: rows and columns of a terminal for it; without, it has pipes.
            timeout_s: seconds until it is stopped; None for no limit.
            wait_s: seconds to wait, at most one, for its first output or its end. What comes then
                needs no other exchange, which makes short programs faster.
            project, mount_point, project_mode, network, secrets, must_exist: as in `run`.

        Raises:
            JobError: the program cannot be started; the message says why.
            NsmError: there is no such session, and none could be made.
        """
        from nsm.client import jobs

        started = yield from jobs.start(self, session, argv, settings, self.server.inherit)
        job = self._choose(jobs.Job, jobs.AsyncJob)(self, started.session.id, started.job, started)
        stdin = settings.get("stdin")
        if isinstance(stdin, bytes) and stdin:
            yield from jobs.JobMethods.feed.steps(job, stdin)
        return job

    @method
    def job(self, session: str, job_id: str) -> Steps[SyncOrAsync[Job, AsyncJob]]:
        """The handle of a job that somebody has started.

        Args:
            session: an id, a name or ``scope/name``.

        Raises:
            UnknownJobError: the session has no such job.
        """
        from nsm.client.jobs import AsyncJob, Job
        from nsm.wire.jobs import job_read

        found = yield from ask(job_read(session, job_id, bytes=0))
        return self._choose(Job, AsyncJob)(self, session, found.job)

    @method
    def jobs(self, session: str) -> Steps[list[JobInfo]]:
        """The jobs of a session that run, and the last ones that have ended, oldest first."""
        from nsm.wire.jobs import job_list

        return (yield from ask(job_list(session)))

    @method
    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        *,
        on_event: OnEvent | None = None,
        interruptible: bool = False,
        stdin: InputSource | None = None,
    ) -> Steps[dict[str, Any]]:
        """Any operation, by its name and arguments on the wire (docs/reference/control-socket.md).

        Args:
            on_event: called with what comes before the answer.
            interruptible: Ctrl-C asks the supervisor to cancel, as in `run`.
            stdin: standard input of code that it runs, as in `run`.

        Raises:
            NsmError: what the supervisor answered.
        """
        return (yield op, args or {}, on_event, interruptible, stdin)
