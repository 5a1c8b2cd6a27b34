"""The fork server, as the supervisor starts, asks and ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import trio

import sandbox
from nsmd.host.monitors.monitored import PACKAGES

_START = (
    "import os, sys; sys.path += os.read(0, 65536).decode().split(':'); "
    "from nsmd.sessions.forking.fork_server import main; main()"
)
"""The paths of the packages are a message, as sessions can read the command of their PID 1."""

_PATHS = f"{PACKAGES}:{os.path.dirname(os.path.dirname(str(sandbox.__file__)))}"


class Helpers:
    """Helpers that fork sessions, one for each request; a fork server forks them.

    Attributes:
        turn: held during a request. The limits of namespaces are lifted only then, and the
            namespaces of a fork count against the limits of all sessions that it is a fork of.

    Resources:
        A process and a socket from the first request on, until `close`.
    """

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Helpers server={self._server and self._server.pid}>"

    def ask(self) -> socket.socket:
        """Return a socket to a new helper; owned by the caller.

        Raises:
            OSError: no process or descriptor is left.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            try:
                ours.setblocking(False)
                if not self._send(its):
                    self.close()  # the fork server has ended, for example since it was unused
                    self._start()
                    self._send(its)
            except BaseException:
                ours.close()
                raise
        return ours

    def _send(self, its: socket.socket) -> bool:
        if self._control is None:
            return False
        try:
            socket.send_fds(self._control, [b"+"], [its.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _start(self) -> None:
        control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its:
                # First: else it reads nothing if this process is killed now.
                control.send(_PATHS.encode())
                self._server = subprocess.Popen(
                    # The name that agents of live forks show in their session.
                    [os.path.realpath(sys.executable), "-I", "-S", "-c", _START],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                    umask=0o022,
                )
        except BaseException:
            control.close()
            raise
        self._control = control

    def close(self) -> None:
        """End the fork server; what it has forked goes on. May be repeated."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()  # SIGKILL: it may be stopped
            self._server.wait()
            self._server = None
