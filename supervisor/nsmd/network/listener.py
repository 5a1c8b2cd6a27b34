"""The socket that an agent has passed: looked at, and accepted from."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
from contextlib import suppress

import trio

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What accept(2) fails with for want of something that somebody else has, for now."""

PAUSE_S = 0.2
"""Until what was short is asked for again."""

ACCEPT_TIMEOUT_S = 5.0
"""A connection that waits is taken in microseconds."""


_NEVER = struct.pack("ii", 0, 0)
"""A `struct linger` (socket(7))."""


class ListenerError(Exception):
    """The socket is not one that our agent passes, or has stopped working."""


class Listener:
    """A listening socket in a session's network namespace.

    Whoever passed it may still have it and change how it behaves, above all make it block:
    accept(2) knows no flag for one call. So it is called in a thread, and ended where it hangs.

    Args:
        descriptor: owned from now on, also where it is refused.

    Raises:
        ListenerError: it is no TCP socket that listens on the loopback.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise ListenerError("is no socket")  # noqa: TRY301
            self._socket = socket.socket(fileno=descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        _never_linger(self._socket)
        try:
            self.port = _checked_port(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._closed = False

    def __repr__(self) -> str:
        return f"<Listener port={self.port}>"

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket; valid until `close`."""
        return self._socket.fileno()

    async def accept(self, limiter: trio.CapacityLimiter) -> trio.SocketStream:
        """The next connection.

        Args:
            limiter: of threads.

        Raises:
            ListenerError: it hangs, or was shut down inside.
        """
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
                if error.errno in SHORTAGES:
                    await trio.sleep(PAUSE_S)
                    continue
                raise ListenerError(f"fails: {error.strerror}") from error
            finally:
                taken.give_up()
            return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    def close(self) -> None:
        """May be repeated. A thread that hangs in it comes back."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


class _Accepting:
    """One accept(2) in a thread that nobody may wait for any more."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connection: socket.socket | None = None
        self._wanted = True
        self._lock = threading.Lock()

    def accept(self) -> None:
        """Runs in the thread."""
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        _never_linger(connection)
        with self._lock:
            if self._wanted:
                self._connection = connection
                return
        connection.close()

    def give_up(self) -> None:
        """Close all connections that were not claimed, and those that come."""
        with self._lock:
            self._wanted = False
        if self._connection is not None:
            self._connection.close()

    def claim(self) -> socket.socket:
        """Return the accepted connection, which belongs to the caller from now on."""
        connection, self._connection = self._connection, None
        assert connection is not None, "the thread has returned"
        return connection


def _never_linger(connection: socket.socket) -> None:
    # Close waits for the other end else, here the whole supervisor, and accepted ones inherit it.
    # The filter of system calls keeps code from asking for it, where there is one.
    with suppress(OSError):  # it is no socket to which that means anything
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NEVER)


def _checked_port(listener: socket.socket) -> int:
    """
    Raises:
        ListenerError: see `Listener`.
    """
    options = {
        socket.SO_DOMAIN: socket.AF_INET,
        socket.SO_TYPE: socket.SOCK_STREAM,
        socket.SO_PROTOCOL: socket.IPPROTO_TCP,
        socket.SO_ACCEPTCONN: 1,
    }
    try:
        for option, value in options.items():
            if listener.getsockopt(socket.SOL_SOCKET, option) != value:
                raise ListenerError("is no TCP socket that listens")
        address, port = listener.getsockname()
    except OSError as error:
        raise ListenerError(f"cannot be asked: {error.strerror}") from error
    if address != "127.0.0.1":
        raise ListenerError("does not listen on the loopback")
    return int(port)
