"""A process beside a helper that reads the values of its secrets.

The helper reads hostile bytes, so it can open no file and start no program. This process can, and
hears nothing but numbers: that of a secret, and that of the question, which the answer repeats. It
is forked from the helper before that reads its first byte of code, ends with it, and has no value
itself: a fork of its own reads each.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import trio

from nsmd.model.secrets import SecretRule, SecretSource
from nsmd.network.secrets.source import MAX_CHARS, SourceError, read_value

_MAX_ANSWER = 4 * MAX_CHARS + 16  # with the question
_QUESTION_BYTES = 9
_VALUE, _FAILURE = b"=", b"!"


class Asker:
    """The process, as its helper holds it. It begins with the first question. If it has ended,
    another begins; but once the helper has given up its rights, it ends itself instead, since the
    supervisor then starts another helper, which reads all values.

    Args:
        secrets: secrets whose values it reads.
    """

    def __init__(self, secrets: Sequence[SecretRule]) -> None:
        self._sources = [secret.source for secret in secrets]
        self._channel: trio.socket.SocketType | None = None
        self._asked = 0

    def _start(self) -> trio.socket.SocketType:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            if os.fork() == 0:
                _be_asker(its.fileno(), self._sources)
        ours.setblocking(False)
        return trio.socket.from_stdlib_socket(ours)

    async def ask(self, secret: SecretRule) -> str:
        """Read a value. Only one task may ask at a time.

        Raises:
            SourceError: there is no usable value.
        """
        for _ in range(2):
            if self._channel is None:
                try:
                    self._channel = self._start()
                except PermissionError:  # the filter of `give_up_rights`
                    with suppress(OSError):
                        sys.stderr.write("a secret helper ends: what reads its values has ended\n")
                    os._exit(1)
                except OSError as error:
                    why = f"no process can be started for it: {error.strerror}"
                    raise SourceError(why) from None
            answer = await self._answer(self._channel, secret)
            if answer:
                text = answer[1:].decode(errors="replace")
                if answer.startswith(_FAILURE):
                    raise SourceError(text)
                return text
            self._channel.close()
            self._channel = None
        raise SourceError("the process that reads it ends again and again")

    async def _answer(self, channel: trio.socket.SocketType, secret: SecretRule) -> bytes:
        """Ask; return nothing if the process has ended."""
        self._asked += 1
        question = bytes([self._sources.index(secret.source)]) + self._asked.to_bytes(8, "big")
        with suppress(OSError):
            await channel.send(question)
            # If a task was cancelled while it asked, the answer to it, another value, comes first.
            while answer := await channel.recv(_MAX_ANSWER):
                if answer.startswith(question):
                    return answer[len(question) :]
        return b""


def _be_asker(channel: int, sources: Sequence[SecretSource]) -> NoReturn:
    """Answer until the helper ends, in a process of its own.

    Of the helper's descriptors it keeps only those for messages to people.
    """
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(channel, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with socket.socket(fileno=0) as asked:
            while question := asked.recv(_QUESTION_BYTES):
                pid = os.fork()
                if pid == 0:  # a value may stay in memory, so only a process that ends has it
                    _answer(asked, question, sources[question[0]])
                if os.waitpid(pid, 0)[1]:
                    asked.send(question + _FAILURE + b"the process that reads it has failed")
    finally:
        os._exit(0)


def _answer(asked: socket.socket, question: bytes, source: SecretSource) -> NoReturn:
    code = 1
    try:
        try:
            answer = _VALUE + read_value(source, dict(os.environ)).encode()
        except SourceError as error:
            answer = _FAILURE + str(error).encode()
        asked.send(question + answer)
        code = 0
    finally:
        os._exit(code)
