"""The blocking client: sessions for programs that use neither MCP nor async code.

Example::

    import nsm

    with nsm.Client() as client:
        client.run("n = 6", env="python", session="demo")
        result = client.run("print(n * 7)", env="python", session="demo", timeout_s=5)
        assert result.stdout == "42\\n"
        client.kill(["demo"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client import operations
from nsm.client.blocking_connection import BlockingWire
from nsm.client.file_calls import FileCalls
from nsm.client.job_calls import JobCalls
from nsm.client.projects import DEFAULT, project_of
from nsm.client.run_calls import RunCalls
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start
from nsm.wire.answers import read
from nsm.wire.errors import DisconnectedError
from nsm.wire.live import ForkReport, KillReport, SessionRow
from nsm.wire.results import RunResult

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Self, Unpack

    from nsm.client.boxes import Boxes
    from nsm.client.bridge import Bridge
    from nsm.client.builds import Builds
    from nsm.client.operations import NetworkAction, OnEntry
    from nsm.client.ports import Ports
    from nsm.client.project_environments import ProjectEnvironments
    from nsm.client.projects import ProjectArgument
    from nsm.client.sandbox import Sandbox, SandboxSettings
    from nsm.client.secrets import Secrets
    from nsm.wire.drain import DrainReport, OnDrain
    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.inspection import Inspection
    from nsm.wire.messages import Event, Hello
    from nsm.wire.network import NetworkReport
    from nsm.wire.pool import PoolReport
    from nsm.wire.reload import OnReload
    from nsm.wire.sessions import Check, Completions
    from nsm.wire.status import Status
    from nsm.wire.transcripts import EndedRow, LogEnd


class Client(FileCalls, JobCalls, RunCalls):
    """One connection to the supervisor, which is started where none listens.

    A connection that is lost, since the supervisor was killed or restarted, is opened again: a call
    of code that was under way gets its result all the same, once, if the session has outlived the
    supervisor. Where that can't be known, the error says so (`ResultLostError`,
    `FateUnknownError`).

    Threads may share it: their calls wait for each other, so code runs in parallel only if each
    thread has a client of its own. A process that is forked gets a connection of its own at its
    first call. Everything raised on purpose is an `NsmError` (with `code`,
    `message` and `hint`) or, for an unusable socket path, `nsm.paths.PathError`. Answers with an
    error leave the client usable; any other exception in the middle of a call, such as
    `KeyboardInterrupt` or what a callback raises, closes it.
    """

    def __init__(
        self,
        *,
        scope: str = "cli",
        autostart: bool = True,
        reconnect: bool = True,
        socket_path: str | None = None,
        host: str | None = None,
        name: str = "nsm",
        project: ProjectArgument = DEFAULT,
        connection: socket.socket | None = None,
    ) -> None:
        """Connect.

        Args:
            scope: name space of session names; clients of one scope share their sessions. The
                default is the command line's, in which each project has names of its own.
            autostart: start a supervisor where none listens.
            reconnect: connect again after a lost connection; not after one that was given.
            socket_path: absolute; None for the usual one (`nsm.paths.socket_path`).
            host: another machine, whose sessions they are: ``ssh://user@host:port``, or a name in
                ``[hosts]`` of config.toml. None for ``NSM_HOST``, and this machine where that is
                not set; empty for this machine.
            name: the program, for `nsm ps`.
            project: directory that code sees; None for none. The default is the current
                directory, unless it is your home directory, one above it, or one that nsm refuses.
            connection: a stream socket that leads to a supervisor already, in place of a path; it
                is closed with the client.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
            HostError: the host cannot be used; the message says why.
        """
        self._host = "" if socket_path is not None or connection is not None else host
        self._project = project_of(project, self._host)
        path = None
        if connection is None:
            path = socket_path or client_socket(self._host)
            connection = start.connect(path, autostart=autostart, again=not reconnect)
            self.far_socket = path if leads_elsewhere(path) else None
        self._wire = BlockingWire(
            connection,
            operations.hello(
                name=name,
                scope=scope,
                project=self._project.path,
                path=path if reconnect else None,
            ),
            path=path if reconnect else None,
            autostart=autostart,
        )
        self.leases = self._wire.leases

    @property
    def server(self) -> Hello:
        """How the supervisor introduced itself: its version, process id, our rights."""
        return self._wire.server

    @property
    def autostart(self) -> bool:
        """Start a supervisor where none listens, when a lost connection is opened again."""
        return self._wire.autostart

    @autostart.setter
    def autostart(self, wanted: bool) -> None:
        self._wire.autostart = wanted

    def __repr__(self) -> str:
        state = "open" if self._wire.open else "closed"
        return f"<nsm.Client {state} supervisor={self.server.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. One-shot runs of it end, named sessions stay."""
        self._wire.close()

    def sandbox(self, **settings: Unpack[SandboxSettings]) -> Sandbox:
        """Make a session with settings of its own, which ends with the block.

        Example::

            with nsm.Client() as client:
                with client.sandbox(files={"in.txt": "6"}, labels={"batch": "7"}) as sandbox:
                    result = sandbox.run("print(int(open('in.txt').read()) * 7)")
                    assert result.stdout == "42\\n"

        Args:
            env: the environment's name, which is also that of its interpreter.
            name: name of the session; None for a fresh one.
            project, project_mode, network, secrets: as in `run`.
            memory_mb: memory limit, MiB: at most that of the environment.
            idle_s: seconds without use after which it ends by itself: at most what is configured.
            environ: variables for all that runs in it.
            files: contents by path, to be there when it begins.
            labels: up to 16 names and values, for `nsm ps --label` and `nsm kill --label`.
            ends_with_client: it ends when this client's connection does, also if this process is
                killed.

        Raises:
            NsmError: it can't be made; the message says why.
        """
        from nsm.client.sandbox import Sandbox  # noqa: PLC0415  # few programs ask

        return Sandbox(self, settings)

    def result(self, execution_id: str) -> RunResult:
        """The result of an execution, once more or still to come.

        Raises:
            UnknownExecutionError: it was never run, or too long ago.
        """
        wire = self.call("result", {"execution_id": execution_id}, interruptible=True)
        return read(RunResult, wire)

    def sessions(self) -> list[SessionRow]:
        """All live sessions, of every scope."""
        rows: list[object] = []
        on_event = operations.rows_to(rows)
        wire = self.call("sessions", {"stream": True}, on_event=on_event)
        return operations.rows_of(rows, wire)

    def ended_sessions(self) -> list[EndedRow]:
        """Sessions that are over and whose transcripts are kept, the newest last."""
        from nsm.wire.transcripts import EndedRow  # noqa: PLC0415  # `nsm ps` does without

        wire = self.call("sessions", {"all": True, "stream": True})
        return read(list[EndedRow], wire, "ended")

    # One session, whoever it belongs to. A target is an id, a name or ``scope/name``.

    def logs(
        self,
        target: str,
        *,
        executions: int | None = None,
        follow: bool = False,
        on_entry: OnEntry,
    ) -> LogEnd:
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
        from nsm.wire.transcripts import LogEnd  # noqa: PLC0415  # few programs read logs

        arguments = operations.logs_arguments(target, executions=executions, follow=follow)
        on_event = operations.entries_to(on_entry)
        return read(LogEnd, self.call("logs", arguments, on_event=on_event, interruptible=True))

    def complete(self, target: str, code: str, cursor: int) -> Completions:
        """Complete code at a place, from the session's live names.

        Args:
            cursor: the place, in characters (code points) from the beginning of `code`.
        """
        from nsm.wire.sessions import Completions  # noqa: PLC0415  # for prompts only

        arguments = {"target": target, "code": code, "cursor": cursor}
        return read(Completions, self.call("complete", arguments))

    def check(self, target: str, code: str) -> Check:
        """Check whether code is complete for the session's interpreter."""
        from nsm.wire.sessions import Check  # noqa: PLC0415  # for prompts only

        return read(Check, self.call("check", {"target": target, "code": code}))

    def kill(self, targets: str | Iterable[str]) -> KillReport:
        """End sessions by id, name or ``scope/name``; the report says which could not be found."""
        return read(KillReport, self.call("kill", operations.kill_arguments(targets)))

    def kill_all(self) -> KillReport:
        """End every session."""
        return read(KillReport, self.call("kill", {"all": True}))

    def kill_labelled(self, labels: Mapping[str, str]) -> KillReport:
        """End the sessions that have all these labels."""
        return read(KillReport, self.call("kill", {"labels": dict(labels)}))

    def kill_idle(self, idle_s: float) -> KillReport:
        """End the sessions that have been idle for `idle_s` seconds or longer."""
        return read(KillReport, self.call("kill", {"idle_s": idle_s}))

    def fork(self, target: str, *names: str, count: int | None = None) -> ForkReport:
        """Fork a running Python or Bash session; the forks have its variables and files.

        Args:
            target: id, name or ``scope/name``.
            names: names of the forks; those that are missing are made up.
            count: number of forks; default as many as names, one at least.

        Raises:
            ForkRefusedError: it cannot be forked; it goes on as before.
        """
        arguments = operations.fork_arguments(target, names, count)
        return read(ForkReport, self.call("session_fork", arguments))

    def interrupt(self, target: str) -> bool:
        """Interrupt what runs in a session; False when nothing did."""
        return read(bool, self.call("interrupt", {"target": target}), "interrupted")

    def envs(self, *, preload: bool = False) -> list[EnvironmentRow]:
        """The environments, those that cannot be used included.

        Args:
            preload: first find out which modules cannot be preloaded, which may take seconds.
        """
        from nsm.wire.environments import EnvironmentRow  # noqa: PLC0415  # `nsm ps` does without

        wire = self.call("envs", {"preload": True} if preload else None)
        return read(list[EnvironmentRow], wire, "environments")

    @property
    def boxes(self) -> Boxes:
        """Agents in boxes."""
        from nsm.client.boxes import Boxes  # noqa: PLC0415  # few programs ask

        return Boxes(self)

    @property
    def ports(self) -> Ports:
        """Ports of sessions that are open on the host."""
        from nsm.client.ports import Ports  # noqa: PLC0415  # few programs ask

        return Ports(self)

    @property
    def secrets(self) -> Secrets:
        """Secrets that sessions and boxes use without seeing them."""
        from nsm.client.secrets import Secrets  # noqa: PLC0415  # few programs ask

        return Secrets(self)

    @property
    def bridge(self) -> Bridge:
        """Programs of the host that nsm starts for its clients."""
        from nsm.client.bridge import Bridge  # noqa: PLC0415  # few programs ask

        return Bridge(self)

    @property
    def builds(self) -> Builds:
        """Environments that nsm builds, with Nix or from packages."""
        from nsm.client.builds import Builds  # noqa: PLC0415  # few programs ask

        return Builds(self)

    @property
    def project_environments(self) -> ProjectEnvironments:
        """Environments that belong to the client's project, such as its `.venv`."""
        from nsm.client.project_environments import (  # noqa: PLC0415  # few programs ask
            ProjectEnvironments,
        )

        return ProjectEnvironments(self, self._project.path)

    def inspect(self, target: str) -> Inspection:
        """The rules of a live session, and what the kernel says of its jail."""
        from nsm.wire.inspection import Inspection  # noqa: PLC0415  # few programs ask

        return read(Inspection, self.call("inspect", {"target": target}))

    def network(
        self, target: str, action: NetworkAction = "list", hosts: Iterable[str] = ()
    ) -> NetworkReport:
        """Show the hosts that a live session may reach, after a change if one is asked for.

        Args:
            action: ``allow`` and ``deny`` take hosts, as patterns (docs/how-to/network.md):
            ``deny`` takes
                patterns away. ``off`` takes all away.
        """
        from nsm.wire.network import NetworkReport  # noqa: PLC0415  # few programs ask

        arguments = {"target": target, "action": action, "hosts": list(hosts)}
        return read(NetworkReport, self.call("net", arguments))

    def pool(self) -> PoolReport:
        """The sessions that are kept ready, how many there should be, and why."""
        from nsm.wire.pool import PoolReport  # noqa: PLC0415  # few programs ask

        return read(PoolReport, self.call("pool"))

    def status(self) -> Status:
        """The supervisor's version, uptime, counts."""
        from nsm.wire.status import read_status  # noqa: PLC0415  # `nsm ps` does without

        return read_status(self.call("status"))

    def ping(self) -> None:
        """Return when the supervisor has answered."""
        self.call("ping")

    def drain(
        self, *, timeout_s: float | None = None, on_progress: OnDrain | None = None
    ) -> DrainReport:
        """Have nothing new begun, and return when nothing runs any more; sessions stay.

        Ctrl-C ends the waiting, and not the drain.

        Args:
            timeout_s: until what still runs is interrupted; None for no such time.
            on_progress: called every second or so.
        """
        from nsm.wire import drain  # noqa: PLC0415  # few programs ask

        wire = self.call(
            "drain",
            drain.drain_arguments(timeout_s),
            on_event=drain.progress_to(on_progress),
            interruptible=True,
        )
        return read(drain.DrainReport, wire)

    def undrain(self) -> DrainReport:
        """Take back a drain: new work is taken again."""
        from nsm.wire.drain import DrainReport  # noqa: PLC0415  # few programs ask

        return read(DrainReport, self.call("drain", {"cancel": True}))

    def reload(self, on_wait: OnReload | None = None, *, force: bool = False) -> None:
        """Have the supervisor become the program that is installed now, with all sessions.

        Returns when it answers again, and the client is connected to it.

        Args:
            on_wait: is told, where programs of the bridge run, which ones the supervisor waits for
                first, and how long.
            force: end the sessions that the program cannot take over.

        Raises:
            StartFailedError: that program would not start, or cannot take over some sessions; the
                supervisor goes on as it is.
        """
        from nsm.wire import reload  # noqa: PLC0415  # few programs ask

        reload.tell(self.call("reload", {"force": force}), on_wait)
        self._wire.follow_reload()

    def shutdown(self) -> None:
        """End the supervisor and all sessions; returns when it has closed this connection."""
        try:
            self.call("shutdown")
        except (DisconnectedError, ConnectionError):
            self.close()
            return
        self._wire.wait_ended()

    def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
        interruptible: bool = False,
    ) -> dict[str, Any]:
        """Any operation, by its name and arguments on the wire (docs/reference/control-socket.md).

        Args:
            on_event: called with what comes before the answer.
            interruptible: Ctrl-C asks the supervisor to cancel, as in `run`.

        Raises:
            NsmError: what the supervisor answered.
        """
        return self._wire.call(op, args or {}, on_event, interruptible=interruptible)
