"""The values of the secrets of one session or box, in the helper that uses them, and the process
beside it that reads them from their sources.

The helper reads hostile bytes, so it can open no file and start no program. The other process can,
and hears nothing but numbers: that of a secret, and that of the question, which the answer repeats.
It is forked from the helper before that reads its first byte of code, ends with it, and has no
value itself: a fork of its own reads each.

No error has a part of what a source gave: it may be the value.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import trio

from nsm.dataclass import dataclass
from nsmd.host.processes import signal_group
from nsmd.model.secrets import SecretRule, SecretSource
from nsmd.network.secrets.redaction import Patterns
from nsmd.network.secrets.stand_ins import make_stand_in

TIMEOUT_S = 30.0
"""Time limit of a command. Some ask the person, by a window or a touch of a key."""

MIN_CHARS, MAX_CHARS = 8, 4096
"""Bounds of a value: a shorter one would be found in texts that have nothing to do with it, and
servers refuse longer headers.
"""

_MAX_ANSWER = 4 * MAX_CHARS + 16  # with the question
_QUESTION_BYTES = 9
_VALUE, _FAILURE = b"=", b"!"


class SourceError(Exception):
    """A source gave no usable value; the message is for people."""


def read_value(source: SecretSource, variables: Mapping[str, str]) -> str:
    """Read a value, with variables for the command or for look-up, or raise `SourceError`. Blocks
    for at most `TIMEOUT_S`.
    """
    first = source.words[0]
    match source.kind:
        case "command":
            data = _output(source.words, variables)
        case "keyring":
            service, user = source.words
            words = ("secret-tool", "lookup", "service", service, "username", user)
            data = _output(words, variables)
        case "file":
            data = _content(first, variables)
        case "environment":
            if first not in variables:
                raise SourceError(
                    f"the supervisor's environment has no variable {first}. Commands that start it "
                    "pass on few: start nsm-supervisor by systemd, or in a shell that has it"
                )
            data = os.fsencode(variables[first])
    return _checked(data)


def _checked(data: bytes) -> str:
    lines = data.rstrip(b"\r\n").split(b"\n")
    if lines == [b""]:
        raise SourceError("it gave nothing, expected one line")
    if len(lines) > 1:
        raise SourceError(f"it gave {len(lines)} lines, expected one")
    value = lines[0]
    if not all(0x21 <= byte <= 0x7E for byte in value):
        raise SourceError("its line has spaces or characters other than printable ASCII")
    if not MIN_CHARS <= len(value) <= MAX_CHARS:
        raise SourceError(
            f"its line has {len(value)} characters, expected {MIN_CHARS} to {MAX_CHARS}"
        )
    return value.decode("ascii")


def _content(path: str, variables: Mapping[str, str]) -> bytes:
    if path.startswith("~/"):
        path = os.path.join(variables.get("HOME", "/"), path[2:])
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SourceError(f"the file {path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError(f"{path} is not an ordinary file")
        return file.read(2 * MAX_CHARS)


def _output(words: tuple[str, ...], variables: Mapping[str, str]) -> bytes:
    """Run a command without a shell, and return its output."""
    program = words[0]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may have the value, too
            env=dict(variables),
            cwd=variables.get("HOME") if os.path.isdir(variables.get("HOME", "")) else "/",
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(f"{program} cannot be started: {error.strerror}") from None
    with process:
        try:
            data = _read(process, program)
            # It is not reaped: until then, its number is no other process's.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            # Whatever it has started and left behind, too.
            signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise SourceError(f"{program} failed ({how}); run it yourself to see why")
    return data


def _read(process: subprocess.Popen[bytes], program: str) -> bytes:
    """Read all output until the command has ended, whoever else has the pipe."""
    assert process.stdout is not None, "it is a pipe"
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    deadline_s = time.monotonic() + TIMEOUT_S
    pidfd = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(pipe, select.POLLIN)
    data = b""
    try:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = {number for number, _ in poll.poll(left_s * 1000)}
            if not ready:
                raise SourceError(f"{program} did not end within {TIMEOUT_S:g} s, and was ended")
            with suppress(BlockingIOError):
                while piece := os.read(pipe, 65536):
                    data += piece
                    if len(data) > 2 * MAX_CHARS:
                        raise SourceError(f"{program} gave too much, expected one line")
                if pipe in ready:
                    poll.unregister(pipe)  # it has closed its output, and may go on
            if pidfd in ready:
                return data
    finally:
        os.close(pidfd)


class Asker:
    """The process that reads values, as its helper holds it.

    It begins with the first question. If it has ended, another begins; but once the helper has
    given up its rights, it ends itself instead, since the supervisor then starts another helper,
    which reads all values.
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
        """Read a value. Only one task may ask at a time."""
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


