"""The fork server, as the supervisor holds it."""

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
    """Processes that fork sessions, one for each request; forked by a fork server.

    Attributes:
        turn: held during a request: a session's user may have namespaces only meanwhile, and that
            of a fork counts in all that it is a fork of.

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
                    self.close()  # it has ended, of idleness for one
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
                self._server = subprocess.Popen(
                    # As sessions see it.
                    [os.path.realpath(sys.executable), "-I", "-S", "-c", _START],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                    umask=0o022,
                )
            control.send(_PATHS.encode())
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
            self._server.kill()  # it may be stopped
            self._server.wait()
            self._server = None
