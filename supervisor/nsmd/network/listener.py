"""Socket that an agent has passed: checked, and accepted from."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
from contextlib import suppress

import trio

from nsm.shortage import SHORTAGES

NO_ROOM = SHORTAGES - {errno.EAGAIN} | {errno.ENOBUFS}
"""Errors of accept(2) when something is short for the moment. EAGAIN means that nobody waits."""

PAUSE_S = 0.2
"""Pause after such an error."""

ACCEPT_TIMEOUT_S = 5.0
"""Time to accept a waiting connection, which takes microseconds."""


_NEVER = struct.pack("ii", 0, 0)
"""A `struct linger` (socket(7))."""


class ListenerError(Exception):
    """The socket is not one that our agent passes, or has stopped working."""


class NamespaceListener:
    """A listening socket in a session's network namespace; its descriptor is owned from now on,
    also if a `ListenerError` says that it is no TCP socket that listens on the loopback.

    The process that passed it may still have it and change how it behaves, above all make it block:
    accept(2) has no flag for a single call. So it runs in a thread, and is ended if it hangs.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise ListenerError("is not a socket")  # noqa: TRY301
            self._socket = socket.socket(fileno=descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        never_linger(self._socket)
        try:
            self.port = _checked_port(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._closed = False

    def __repr__(self) -> str:
        return f"<NamespaceListener port={self.port}>"

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket; valid until `close`."""
        return self._socket.fileno()

    async def accept(self, limiter: trio.CapacityLimiter) -> trio.SocketStream:
        """Accept the next connection, or raise `ListenerError` if it hangs, or was shut down."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            taken = _Accepting(self._socket)
            try:
                with trio.fail_after(ACCEPT_TIMEOUT_S):
                    await trio.to_thread.run_sync(
                        taken.accept, abandon_on_cancel=True, limiter=limiter
                    )
                connection = taken.claim()
            except BlockingIOError:
                continue  # somebody inside has taken it
            except trio.TooSlowError:
                raise ListenerError("does not hand its connections out") from None
            except OSError as error:
                if error.errno in NO_ROOM:
                    await trio.sleep(PAUSE_S)
                    continue
                raise ListenerError(f"fails: {error.strerror}") from error
            finally:
                taken.give_up()
            return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    def close(self) -> None:
        """Close it; may be repeated. A thread that hangs in it returns."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


class _Accepting:
    """One accept(2) in a thread; its caller may have given up."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connection: socket.socket | None = None
        self._wanted = True
        self._lock = threading.Lock()

    def accept(self) -> None:
        """Accept; runs in the thread."""
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        never_linger(connection)
        with self._lock:
            if self._wanted:
                self._connection = connection
                return
        connection.close()

    def give_up(self) -> None:
        """Close all connections that were not claimed, and later ones."""
        with self._lock:
            self._wanted = False
        if self._connection is not None:
            self._connection.close()

    def claim(self) -> socket.socket:
        """Return the accepted connection, which belongs to the caller from now on."""
        connection, self._connection = self._connection, None
        assert connection is not None, "the thread has returned"
        return connection


def never_linger(connection: socket.socket) -> None:
    """Have close(2) not wait for the other end, here in the whole supervisor."""
    # Accepted sockets inherit the option. The system call filter, if there is one, keeps code from
    # setting it.
    with suppress(OSError):  # it is no socket for which that has a meaning
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NEVER)


def _checked_port(listener: socket.socket) -> int:
    """Check the socket. Returns its port."""
    options = {
        socket.SO_DOMAIN: socket.AF_INET,
        socket.SO_TYPE: socket.SOCK_STREAM,
        socket.SO_PROTOCOL: socket.IPPROTO_TCP,
        socket.SO_ACCEPTCONN: 1,
    }
    try:
        for option, value in options.items():
            if listener.getsockopt(socket.SOL_SOCKET, option) != value:
                raise ListenerError("is not a TCP socket that listens")
        address, port = listener.getsockname()
    except OSError as error:
        raise ListenerError(f"cannot be asked: {error.strerror}") from error
    if address != "127.0.0.1":
        raise ListenerError("does not listen on the loopback")
    return int(port)