LEAST_AGE_S = 30.0
"""A source is asked again no sooner: code can have a server answer 401 as often as it likes."""

LEAST_FORMER = 4
FORMER_S = 3600.0
"""Earlier values that responses are still searched for: so many, and those that were in use in that
time. Code can have values replaced every `LEAST_AGE_S`, by a server that answers 401; that makes at
most 120.
"""

Ask = Callable[[SecretRule], Awaitable[str]]
"""Reads the value of a secret.

Raises:
    SourceError: it cannot be read.
"""


async def _ask_nobody(_: SecretRule) -> str:
    raise SourceError("nobody reads it again")


@dataclass(slots=True, kw_only=True)
class HeldSecret:
    """One secret with its value.

    Attributes:
        former: earlier values and when they were replaced, the newest last.
        read_s: when the source was asked, on the monotonic clock.
        refused: a server answered 401 since.
        revoked: its stand-in is worth nothing any more.
    """

    secret: SecretRule
    stand_in: str
    value: str
    former: tuple[tuple[str, float], ...] = ()
    read_s: float
    refused: bool = False
    revoked: bool = False


class Vault:
    """All secrets of one session or box."""

    def __init__(self, held: Sequence[HeldSecret], ask: Ask = _ask_nobody) -> None:
        self._held = {each.secret.name: each for each in held}
        self._ask = ask
        self._lock = trio.Lock()
        self.patterns = self._patterns()

    @classmethod
    async def read(cls, secrets: Sequence[SecretRule], known: Mapping[str, str], ask: Ask) -> Vault:
        """Read all values."""
        held: list[HeldSecret] = []
        for secret in secrets:  # one after the other: some ask the person
            try:
                value = await ask(secret)
            except SourceError as error:
                raise SourceError(f"secret {secret.name}: {error}") from None
            held.append(
                HeldSecret(
                    secret=secret,
                    stand_in=known.get(secret.name) or make_stand_in(value),
                    value=value,
                    read_s=time.monotonic(),
                )
            )
        return cls(held, ask)

    @property
    def stand_ins(self) -> dict[str, str]:
        """Stand-ins by name, those of revoked secrets included."""
        return {name: each.stand_in for name, each in self._held.items()}

    def usable(self, host: str, port: int) -> dict[str, tuple[str, str]]:
        """Stand-in and value of the secrets for a host, by name."""
        return {
            name: (each.stand_in, each.value)
            for name, each in self._held.items()
            if not each.revoked and each.secret.is_for(host, port)
        }

    def added_headers(self, host: str, port: int) -> list[tuple[str, str, str]]:
        """Headers to add to requests for a host: secret, name, and what is before the value."""
        return [
            (name, header, prefix)
            for name, each in self._held.items()
            if not each.revoked and each.secret.is_for(host, port)
            for header, prefix in each.secret.headers
        ]

    def revoke(self, name: str) -> None:
        """Use a secret no more. Responses are still searched for it."""
        if name in self._held:
            self._held[name].revoked = True

    def refused(self, names: Sequence[str]) -> None:
        """A server answered 401 to a request with these secrets."""
        for name in names:
            self._held[name].refused = True

    async def refresh(self, names: Sequence[str]) -> None:
        """Ask the sources of refused secrets again; keep the value if they give none."""
        async with self._lock:
            for name in names:
                each = self._held[name]
                if not each.refused or time.monotonic() < each.read_s + LEAST_AGE_S:
                    continue
                each.refused, each.read_s = False, time.monotonic()
                try:
                    value = await self._ask(each.secret)
                except SourceError as error:
                    with suppress(OSError):
                        sys.stderr.write(f"secret {name} keeps its old value: {error}\n")
                    continue
                if value != each.value:
                    now = time.monotonic()
                    former = (*each.former, (each.value, now))
                    old = [row for row in former[:-LEAST_FORMER] if row[1] > now - FORMER_S]
                    each.former = (*old, *former[-LEAST_FORMER:])
                    each.value = value
                    self.patterns = self._patterns()

    def _patterns(self) -> Patterns:
        return Patterns(
            (value, each.stand_in)
            for each in self._held.values()
            for value in (*(value for value, _ in each.former), each.value)
        )
