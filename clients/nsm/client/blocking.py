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

from typing import TYPE_CHECKING, TypeVar

from nsm.client.api import ClientMethods
from nsm.client.blocking_connection import BlockingWire
from nsm.client.projects import DEFAULT, project_of
from nsm.client.retry import hello
from nsm.client.steps import Blocking, carry_out
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start

if TYPE_CHECKING:
    import socket
    from typing import Any, Self, Unpack

    from nsm.client.projects import ProjectArgument
    from nsm.client.sandbox import Sandbox, SandboxSettings
    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.wire.messages import Hello

T = TypeVar("T")


class Client(ClientMethods, Blocking):
    """One connection to the supervisor, which is started where none listens.

    A connection that is lost, since the supervisor was killed or restarted, is opened again: a call
    of code that was under way gets its result all the same, once, if the session has outlived the
    supervisor. Where that can't be known, the error says so (`ResultLostError`,
    `FateUnknownError`).

    Threads may share it: their calls wait for each other, so code runs in parallel only if each
    thread has a client of its own. A process that is forked gets a connection of its own at its
    first call. Everything raised on purpose is an `NsmError` (with `code`,
    `message` and `hint`) or, for an unusable socket path, `nsm.paths.PathError`. Answers with an
    error leave the client usable, and so does an exception of a callback, which ends the call, in
    the session as well; `KeyboardInterrupt` in the middle of a call closes it.
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
            hello(
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
        """Introduction of the supervisor: its version, process id, our rights."""
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

    def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps."""
        return carry_out(steps, self._perform)

    def _perform(
        self,
        op: str,
        args: dict[str, Any],
        on_event: OnEvent | None,
        interruptible: bool,  # as in `Operation`
        stdin: InputSource | None,
    ) -> dict[str, Any]:
        if stdin is None:
            return self._wire.call(op, args, on_event, interruptible=interruptible)
        from nsm.client.standard_input import Feeder  # noqa: PLC0415  # few programs send input

        with Feeder(self._wire, stdin, on_event) as feed:
            return self._wire.call(op, args, feed, interruptible=interruptible)

    def _follow_reload(self) -> None:
        """Wait until the supervisor has become another program, and connect to that."""
        self._wire.follow_reload()

    def _follow_end(self) -> None:
        """Wait until the supervisor has ended, and close."""
        if self._wire.open:
            self._wire.wait_ended()
        self.close()
