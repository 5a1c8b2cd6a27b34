"""A process beside a helper that reads the values of its secrets.

The helper reads hostile bytes, so it can open no file and start no program. This process can, and
hears nothing but the number of a secret. It is forked from the helper before that reads its first
byte of code, ends with it, and has no value itself: a fork of its own reads each.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from typing import NoReturn

import trio

from nsmd.model.secrets import SecretRule, SecretSource
from nsmd.network.secrets.source import MAX_CHARS, SourceError, read_value

_MAX_ANSWER = 4 * MAX_CHARS
_VALUE, _FAILURE = b"=", b"!"


class Asker:
    """The process, as its helper holds it. It begins with the first question.

    Args:
        secrets: secrets whose values it reads.
    """

    def __init__(self, secrets: Sequence[SecretRule]) -> None:
        self._sources = [secret.source for secret in secrets]
        self._channel: trio.socket.SocketType | None = None

    def _start(self) -> trio.socket.SocketType:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            if os.fork() == 0:
                _be_asker(its.fileno(), self._sources)
        ours.setblocking(False)
        return trio.socket.from_stdlib_socket(ours)

    async def ask(self, secret: SecretRule) -> str:
        """Read a value.

        Raises:
            SourceError: there is no usable value.
        """
        if self._channel is None:
            self._channel = self._start()
        try:
            await self._channel.send(bytes([self._sources.index(secret.source)]))
            answer = await self._channel.recv(_MAX_ANSWER)
        except OSError:
            answer = b""
        if not answer:
            raise SourceError("the process that reads it has ended")
        text = answer[1:].decode(errors="replace")
        if answer[:1] == _FAILURE:
            raise SourceError(text)
        return text


def _be_asker(channel: int, sources: Sequence[SecretSource]) -> NoReturn:
    """Answer until the helper ends, in a process of its own.

    Of the helper's descriptors it keeps only those for messages to people.
    """
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(channel, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with socket.socket(fileno=0) as asked:
            while number := asked.recv(1):
                pid = os.fork()
                if pid == 0:  # a value may stay in memory, so only a process that ends has it
                    _answer(asked, sources[number[0]])
                if os.waitpid(pid, 0)[1]:
                    asked.send(_FAILURE + b"the process that reads it has failed")
    finally:
        os._exit(0)


def _answer(asked: socket.socket, source: SecretSource) -> NoReturn:
    code = 1
    try:
        try:
            answer = _VALUE + read_value(source, dict(os.environ)).encode()
        except SourceError as error:
            answer = _FAILURE + str(error).encode()
        asked.send(answer)
        code = 0
    finally:
        os._exit(code)
