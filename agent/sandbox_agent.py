"""The agent: runs inside a jail, starts interpreters and runs code in them.

It speaks the protocol of ``docs/agent-protocol.md`` on its standard input and output. User code
never runs in this process: each interpreter is a child in a session of its own, with a pipe each
for its stdout and stderr and a private control socket. One thread, one poll loop, no call that
waits for a peer: whatever an interpreter or the supervisor does, the end of the supervisor's
channel is noticed at once, and then the agent ends and, being PID 1, takes everything with it.

One file, standard library only, Python 3.9 or newer; the supervisor imports the framing from it.
It reads from the top: framing, poll loop and links, output capture, files, processes, interpreters
(a new interpreter is one class), checks of input, the agent, the Python worker, the Node runner,
main.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import functools
import io
import itertools
import json
import keyword
import mmap
import os
import re
import select
import signal
import socket
import stat
import sys
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _ast
    from collections.abc import (
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import CodeType, TracebackType
    from typing import Any, NoReturn, TypeGuard

set_handler: Callable[[int, Any], Any] = import_module("_signal").signal
DEFAULT_ACTION: int = import_module("_signal").SIG_DFL
"""`signal.signal` without the enumerations around it, which take ten times as long as what they
wrap, and whose objects every fork would have its own copies of."""

AGENT_VERSION = "0.2.0"
PROTOCOL = 1
CAPABILITIES = (
    "sequence",
    "execute.timeout",
    "execute.result",
    "execute.one_shot",
    "result.notes",
    "stream",
    "stream.late",
    "interrupt",
    "status",
    "limits",
    "files",
    "files.list",
    "check",
    "complete",
    "setup",
    "listen",
    "notes",
)

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest frame in either direction, without its length."""

READ_BYTES = 65536
"""One read: what a pipe holds by default, and less than malloc would get by mmap each time."""

UNSENT_BYTES = 8 * 1024 * 1024
"""Above this the agent takes no more requests from a supervisor that does not read answers."""

TORN_BYTES = 400
"""Longer than several torn markers in a row. From here on, bytes that begin with no length cannot
be one."""

LAG_BYTES = 1024 * 1024
"""Unacknowledged bytes above which output is no longer streamed but merged."""

PREVIEW_BYTES = 64 * 1024
"""Streamed output that waits to be sent, per stream; older output is left out of the preview."""

PREVIEW_INTERVAL_S = 0.05
"""At most 20 updates a second."""

REPLY_BYTES = 1024 * 1024
MAX_REPLY_BYTES = 4 * 1024 * 1024
"""A control character takes 6 bytes in JSON: two streams of this size still fit a frame."""

FILE_BYTES = 64 * 1024 * 1024
"""Default cap of the file that holds what a reply has no room for."""

DISPLAY_BYTES = 8 * 1024 * 1024
"""Displays kept per execution, all together: with two streams they have to fit into one answer of
the supervisor's, which has 16 MiB."""

DISPLAY_LEFT_OUT = f"[display left out: more than {DISPLAY_BYTES} bytes in one execution]"

MAX_DISPLAYS = 1000

PLACE = "application/vnd.nsm.place+json"
"""MIME type that marks a display whose place in stdout is known. Its data is the number in the line
`[image N]` of stdout, or 0 where stdout has the text of the value."""

MAX_RESULT_NOTES = 8
MAX_RESULT_NOTE = 400
"""Notes that an interpreter adds to one result, and characters of each."""

MAX_DEPTH = 48
"""Levels of what is displayed as JSON; plots have about twenty. The supervisor's answers, in which
it is some levels down, have at most 64."""

DISPLAY_TOO_DEEP = f"[display left out: more than {MAX_DEPTH} levels in each other]"

WORKER_FRAME_BYTES = 4 * DISPLAY_BYTES
"""Largest frame taken from an interpreter, which may be under the control of hostile code."""

MAX_QUESTION_CHARS = 64 * 1024
"""Of a text to be checked or completed. Whoever types a longer one will not wait for it."""

VARIABLES_S = 10.0
"""For telling an interpreter that runs of variables, which takes it less than a millisecond."""

QUESTION_S = 1.0
"""Within that time a question is answered, if only by saying that nobody could tell."""

MAX_MATCHES = 500
MAX_MATCH = 1000
"""Completions that are offered, and characters of each."""

ENDING_LOOKS = 50
"""At a child that has closed its socket, one a millisecond, until it is believed to live on."""

MAX_CHECKS = 4
"""Children that check a text, at a time."""

CHECK_BYTES = 256 * 1024 * 1024
"""Memory of one; 64 KiB of text in a compiler take much less."""

MAX_OPEN_FILES = 8
"""Transfers at a time."""

MAX_ENTRIES = 10000
LISTING_BYTES = 1024 * 1024
"""Entries of a directory that are listed, and bytes of their names."""

NOTED_CODE = 2000
"""Characters of code that a new supervisor is told of what runs, for people to read."""

RECENT = 64
"""Executions that are known to have had a result, for whoever asks a new supervisor."""

CHUNK_BYTES = 256 * 1024
"""Of a file's data in one frame, before base64."""

MAX_NUMBER = 2**53
"""Whole numbers from here on are not exact for every reader of JSON, and no frame has them."""

MAX_INDENT = 200
"""Characters of a suggested indentation."""

MAX_ERROR = 8192
"""Characters; a path may have 4096."""

MAX_LINKS = 40
"""Symbolic links on the way to a file; the kernel's own limit, see path_resolution(7)."""

MAX_STEPS = 1000
"""Names on the way to a file, those in links included: the walk must not hold the agent up."""

SETUP_EXCERPT_BYTES = 4096
"""Of what a step of a set-up says, beginning and end together, when it fails."""

MAX_SETUP_STEPS = 16

REHEARSAL_S = 10.0
"""An interpreter that has not run code that does nothing by then is killed."""

# linux/landlock.h, and the numbers of its system calls, which are the same on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1
LANDLOCK_SCOPES = 6
"""Version of the kernel's interface that has scopes."""

GRACE_S = 2.0
"""From the interrupt to the kill when the request does not say."""

EARLY_S = 0.05
REPEAT_S = 0.1
"""An interrupt this soon after the start may come before the code does, and is repeated."""

HOLD_S = 0.0005
HOLD_LIMIT_S = 1.0
"""How long a shell may take to stop, and its forks to begin, before they are signalled, at most:
microseconds, or on a machine with more to do than processors until it is their turn."""

CONTROL_END_S = 1.0
"""From the end of Node's control socket to that of its process, which normally follows at once."""

MAX_POLL_MS = 24 * 3600 * 1000
"""poll(2) takes an int; a timer that is further away is looked at again after that."""

STEP_S = 2.0
WATCHED_S = 60.0
LATE_S = 3.0
"""Steps of the clock: in the last minute before a timer, the agent looks at it every two seconds.
A look that comes more than three seconds late means that the agent was stopped, together with all
that it started if a container was frozen. That time does not count."""

DISARM_ATTEMPTS = 100
"""Interrupts that may come while the Python worker puts its own handler in place."""

DRAIN_READS = 1024
"""Reads of a dead interpreter's control socket: more than two of its largest frames."""

KILL_ROUNDS = 64
FREEZE_ROUND = 3
"""A tree that still grows in this round of killing is a fork bomb: everything is stopped first."""

END_S = 2.0
"""How long the agent waits for processes that it has killed; a few milliseconds, as a rule."""

FIONREAD = 0x541B
NO_BYTES = b"\0" * 4
PRIVATE_FD = 200
"""Private descriptors are moved here or higher, out of the way of user code."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


# --------------------------------------------------------------------------------------- framing


class FrameError(ValueError):
    """A peer sent something that is not a frame.

    Attributes:
        fatal: the length itself was invalid, so the stream cannot be read any further.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """`message` as a frame: 4-byte big-endian length and UTF-8 JSON.

    Lone surrogates, which UTF-8 cannot hold, become ``?``.

    Raises:
        FrameError: it holds NaN or an infinity, or is larger than `MAX_FRAME_BYTES`.
    """
    try:
        data = message.get("data")
        if isinstance(data, str) and len(data) > READ_BYTES and _is_plain(data):
            # A piece of a file. JSON's encoder would look at each character, in ten times as long.
            rest = _to_json({key: value for key, value in message.items() if key != "data"})
            text = f'{{"data":"{data}",{rest[1:]}' if len(rest) > 2 else f'{{"data":"{data}"}}'
        else:
            text = _to_json(message)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"message is not plain JSON: {error}") from None
    body = text.encode("utf-8", "replace")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def _is_plain(text: str) -> bool:
    """Whether a text is itself in JSON."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def resume_marker(token: str) -> bytes:
    """The 20 bytes by which a new holder of the channel resumes; `token` is 32 hex digits.

    They occur nowhere else in a channel: 0xFFFFFFFF is no valid length and 0xFF not in UTF-8.

    Raises:
        ValueError: `token` is not 16 bytes in hexadecimal.
    """
    raw = bytes.fromhex(token)
    if len(raw) != 16:
        raise ValueError(f"the token has {len(raw)} bytes, expected 16")
    return b"\xff\xff\xff\xff" + raw


RESUMED: dict[str, Any] = {"type": "resume marker"}
"""What `FrameReader.next_message` returns, this very object, where the resume marker stood."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _refuse_value(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


# Made once, and called directly: what the package `json` does around them for each text takes as
# long as they do. The last four arguments: no indentation is made, keys are in any order and must
# be texts or numbers, NaN is refused. A value that holds itself is too deep.
_json_pieces: Any = json.encoder.c_make_encoder(  # type: ignore[attr-defined, unused-ignore]
    None, _refuse_value, json.encoder.encode_basestring, None, ":", ",", False, False, False
)
_json_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)
_json_scan = _json_decoder.scan_once


def _to_json(value: object) -> str:
    """
    Raises:
        TypeError, ValueError, RecursionError: JSON has no such value.
    """
    return "".join(_json_pieces(value, 0))


def _from_json(text: str) -> Any:
    """
    Raises:
        ValueError, RecursionError: the text is not JSON.
    """
    try:
        value, end = _json_scan(text, 0)
        if end == len(text):
            return value
    except StopIteration:
        pass
    return _json_decoder.decode(text)  # it has blanks around it, or a mistake that this names


def _decode_body(body: bytes) -> dict[str, Any]:
    try:
        value = _from_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"frame is not valid JSON: {error}") from None
    message = _as_object(value)
    if message is None:
        raise FrameError(f"frame must hold a JSON object, found {type(value).__name__}")
    return message


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _as_object(value: Any) -> dict[str, Any] | None:
    """`value` if it is a JSON object; what JSON makes has text keys."""
    found: Any = value
    return found if isinstance(value, dict) else None


def _as_texts(value: Any) -> dict[str, str] | None:
    """Variables as a frame has them; None where they are none. They may be left out."""
    found = {} if value is None else _as_object(value)
    if found is None:
        return None
    for name, text in found.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            return None
    return found


class FrameReader:
    """Cuts a byte stream into messages; does no I/O.

    Args:
        limit: largest accepted frame body, bytes.

    Attributes:
        marker: resume marker to look for, at any point of the stream; empty for none. A torn
            frame before it is dropped.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.marker = b""
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False

    def receive_data(self, data: bytes) -> None:
        """Takes bytes as they came from the peer, in pieces of any size."""
        self._buffer += data

    def skip_to_marker(self) -> None:
        """Drops everything up to the next resume marker, e.g. the rest of a torn frame."""
        self._skipping = True

    def next_message(self) -> dict[str, Any] | None:
        """The next whole message, `RESUMED` for a resume marker, None when it takes more bytes.

        Raises:
            FrameError: the next frame is invalid. It is skipped unless the error is `fatal`.
        """
        buffer = self._buffer
        if self._skipping:
            return RESUMED if self._cut_at_marker() else None
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "big")
        end = 4 + length
        fits, whole = length <= self._limit, len(buffer) >= end
        if self.marker and not (fits and whole and b"\xff" not in buffer[4:end]):
            if self._cut_at_marker():
                return RESUMED
            if (fits or len(buffer) < TORN_BYTES) and self._may_end_in_marker():
                return None
        if not fits:
            raise FrameError(
                f"frame length {length} exceeds the limit of {self._limit} bytes", fatal=True
            )
        if not whole:
            return None
        body = bytes(buffer[4:end])
        del buffer[:end]
        self._searched = 0
        return _decode_body(body)

    def _cut_at_marker(self) -> bool:
        """Drops all up to the marker, if it is there: a frame that its writer left unfinished."""
        buffer = self._buffer
        place = buffer.find(self.marker, self._searched)
        if place >= 0:
            del buffer[: place + len(self.marker)]
            self._searched = 0
            self._skipping = False
            return True
        # Every byte is searched once: a frame of many megabytes comes in many pieces.
        self._searched = max(0, len(buffer) - len(self.marker) + 1)
        if self._skipping:
            del buffer[: self._searched]
            self._searched = 0
        return False

    def _may_end_in_marker(self) -> bool:
        """Tell whether the received bytes end with the beginning of a marker.

        A writer that died left a frame or a marker incomplete, and the beginning of what its
        successor sends completes it by chance. A 0xFF gives it away.
        """
        # A whole one was found before: what is looked at is short, whatever a peer sends.
        place = max(0, len(self._buffer) - len(self.marker) + 1)
        while (place := self._buffer.find(b"\xff", place)) >= 0:
            if self.marker.startswith(self._buffer[place:]):
                return True
            place += 1
        return False


# --------------------------------------------------------------------------- poll loop and links


class Poller:
    """Handlers of descriptors and named timers; `turn` runs those that are due."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        """Calls `handler` with the events; it must not mind being called for nothing."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        if fd in self._handlers:
            self._poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def at(self, name: str, when: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once at `when` (monotonic, seconds); replaces a timer of that name.

        Time in which this process was stopped is added, as far as it is noticed.
        """
        self._timers[name] = (when, callback)

    def cancel(self, name: str) -> None:
        self._timers.pop(name, None)

    def turn(self) -> None:
        """Waits for an event or a timer and handles what is due."""
        timeout_ms, due = None, 0.0
        if self._timers:
            now = time.monotonic()
            left = min(when for when, _ in self._timers.values()) - now
            left = left - WATCHED_S if left > WATCHED_S + STEP_S else min(left, STEP_S)
            # Rounded up: waking a fraction early would spin until the moment has come.
            timeout_ms = min(max(0, int(left * 1000) + 1), MAX_POLL_MS)
            due = now + timeout_ms / 1000
        ready = self._poll.poll(timeout_ms)
        if self._timers:
            self._put_off(time.monotonic() - due)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        if self._timers:
            now = time.monotonic()
            for name, (when, callback) in list(self._timers.items()):
                if when <= now and self._timers.get(name) == (when, callback):
                    del self._timers[name]
                    callback()

    def _put_off(self, late: float) -> None:
        """Put all timers off if poll(2) returned so many seconds too late."""
        if late > LATE_S:
            for name, (when, callback) in self._timers.items():
                self._timers[name] = (when + late, callback)


class Link:
    """A byte stream in both directions that never blocks.

    Args:
        on_data: called with what was read.
        on_end: called once at end-of-file or when the peer cannot be written to.
        on_sent: called when all that had to wait has been written.
    """

    def __init__(
        self,
        poller: Poller,
        read_fd: int,
        write_fd: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._poller = poller
        self._on_data = on_data
        self._on_end = on_end
        self._on_sent = on_sent
        self._out = bytearray()
        self._passed: list[tuple[int, int]] = []  # bytes that go before it, and a descriptor
        self._reading = True
        self._ended = False
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)
        poller.watch(read_fd, self._handle)
        if write_fd != read_fd:
            poller.watch(write_fd, self._handle_write, 0)

    @property
    def unsent_bytes(self) -> int:
        return len(self._out)

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Writes what the peer has room for now and the rest later.

        Args:
            descriptor: goes along with the first byte, over a Unix socket; ours from now on.
        """
        waiting = bool(self._out)
        if descriptor is not None:
            self._passed.append((len(self._out), descriptor))
        self._out += data
        if not waiting:
            self._flush()
            if self._out:
                self._update()

    def drop_unsent(self) -> None:
        self._forget_unsent()
        self._update()  # with nothing to write, to be told of room for it would be for ever

    def read_on(self, reading: bool) -> None:
        """Stops or resumes reading; the peer's end is noticed in either case."""
        if reading != self._reading:
            self._reading = reading
            self._update()

    def close(self) -> None:
        """Forgets and closes the descriptors."""
        for fd in {self.read_fd, self.write_fd}:
            self._poller.forget(fd)
            os.close(fd)
        self._forget_unsent()
        self._ended = True

    def drain(self) -> None:
        """Reads what a writer that is dead has left; bounded, others may hold its end."""
        for _ in range(DRAIN_READS):
            if self._ended or not self._receive():
                break

    def _update(self) -> None:
        wanted = select.POLLIN if self._reading else select.POLLRDHUP
        out = select.POLLOUT if self._out else 0
        if self.read_fd == self.write_fd:
            self._poller.change(self.read_fd, wanted | out)
        else:
            self._poller.change(self.read_fd, wanted)
            self._poller.change(self.write_fd, out)

    def _flush(self) -> None:
        try:
            while self._out:
                if self._passed:
                    written = self._write_passing()
                else:
                    written = os.write(self.write_fd, self._out[: 4 * READ_BYTES])
                del self._out[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._end()

    def _write_passing(self) -> int:
        """Writes what goes before the next descriptor, or that with the byte that it belongs to."""
        before, descriptor = self._passed[0]
        if before:
            written = os.write(self.write_fd, self._out[: min(before, 4 * READ_BYTES)])
        else:
            channel = socket.socket(fileno=self.write_fd)
            try:
                written = socket.send_fds(channel, [self._out[:READ_BYTES]], [descriptor])
            finally:
                channel.detach()
            del self._passed[0]
            os.close(descriptor)
        self._passed = [(place - written, other) for place, other in self._passed]
        return written

    def _forget_unsent(self) -> None:
        self._out.clear()
        for _, descriptor in self._passed:
            os.close(descriptor)
        self._passed.clear()

    def _continue(self) -> None:
        if self._out:
            self._flush()
            if not self._out and not self._ended:
                self._update()
                self._on_sent()

    def _handle_write(self, events: int) -> None:
        if events & (select.POLLERR | select.POLLHUP):
            self._end()
        else:
            self._continue()

    def _handle(self, events: int) -> None:
        if events & select.POLLOUT:
            self._continue()
        if events & ~select.POLLOUT and not self._ended:
            if self._reading:
                self._receive()
            else:
                self._end()

    def _receive(self) -> bool:
        """Reads once; False when there was nothing."""
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._on_data(data)
            return True
        self._end()
        return False

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            for fd in {self.read_fd, self.write_fd}:
                self._poller.forget(fd)
            self._forget_unsent()
            self._on_end()


class Channel:
    """Messages to and from the supervisor, kept until they are acknowledged once it asked so.

    Attributes:
        recent: ids of the last executions that had a result, acknowledged or not.
    """

    def __init__(
        self,
        poller: Poller,
        read_fd: int,
        write_fd: int,
        on_message: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._on_progress = on_progress
        self._reader = FrameReader()
        self._sequence: int | None = None
        self._kept: dict[int, tuple[bytes, str | None]] = {}
        self._kept_bytes = 0
        self.recent: list[str] = []
        self._link = Link(poller, read_fd, write_fd, self._on_data, on_end, self._on_sent)

    @property
    def passes_descriptors(self) -> bool:
        """Whether it is a socket, which it is but where somebody tries an agent by hand."""
        return stat.S_ISSOCK(os.fstat(self._link.write_fd).st_mode)

    @property
    def lag_bytes(self) -> int:
        """What the supervisor has not acknowledged, or not taken where it does not do that."""
        return self._link.unsent_bytes if self._sequence is None else self._kept_bytes

    @property
    def kept_results(self) -> list[str]:
        """Ids of the executions whose results are not acknowledged."""
        return [result for _, result in self._kept.values() if result is not None]

    def begin_sequence(self, marker: bytes) -> None:
        """Numbers frames from now on, and accepts `marker` from a new holder of the channel."""
        self._reader.marker = marker
        self._sequence = 0

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Sends and, with a sequence, keeps a message.

        Args:
            descriptor: goes along, once: repeated frames have none.

        Raises:
            FrameError: it does not fit a frame.
        """
        if self._sequence is None:
            self._link.send(encode_frame(message), descriptor)
        else:
            frame = encode_frame({**message, "seq": self._sequence + 1})
            self._sequence += 1
            result = None
            if message["type"] == "result":
                result = str(message["id"])
                self.recent.append(result)
                if len(self.recent) > RECENT:
                    del self.recent[0]
            self._kept[self._sequence] = (frame, result)
            self._kept_bytes += len(frame)
            self._link.send(frame, descriptor)
        if self._link.unsent_bytes > UNSENT_BYTES:
            self._link.read_on(False)

    def acknowledge(self, number: int) -> None:
        """Forgets the frames up to `number`."""
        for kept in list(self._kept):
            if kept > number:
                break
            self._kept_bytes -= len(self._kept.pop(kept)[0])
        self._on_progress()

    def resume(self, resumed: dict[str, Any]) -> None:
        """Answers a new holder: the marker, `resumed` without a number, and every kept frame."""
        self._link.drop_unsent()
        frames = [frame for frame, _ in self._kept.values()]
        self._link.send(b"".join([self._reader.marker, encode_frame(resumed), *frames]))

    def _on_sent(self) -> None:
        self._link.read_on(True)
        self._on_progress()

    def _on_data(self, data: bytes) -> None:
        self._reader.receive_data(data)
        while True:
            try:
                message = self._reader.next_message()
            except FrameError as error:
                self.send({"type": "error", "message": str(error)})
                if error.fatal:
                    self._on_end()
                continue
            if message is None:
                return
            self._on_message(message)


# -------------------------------------------------------------------------------- output capture


class Limits:
    """Bounds of a session, as `hello` sets them; None leaves what the jail has."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """
        Raises:
            ValueError: a limit is not a whole number above 0.
        """
        values: dict[str, int] = {}
        for name in ("reply_bytes", "file_bytes", "processes", "descriptors", "data_bytes"):
            value = (given or {}).get(name)
            if value is None:
                continue
            if not _is_whole(value) or value <= 0:
                raise ValueError(f"limit {name} is {value!r}, expected a whole number above 0")
            values[name] = value
        self.reply_bytes = min(values.get("reply_bytes", REPLY_BYTES), MAX_REPLY_BYTES)
        self.file_bytes = values.get("file_bytes", FILE_BYTES)
        self.resources: dict[str, int] = {
            name: values[name]
            for name in ("processes", "descriptors", "data_bytes")
            if name in values
        }


def apply_limits(limits: Mapping[str, int], pid: int = 0) -> None:
    """Sets resource limits, soft and hard, of a process; never above what it has.

    Raises:
        OSError: the kernel or a filter refuses.
    """
    import resource

    kinds = {
        "processes": resource.RLIMIT_NPROC,
        "descriptors": resource.RLIMIT_NOFILE,
        "data_bytes": resource.RLIMIT_DATA,
    }
    wanted = {kinds[name]: value for name, value in limits.items()}
    # 0 would keep the kernel from writing core files, but not from running the host's program for
    # crashes (core(5)); 1 does both. The host's user may be allowed more than his share of the
    # processors, as users of audio programs are: code is not.
    for all_have in (
        {resource.RLIMIT_CORE: 1, resource.RLIMIT_RTPRIO: 0, resource.RLIMIT_NICE: 0},
        {resource.RLIMIT_MEMLOCK: 64 * 1024, resource.RLIMIT_SIGPENDING: 1024},
    ):
        wanted.update(all_have)
    for kind, value in wanted.items():
        hard = resource.prlimit(pid, kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (limit, limit))


class SpillFile:
    """A file below the workspace's ``.nsm`` for output that a reply has no room for.

    The directory belongs to user code, which may have put links, other files or nothing there:
    every step is relative to a descriptor and follows no link, and any failure just ends the file.
    """

    DIRECTORY = ".nsm"

    def __init__(self, workspace: str, name: str, limit: int) -> None:
        self.path = f"{workspace}/{self.DIRECTORY}/{name}"
        self.bytes = 0
        self._limit = limit
        self._fd = -1
        with (
            contextlib.suppress(OSError),
            self._open_directory(workspace, create=True) as directory,
        ):
            self._fd = os.open(
                name,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=directory,
            )

    @classmethod
    @contextlib.contextmanager
    def _open_directory(cls, workspace: str, *, create: bool) -> Generator[int, None, None]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        top = os.open(workspace, flags)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(cls.DIRECTORY, 0o700, dir_fd=top)
            directory = os.open(cls.DIRECTORY, flags, dir_fd=top)
        finally:
            os.close(top)
        try:
            yield directory
        finally:
            os.close(directory)

    @classmethod
    def remove(cls, workspace: str, name: str) -> None:
        with contextlib.suppress(OSError), cls._open_directory(workspace, create=False) as top:
            os.unlink(name, dir_fd=top)

    @property
    def full(self) -> bool:
        return self._fd < 0 or self.bytes >= self._limit

    def write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)[: max(0, self._limit - self.bytes)]
        try:
            while view and self._fd >= 0:
                written = os.write(self._fd, view)
                self.bytes += written
                view = view[written:]
        except OSError:
            self.close()

    def close(self) -> str | None:
        """Ends the file; its path if there is something in it and it has not been removed."""
        if self._fd < 0:
            return self.path if self.bytes else None
        there = os.fstat(self._fd).st_nlink > 0
        os.close(self._fd)
        self._fd = -1
        return self.path if self.bytes and there else None


class Spills:
    """Makes spill files, and removes the oldest so that all together stay bounded."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._made = 0
        self._files: list[tuple[str, SpillFile]] = []

    def make(self, stream: str, limits: Limits) -> SpillFile:
        self._made += 1
        name = f"{stream}-{self._made}.txt"
        while self._files and sum(file.bytes for _, file in self._files) > limits.file_bytes:
            SpillFile.remove(self._workspace, self._files.pop(0)[0])
        file = SpillFile(self._workspace, name, limits.file_bytes)
        self._files.append((name, file))
        return file


class NoFile:
    """In place of a `SpillFile` for what nobody will read."""

    full = True

    def write(self, data: bytes | bytearray) -> None:
        """Drops it."""

    def close(self) -> str | None:
        """There is none."""
        return None


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than the answer to a client may be: the whole
    of it could not be sent."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            inside = _as_object(part)
            below += part if inside is None else inside.values()
        level = [one for one in below if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


class Capture:
    """What one stream printed for one execution: the whole, or head and tail and a file.

    Args:
        spills: makes the file; None for head and tail only.
    """

    def __init__(self, stream: str, spills: Spills | None, limits: Limits) -> None:
        self.total_bytes = 0
        self._stream = stream
        self._spills = spills
        self._limits = limits
        self._reply_bytes = limits.reply_bytes
        self._half = limits.reply_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._file: SpillFile | NoFile | None = None

    @property
    def full(self) -> bool:
        """Whether anything more would be kept nowhere but in the tail."""
        return self._file is not None and self._file.full

    def bound_reply(self, reply_bytes: int) -> None:
        """Another bound for this reply, unless output has gone to a file already."""
        reply_bytes = min(reply_bytes, MAX_REPLY_BYTES)
        if self._file is None and self._reply_bytes != reply_bytes:
            self._reply_bytes = reply_bytes
            self._half = reply_bytes // 2
            self.write(b"")

    def write(self, data: bytes) -> None:
        self.total_bytes += len(data)
        if self._file is None:
            self._head += data
            if len(self._head) > self._reply_bytes:
                spills = self._spills
                self._file = spills.make(self._stream, self._limits) if spills else NoFile()
                self._file.write(self._head)
                self._tail += memoryview(self._head)[self._half :]
                del self._head[self._half :]
        else:
            self._file.write(data)
            self._tail += data
        if len(self._tail) > 2 * self._half + READ_BYTES:
            del self._tail[: len(self._tail) - self._half]

    def latest(self, count: int) -> tuple[int, bytes]:
        """The end so far, at most `count` bytes or what is kept of it, and how many precede."""
        kept = self._head if self._file is None else self._tail
        data = bytes(kept[-count:])
        return self.total_bytes - len(data), data

    def result(self) -> tuple[str, dict[str, Any] | None]:
        """The text for the reply and, if it is not the whole, what is left out and where it is."""
        if self._file is None:
            return self._head.decode("utf-8", "replace"), None
        del self._tail[: max(0, len(self._tail) - self._half)]
        _trim_to_characters(self._head, self._tail)
        omitted = self.total_bytes - len(self._head) - len(self._tail)
        text = (
            self._head.decode("utf-8", "replace")
            + f"\n[... {omitted} bytes left out ...]\n"
            + self._tail.decode("utf-8", "replace")
        )
        return text, {"omitted_bytes": omitted, "file": self._file.close()}


def _trim_to_characters(head: bytearray, tail: bytearray) -> None:
    """Takes the torn character off the end of `head` and the beginning of `tail`."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte >= 0xC0:
            if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4):
                del head[-back:]
            break
        if byte < 0x80:
            break
    count = 0
    while count < min(3, len(tail)) and 0x80 <= tail[count] < 0xC0:
        count += 1
    del tail[:count]


class OutputPipe:
    """One output stream of an interpreter: a pipe that the agent reads.

    Attributes:
        child_fd: the end for the interpreter. It stays open here as well: a pipe that nobody can
            write to would wake the agent for ever.
        paused: the agent does not wait for what is printed.
    """

    def __init__(self) -> None:
        self.read_fd, self.child_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self.identity = _identity(os.fstat(self.read_fd))
        self.paused = False

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.child_fd)

    def read(self, count: int = READ_BYTES) -> bytes:
        """What is there, at most `count` bytes; empty when there is nothing."""
        try:
            return os.read(self.read_fd, count)
        except BlockingIOError:
            return b""

    def cut(self) -> bytes:
        """What was printed up to now, and nothing of what a flood adds meanwhile.

        The kernel's count of what waits is the cut. Nothing here waits: code that reads from its
        own pipe only takes its own output away.
        """
        waiting = int.from_bytes(fcntl.ioctl(self.read_fd, FIONREAD, NO_BYTES), sys.byteorder)
        pieces: list[bytes] = []
        while waiting > 0:
            piece = self.read(min(waiting, READ_BYTES))
            if not piece:
                break
            pieces.append(piece)
            waiting -= len(piece)
        return b"".join(pieces)


class Preview:
    """Output on its way to whoever watches an execution: coalesced, bounded, never waited for.

    Args:
        send: called with stream and text.
        may_send: False while the supervisor lags behind.
    """

    def __init__(
        self, poller: Poller, send: Callable[[str, str], None], may_send: Callable[[], bool]
    ) -> None:
        self._poller = poller
        self._send = send
        self._may_send = may_send
        self._sent_at = 0.0
        self._waiting = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._decoders = {
            stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in self._waiting
        }

    def begin(self, captures: Mapping[str, Capture]) -> None:
        """Takes what has been printed before anybody watched."""
        for stream, capture in captures.items():
            self._dropped[stream], data = capture.latest(PREVIEW_BYTES)
            self._waiting[stream] += data
        self.schedule()

    def write(self, stream: str, data: bytes) -> None:
        waiting = self._waiting[stream]
        waiting += data
        excess = len(waiting) - PREVIEW_BYTES
        if excess > 0:
            del waiting[:excess]
            self._dropped[stream] += excess
        self.schedule()

    def schedule(self) -> None:
        """Sends what waits now, or as soon as the last update is old enough."""
        if not any(self._waiting.values()) or not self._may_send():
            return
        due = self._sent_at + PREVIEW_INTERVAL_S
        if time.monotonic() >= due:
            self._flush(final=False)
        else:
            self._poller.at("preview", due, self.schedule)

    def finish(self) -> None:
        """Sends the rest, if the supervisor takes it."""
        self._poller.cancel("preview")
        if self._may_send():
            self._flush(final=True)

    def _flush(self, *, final: bool) -> None:
        self._poller.cancel("preview")
        self._sent_at = time.monotonic()
        for stream, waiting in self._waiting.items():
            decoder = self._decoders[stream]
            if self._dropped[stream]:
                decoder.reset()
                _trim_to_characters(bytearray(), waiting)
            text = decoder.decode(bytes(waiting), final)
            waiting.clear()
            if self._dropped[stream]:
                text = f"\n[... {self._dropped[stream]} bytes left out ...]\n{text}"
                self._dropped[stream] = 0
            if text:
                self._send(stream, text)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_id(value: object) -> TypeGuard[str | int]:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ----------------------------------------------------------------------------------------- files


class TransferError(Exception):
    """A file can't be read or written, or not any further. The text is for whoever asked.

    Attributes:
        code: name of the error number that says the same, such as `EISDIR`; may be empty.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = errno.errorcode.get(code, "")


WORDS = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of the path that should be a directory is none",
    errno.EISDIR: "is a directory: name a file",
    errno.EACCES: "the session's user has no permission",
    errno.EPERM: "the session's user has no permission",
    errno.ENOSPC: "no space is left on that file system; what was there before is unchanged",
    errno.EDQUOT: "no space is left on that file system; what was there before is unchanged",
    errno.EROFS: "is on a read-only file system: write below /workspace or /tmp",
    errno.EEXIST: "exists already, and is not to be overwritten",
    errno.ELOOP: "goes through too many links or directories",
    errno.ENAMETOOLONG: "a name in it is too long",
    errno.EMFILE: "the session has no descriptors left",
    errno.ENFILE: "the session has no descriptors left",
    errno.EAGAIN: "a program in the session holds a lease on it (fcntl): try again",
    errno.EBUSY: "is in use as a mount point",
}
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# Of linux/magic.h. Files there are the kernel's, and show this process what they hide from others.
VIRTUAL_FILE_SYSTEMS = {
    0x9FA0: "/proc",
    0x62656572: "/sys",
    0x27E0EB: "a cgroup",
    0x63677270: "a cgroup",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xF97CFF8C: "selinuxfs",
    0x62656570: "configfs",
    0xCAFE4A11: "bpf",
    0x6E736673: "nsfs",
    0x1CD1: "devpts",
    0x19800202: "mqueue",
    0x42494E4D: "binfmt_misc",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0x65735543: "fusectl",
    0x67596969: "rpc_pipefs",
    0x09041934: "no directory",
}


def file_system(fd: int) -> int:
    """Magic number of the file system that an open file is on, see statfs(2).

    Raises:
        OSError: the kernel or a filter refuses.
    """
    import ctypes

    answer = (ctypes.c_long * 64)()  # f_type comes first; the rest has room
    if c_library().fstatfs(fd, answer) < 0:
        _raise(ctypes.get_errno())
    return answer[0] & 0xFFFFFFFF


def open_path(path: str) -> int:
    """A descriptor with O_PATH of what an absolute path names, links followed.

    Each name is opened by itself and each link read here, so that nothing on the way is one of
    /proc's: those links lead to files by no name, and for this process to its own.

    Raises:
        TransferError: it leads into a virtual file system.
        OSError: as of open(2).
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    names = path.split("/")[::-1]
    links = steps = 0
    here = os.open("/", flags | os.O_DIRECTORY)
    try:
        while names:
            name = names.pop()
            if name in {"", "."}:
                continue
            steps += 1
            if steps > MAX_STEPS or links > MAX_LINKS:
                _raise(errno.ELOOP)
            found = os.open(name, flags, dir_fd=here)
            try:
                refuse_virtual(found, path)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    target = os.readlink("", dir_fd=found)
                    names.extend(target.split("/")[::-1])
                    if not target.startswith("/"):
                        continue
                    root = os.open("/", flags | os.O_DIRECTORY)
                    os.close(found)
                    found = root
                here, found = found, here
            finally:
                os.close(found)
    except BaseException:
        os.close(here)
        raise
    return here


def _raise(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


def refuse_virtual(fd: int, path: str) -> None:
    """
    Raises:
        TransferError: the file is one that the kernel makes up.
    """
    name = VIRTUAL_FILE_SYSTEMS.get(file_system(fd))
    if name is not None:
        raise TransferError(
            f"{path}: is or leads through {name}, which holds no files", errno.EPERM
        )


def refuse_special(mode: int, path: str) -> None:
    """
    Raises:
        TransferError: it is no regular file.
    """
    if stat.S_ISDIR(mode):
        raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise TransferError(f"{path}: is {kind}: only regular files are copied", errno.EINVAL)


def free_bytes(fd: int) -> int | None:
    """Room on the file system that a descriptor is on; None where that has no limit of its own."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def open_directory(path: str) -> int:
    """A descriptor with O_PATH of a directory, links followed. Raises: as `open_path`."""
    found = open_path(path)
    try:
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            _raise(errno.ENOTDIR)
    except BaseException:
        os.close(found)
        raise
    return found


def make_directory(path: str) -> None:
    """Makes a directory, less the umask, if it is not there; no link is taken for one.

    Raises:
        OSError: as of mkdir(2).
        TransferError: as of `open_path`.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in {"", ".", ".."}:
        return
    directory = open_directory(parent or "/")
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
    finally:
        os.close(directory)


def entries_of(fd: int) -> tuple[list[tuple[str, str, int]], bool]:
    """Name, kind and size of what is in a directory, and whether that is all of it.

    Args:
        fd: of the directory; O_PATH will do.

    Raises:
        OSError: as of open(2).
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(f"/proc/self/fd/{fd}", flags)
    entries: list[tuple[str, str, int]] = []
    room = LISTING_BYTES
    try:
        with os.scandir(directory) as found:
            for entry in found:
                room -= len(os.fsencode(entry.name))
                if len(entries) == MAX_ENTRIES or room < 0:
                    return entries, False
                with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                    entries.append(_described(entry))
    finally:
        os.close(directory)
    entries.sort()
    return entries, True


def _described(entry: os.DirEntry[str]) -> tuple[str, str, int]:
    """Name, kind and size of one entry of a directory."""
    name = os.fsencode(entry.name)
    try:
        name.decode()
    except UnicodeDecodeError:  # frames hold text; sent otherwise, it would be another name
        return name.decode("utf-8", "backslashreplace"), "unnamed", 0
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return entry.name, "file", status.st_size
    if stat.S_ISDIR(status.st_mode):
        return entry.name, "directory", 0
    return entry.name, "link" if stat.S_ISLNK(status.st_mode) else "other", 0


def name_of(fd: int) -> str:
    """The path by which the kernel knows an open file."""
    return os.readlink(f"/proc/self/fd/{fd}")


class FileReader:
    """A file on its way out of the session, as long as it was when it was opened.

    Args:
        path: absolute.

    Attributes:
        path: without links.
        size: bytes that it had; `moved` is what has been read of them.
        permissions: the lower nine bits of its mode.

    Raises:
        TransferError: no regular file, or one that the kernel makes up.
        OSError: as of open(2).
    """

    def __init__(self, path: str) -> None:
        self.moved = 0
        found = open_path(path)
        try:
            status = os.fstat(found)
            refuse_special(status.st_mode, path)
            if path.endswith(("/", "/.")):
                _raise(errno.ENOTDIR)
            if status.st_size >= MAX_NUMBER:
                raise TransferError(
                    f"{path}: has {status.st_size} bytes, more than can be copied", errno.EFBIG
                )
            self.path = name_of(found)
            # The very file that was looked at. It may be under a lease (fcntl(2)), and without
            # O_NONBLOCK its holder could keep this process waiting for 45 seconds.
            self._fd = os.open(
                f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        finally:
            os.close(found)
        self.size = status.st_size
        self.permissions = status.st_mode & 0o777
        self.free_bytes: int | None = None

    def read(self, count: int) -> tuple[bytes, bool]:
        """Up to `count` bytes, and whether they are the last. What was added since is left out.

        Raises:
            OSError: as of read(2).
        """
        data = os.read(self._fd, min(count, self.size - self.moved))
        self.moved += len(data)
        return data, not data or self.moved >= self.size

    def close(self) -> None:
        os.close(self._fd)


class FileWriter:
    """A file on its way into the session. It appears, whole, when it is kept.

    Until then it has no name, so that no reader sees half of it and nothing is left behind by
    whatever ends this process; on a file system without such files it has a name of its own.

    Args:
        path: absolute; what is there must be a regular file or nothing, and no link.
        permissions: the lower nine bits count; None for those of what is there, else as usual.
        overwrite: False to refuse where something is, also if it appears meanwhile.

    Raises:
        TransferError: what is there can't be replaced by a file.
        OSError: as of open(2).
    """

    UNNAMED = os.O_TMPFILE

    def __init__(self, path: str, permissions: int | None, *, overwrite: bool) -> None:
        self.moved = 0
        self._overwrite = overwrite
        self._temporary = ""
        parent, _, self._name = path.rpartition("/")
        if self._name in {"", ".", ".."}:
            raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
        self._directory = open_path(parent)
        try:
            there = self._look(path)
            mask = os.umask(0o077)
            os.umask(mask)
            if permissions is None:
                permissions = 0o666 & ~mask if there is None else there
            self.permissions = permissions & 0o777
            self.path = f"{name_of(self._directory).rstrip('/')}/{self._name}"
            self.free_bytes = free_bytes(self._directory)
            self._fd = self._open()
        except BaseException:
            os.close(self._directory)
            raise

    @property
    def size(self) -> int:
        return self.moved

    def _look(self, path: str) -> int | None:
        """Permissions of what is there; None if nothing is."""
        try:
            found = os.open(
                self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory
            )
        except FileNotFoundError:
            return None
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISLNK(mode):
                raise TransferError(
                    f"{path}: is a symbolic link to {os.readlink('', dir_fd=found)!r}: "
                    "name the file that is meant",
                    errno.ELOOP,
                )
            refuse_virtual(found, path)
            refuse_special(mode, path)
        finally:
            os.close(found)
        if not self._overwrite:
            _raise(errno.EEXIST)
        if not os.access(self._name, os.W_OK, dir_fd=self._directory):
            raise TransferError(
                f"{path}: is read-only: change its permissions or remove it first", errno.EACCES
            )
        return mode

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            if self.UNNAMED:
                return os.open(".", flags | self.UNNAMED, 0o600, dir_fd=self._directory)
        except OSError as error:
            # EISDIR is what kernels and file systems say that do not know of it.
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                raise
        self._temporary = self._other_name()
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, 0o600, dir_fd=self._directory)

    @staticmethod
    def _other_name() -> str:
        return f".nsm-{os.urandom(8).hex()}"

    def write(self, data: bytes) -> None:
        """
        Raises:
            OSError: as of write(2), such as ENOSPC.
        """
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self.moved += written
            view = view[written:]

    def keep(self) -> None:
        """Puts the file, whole, in its place.

        Raises:
            OSError: it can't be put there.
        """
        os.fchmod(self._fd, self.permissions)
        if self._temporary and self._overwrite:
            # Its file system may have no hard links either.
            self._rename()
            return
        try:
            self._link(self._name)
        except FileExistsError:
            if not self._overwrite:
                raise
            if not self._temporary:
                temporary = self._other_name()
                self._link(temporary)
                self._temporary = temporary
            self._rename()

    def _rename(self) -> None:
        os.rename(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._temporary = ""

    def close(self) -> None:
        """Lets go of the file; one that has not been kept is gone."""
        os.close(self._fd)
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)

    def _link(self, name: str) -> None:
        """Gives the file a name that must be free."""
        if self._temporary:
            os.link(
                self._temporary,
                name,
                src_dir_fd=self._directory,
                dst_dir_fd=self._directory,
                follow_symlinks=False,
            )
        else:
            os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._directory)


class Transfers:
    """The files that the supervisor has open, by the ids that it gave them.

    Each request has its answer at once, but a read while the supervisor lags behind with what it
    has been sent: that waits, so that what is kept for it stays bounded.

    Args:
        workspace: where relative paths begin.
        send: takes an answer.
        may_send: False while the supervisor lags behind.
    """

    REQUESTS = ("file_open", "file_read", "file_write", "file_close", "file_list", "file_mkdir")

    def __init__(
        self,
        workspace: str,
        send: Callable[[dict[str, Any]], None],
        may_send: Callable[[], bool],
    ) -> None:
        self._workspace = workspace
        self._send = send
        self._may_send = may_send
        self._files: dict[str | int, FileReader | FileWriter] = {}
        self._waiting: dict[str | int, Mapping[str, Any]] = {}

    @property
    def ids(self) -> list[str]:
        return [str(request_id) for request_id in self._files]

    def take(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Answers a request, now or when the supervisor has caught up."""
        path = message.get("path") or getattr(self._files.get(request_id), "path", "")
        try:
            if message["type"] == "file_open":
                self._open(request_id, message)
            elif message["type"] in {"file_list", "file_mkdir"}:
                self._list(request_id, message)
            else:
                self._continue(request_id, message)
        except TransferError as error:
            self._fail(request_id, str(error), error.code)
        except OSError as error:
            number = error.errno or 0
            words = WORDS.get(number, os.strerror(number))
            self._fail(request_id, f"{path}: {words}", errno.errorcode.get(number, ""))
        except ValueError as error:  # not base64, or no name that a file could have
            self._fail(request_id, f"{path!r:.200}: {error}", "EINVAL")

    def go_on(self) -> None:
        """Answers what waited, as far as the supervisor has caught up."""
        while self._waiting and self._may_send():
            request_id = next(iter(self._waiting))
            self.take(request_id, self._waiting.pop(request_id))

    def drop_all(self) -> None:
        """Ends every transfer; nothing half-written stays."""
        for request_id in list(self._files):
            self._drop(request_id)

    def _drop(self, request_id: str | int) -> None:
        self._waiting.pop(request_id, None)
        file = self._files.pop(request_id, None)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _fail(self, request_id: str | int, text: str, code: str) -> None:
        self._drop(request_id)
        message = text[:MAX_ERROR]
        self._send({"type": "file_error", "id": request_id, "message": message, "code": code})

    def _open(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        if request_id in self._files:
            raise TransferError("a file is open under this id already: its transfer is over")
        if len(self._files) >= MAX_OPEN_FILES:
            raise TransferError(
                f"{MAX_OPEN_FILES} files are open already: close one first", errno.EMFILE
            )
        mode = message.get("mode")
        permissions, overwrite = message.get("permissions"), message.get("overwrite", True)
        whole = self._whole(message.get("path"))
        if mode == "read":
            file: FileReader | FileWriter = FileReader(whole)
        elif mode != "write":
            raise TransferError(f"mode is {mode!r:.50}, expected 'read' or 'write'", errno.EINVAL)
        elif permissions is not None and not (_is_whole(permissions) and permissions >= 0):
            raise TransferError("permissions must be a whole number, 0 or more", errno.EINVAL)
        elif not isinstance(overwrite, bool):
            raise TransferError("overwrite must be true or false", errno.EINVAL)
        else:
            file = FileWriter(whole, permissions, overwrite=overwrite)
        self._files[request_id] = file
        self._tell(request_id, file)

    def _whole(self, path: object) -> str:
        """The absolute path that a request means."""
        if not isinstance(path, str) or not path:
            raise TransferError("path must be a text that is not empty", errno.EINVAL)
        whole = os.path.join(self._workspace, path)
        if "\0" in path or len(os.fsencode(whole)) >= 4096:  # PATH_MAX
            raise TransferError("the path is too long or has a NUL in it", errno.ENAMETOOLONG)
        return whole

    def _list(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Says what is in a directory, or makes it first and says only that it is there."""
        if request_id in self._files:
            raise TransferError("a file is open under this id: its transfer is over")
        path = self._whole(message.get("path"))
        makes = message["type"] == "file_mkdir"
        if makes:
            make_directory(path)
        directory = open_directory(path)
        try:
            entries, is_whole = ([], True) if makes else entries_of(directory)
            answer = {
                "type": "file_directory",
                "id": request_id,
                "path": name_of(directory),
                "entries": entries,
                "whole": is_whole,
                "free_bytes": free_bytes(directory),
            }
        finally:
            os.close(directory)
        self._send(answer)

    def _tell(self, request_id: str | int, file: FileReader | FileWriter) -> None:
        answer = {
            "type": "file",
            "id": request_id,
            "path": file.path,
            "size": file.size,
            "permissions": file.permissions,
        }
        if file.free_bytes is not None:
            answer["free_bytes"] = file.free_bytes
        self._send(answer)

    def _continue(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        file = self._files.get(request_id)
        if file is None:
            raise TransferError("no file is open under this id: open it first", errno.EBADF)
        if request_id in self._waiting:
            raise TransferError("the read before has no answer yet", errno.EBUSY)
        if kind == "file_close":
            if isinstance(file, FileWriter) and message.get("keep") is True:
                file.keep()
            self._drop(request_id)
            answer = {"type": "file_closed", "id": request_id, "path": file.path}
            self._send({**answer, "size": file.moved})
        elif kind == "file_read" and isinstance(file, FileReader):
            count = message.get("bytes", CHUNK_BYTES)
            if not _is_whole(count) or not 0 < count <= CHUNK_BYTES:
                raise TransferError(
                    f"bytes is {count!r:.50}, expected 1 to {CHUNK_BYTES}", errno.EINVAL
                )
            if self._may_send():
                self._send_data(request_id, *file.read(count))
            else:
                self._waiting[request_id] = message
        elif kind == "file_write" and isinstance(file, FileWriter):
            file.write(self._data(message.get("data")))
            self._tell(request_id, file)
        else:
            raise TransferError("the file is open for the other direction", errno.EBADF)

    def _send_data(self, request_id: str | int, data: bytes, eof: bool) -> None:
        from binascii import b2a_base64

        text = b2a_base64(data, newline=False).decode()
        self._send({"type": "file_data", "id": request_id, "data": text, "eof": eof})

    @staticmethod
    def _data(text: object) -> bytes:
        from base64 import b64decode

        if not isinstance(text, str) or len(text) > 2 * CHUNK_BYTES:
            raise TransferError(f"data must be base64 of at most {CHUNK_BYTES} bytes", errno.EINVAL)
        data = b64decode(text, validate=True)
        if len(data) > CHUNK_BYTES:
            raise TransferError(f"data has more than {CHUNK_BYTES} bytes", errno.EINVAL)
        return data


# ------------------------------------------------------------------------------------- processes


class Process:
    """One row of /proc; `started` in clock ticks since boot."""

    __slots__ = ("group", "parent", "pid", "session", "started", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything; what follows the last one is numbers.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent, self.group, self.session = (int(fields[1]), int(fields[2]), int(fields[3]))
        self.started = int(fields[19])

    @property
    def alive(self) -> bool:
        return self.state not in {b"Z", b"X", b"x"}


def read_processes() -> dict[int, Process]:
    """Every process that /proc shows, by pid; empty where there is no /proc."""
    table: dict[int, Process] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                row = read_process(int(entry))
                if row is not None:
                    table[row.pid] = row
    return table


class NewestPid:
    """Tells the pid that was given last in our PID namespace; 0 where /proc does not say."""

    def __init__(self) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def pid(self) -> int:
        try:
            return int(os.pread(self._fd, 128, 0).split()[4])
        except (OSError, ValueError, IndexError):
            return 0


def read_process(pid: int) -> Process | None:
    """One row of /proc; None when the process is gone."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Process(pid, os.read(fd, 4096))
        finally:
            os.close(fd)
    return None


def tree_of(table: Mapping[int, Process], leader: int, adopted: Iterable[int]) -> set[int]:
    """Pids of a session leader, of its session, of `adopted`, and of everyone below them."""
    members = {pid for pid, row in table.items() if row.session == leader or pid == leader}
    members.update(pid for pid in adopted if pid in table)
    grown = True
    while grown:
        below = {pid for pid, row in table.items() if row.parent in members} - members
        members |= below
        grown = bool(below)
    return members


def read_children(pid: int) -> set[int]:
    """Children of a process that has one thread; one read, no scan of /proc."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return {int(pid) for pid in file.read(READ_BYTES).split()}
    except OSError:
        return set()


def send_signal(pid: int, number: int) -> None:
    """Signals one process that may be gone."""
    assert pid > 1
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def is_ending(pid: int) -> bool:
    """Whether a child has ended, or does so within some milliseconds; it is left to be reaped."""
    for _ in range(ENDING_LOOKS):
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def caught_signals(pid: int) -> int:
    """Mask of the signals that a process has handlers for; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            return int(file.read(READ_BYTES).partition(b"\nSigCgt:")[2].split(None, 1)[0], 16)
    except (OSError, IndexError, ValueError):
        return 0


def ignores_interrupts(pid: int) -> bool:
    """Whether SIGINT would be lost on a process; False where /proc does not say."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            mask = file.read(READ_BYTES).partition(b"\nSigIgn:")[2].split(None, 1)[0]
        return bool(int(mask, 16) >> signal.SIGINT - 1 & 1)
    except (OSError, ValueError, IndexError):
        return False


def shut_abstract_sockets() -> None:
    """Keeps this process and all that it starts from abstract Unix sockets of others, which belong
    to a network namespace (unix(7)); where the kernel cannot do that, they stay open.

    Raises:
        OSError: the kernel can, and does not.
    """
    call = c_library().syscall
    if call(LANDLOCK_CREATE_RULESET, None, 0, 1) < LANDLOCK_SCOPES:
        return
    # struct landlock_ruleset_attr: nothing of files and ports, and one scope.
    fields = (0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)
    attributes = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
    ruleset = call(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0 or call(LANDLOCK_RESTRICT_SELF, ruleset, 0) < 0:
        raise OSError("abstract sockets of the host cannot be shut off")
    os.close(ruleset)


def listen_on_loopback(port: int) -> socket.socket:
    """A listening socket of the session's own loopback, on that port or, if it is taken, another.

    Raises:
        OSError: there is no loopback, or no descriptor left.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


@functools.cache
def c_library() -> Any:
    """The C library; once for a process and its forks, since each makes types of its own."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """
    Raises:
        OSError: the kernel refuses.
    """
    import ctypes

    if c_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


# ---------------------------------------------------------------------------------- interpreters


class Question:
    """What an interpreter is asked besides running code, which may keep it too busy to answer.

    Args:
        number: tells its answer from that to a question before.
        settle: called once, with the answer, or with nothing in it if there is none.
    """

    def __init__(self, number: int, settle: Callable[[Mapping[str, Any]], None]) -> None:
        self.number = number
        self._settle = settle
        self._settled = False

    def settle(self, answer: Mapping[str, Any]) -> None:
        if not self._settled:
            self._settled = True
            self._settle(answer)


class SetupStep:
    """Code that an interpreter runs before any other, each time it starts.

    Args:
        name: for people.
        timeout_s, grace_s: after that it is interrupted like any execution, and then killed.

    Attributes:
        told: what it failed with, once; later failures are not told again.
        late: other code may have run before it, whose state counts.
    """

    late = False

    def __init__(self, name: str, code: str, timeout_s: float, grace_s: float) -> None:
        self.name = name
        self.code = code
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.told = False

    @staticmethod
    def all_of(given: Mapping[str, Any]) -> list[SetupStep]:
        """
        Raises:
            ValueError: they are not as in docs/agent-protocol.md.
        """
        steps: list[Any] | None = given.get("steps")
        timeout_s: Any = given.get("timeout_s")
        grace_s: Any = given.get("grace_s", GRACE_S)
        if type(steps) is not list or len(steps) > MAX_SETUP_STEPS:
            raise ValueError(f"setup needs steps, a list of at most {MAX_SETUP_STEPS}")
        if not _is_seconds(timeout_s) or not _is_seconds(grace_s):
            raise ValueError("setup needs timeout_s and takes grace_s, seconds")
        found: list[SetupStep] = []
        for step in steps:
            fields = _as_object(step) or {}
            name, code = fields.get("name"), fields.get("code")
            if isinstance(name, str) and isinstance(code, str):
                found.append(SetupStep(name, code, float(timeout_s), float(grace_s)))
                continue
            raise ValueError("each step of setup needs a name and code, texts")
        return found


class Interpreter:
    """An interpreter in a process tree of its own. A subclass says how to start and talk to it.

    Attributes:
        pid: leader of the interpreter's session and process group; 0 when it is not running.
        has_state: code has run in it, so that its end loses something.
        lost: why the next execution will not find the state of the last one; empty if it will.
        setup: what is run each time it starts.
        steps: what of that the running one has still to run, the next or running one first.
    """

    name = ""
    may_miss_interrupt = False
    """Whether an interrupt right after `send_code` can be lost."""
    answers: tuple[str, ...] = ()
    """Kinds of questions that it takes; one at a time."""
    exit_note = ""
    """What usually makes it exit, for people who wonder where their state is."""
    reads_variables_at_start = False
    """Whether it looks at some variables only once, when it starts."""
    ends_with_code = False
    """True if its process ends with the code that it runs, so that its exit loses no state."""

    def __init__(self, agent: Agent, program: str) -> None:
        self.agent = agent
        self.program = program
        self.pid = 0
        self.has_state = False
        self.lost = ""
        self.pipes: dict[str, OutputPipe] = {}
        self.captures: dict[str, Capture] = {}
        self.displays: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.setup: list[SetupStep] = []
        self.steps: list[SetupStep] = []
        self._aside: tuple[dict[str, Capture], str] | None = None
        self.link: Link | None = None
        self.question: Question | None = None
        self._display_bytes = 0
        self._private: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid} has_state={self.has_state}>"

    # What a subclass provides.

    @property
    def takes_signals(self) -> bool:
        """Whether SIGINT would interrupt the code now. Before, it would be lost or worse."""
        return False

    def become_program(self, control_fd: int) -> NoReturn:
        """Runs in the new process, 0 to 2 in place, nothing else open but `kept_fds`."""
        raise NotImplementedError

    def kept_fds(self) -> tuple[int, ...]:
        """Descriptors besides the control socket that the new process needs."""
        return ()

    def begin(self) -> None:
        """Runs in the agent right after the start."""

    def send_code(self, number: int, code: str, *, one_shot: bool = False) -> None:
        """Send `code` to the interpreter as execution `number`.

        Args:
            one_shot: the session ends with this execution, so nothing can be left for a next one.
        """
        raise NotImplementedError

    def variables_code(self, variables: Mapping[str, str]) -> str:
        """Code that sets variables for what it runs, and leaves nothing else behind."""
        raise NotImplementedError

    def send_question(self, kind: str, number: int, fields: Mapping[str, Any]) -> None:
        """Asks it something of its `answers`."""

    def send_interrupt(self, number: int) -> None:
        """Does what it takes besides a signal to interrupt execution `number`."""

    def hold(self) -> None:
        """Called before its processes are looked at to be signalled."""

    def await_forks(self) -> None:
        """Waits until processes that it has just started may be signalled."""

    def release(self, number: int) -> None:
        """Called when the signals that interrupt execution `number` have been sent."""

    def on_data(self, data: bytes) -> None:
        """Takes what came over the control socket."""
        raise NotImplementedError

    def on_exit(self) -> None:
        """Handle the end of its process; the processes that it started are still there."""

    def on_control_end(self) -> None:
        """The control socket is closed: code has closed it, or replaced the program by another.

        While code runs, it may well be doing its job. Its end will be the end of the process. One
        that is killed while it waits closes its socket a moment before it can be reaped, which
        tells more.
        """
        if not self.runs and not is_ending(self.pid):
            self.agent.end_interpreter(self, "had its control socket closed by code")

    def limit(self, limits: Mapping[str, int]) -> None:
        """Applies new limits to the running interpreter."""
        try:
            apply_limits(limits, self.pid)
        except OSError:
            # A filter may allow a process to change its own limits only.
            self.start_over()

    def start_over(self) -> None:
        """Replaces an interpreter that has not been used yet."""
        if not self.has_state:
            self.discard("")
            with contextlib.suppress(OSError):  # the next execution will say why
                self.start()

    # Life of the process.

    def start(self) -> None:
        """Starts a fresh interpreter.

        Raises:
            OSError: no process, descriptor or memory is left.
        """
        pipes: dict[str, OutputPipe] = {}
        with contextlib.ExitStack() as undo:
            for stream in ("stdout", "stderr"):
                pipes[stream] = pipe = OutputPipe()
                undo.callback(pipe.close)
            ours, theirs = socket.socketpair()
            undo.enter_context(ours)
            undo.enter_context(theirs)
            pid = os.fork()
            undo.pop_all()
        if pid == 0:
            try:
                self._become_child(theirs.detach(), pipes)
            except ForkedWorker:
                raise
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(2, f"cannot start {self.program}: {error}\n".encode())
                os._exit(127)
        theirs.close()
        self.pid = pid
        self.has_state = False
        self.steps = self.setup[:]
        self.pipes = pipes
        self._private = {}
        poller = self.agent.poller
        for stream, pipe in pipes.items():
            self._watch_output(stream, pipe)
            self.captures.setdefault(stream, self.agent.new_capture(stream))
        fd = ours.detach()
        self.link = Link(poller, fd, fd, self.on_data, self.on_control_end)
        self.begin()

    def _become_child(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> NoReturn:
        os.setsid()
        signal.set_wakeup_fd(-1)
        set_handler(signal.SIGCHLD, DEFAULT_ACTION)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(pipes["stdout"].child_fd, 1)
        os.dup2(pipes["stderr"].child_fd, 2)
        private = _dup_high(control_fd)
        kept = {0, 1, 2, private, *self.kept_fds()}
        for entry in os.listdir("/proc/self/fd"):
            if int(entry) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(entry))
        # Only now may others look into this process: it held the channel until here.
        prctl(PR_SET_DUMPABLE, 1)
        if self.agent.pid != 1:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, b"1000")  # whoever must go when memory ends, it is not the agent
            os.close(fd)
        apply_limits(self.agent.limits.resources)
        with contextlib.suppress(OSError):
            os.chdir(self.agent.workspace)
        self.become_program(private)

    def discard(self, reason: str) -> None:
        """Ends the process tree, if it runs, and forgets it. `reason` says why state is lost."""
        killed = self.agent.kill_tree(self) if self.pid else set[int]()
        self.forget(reason)
        self.agent.await_end(killed)

    def forget(self, reason: str) -> None:
        """Releases what belonged to a process that is gone; what it printed is kept."""
        if self.has_state:
            self.lost = reason
        self.pid = 0
        self.has_state = False
        if self.question is not None:
            self.question.settle({})
            self.question = None
        for stream, pipe in self.pipes.items():
            self._keep(stream, pipe.cut())
            self.agent.poller.forget(pipe.read_fd)
            pipe.close()
        self.pipes = {}
        if self.link is not None:
            self.link.close()
            self.link = None

    # Set-up.

    def begin_step(self) -> None:
        """What is printed from now on belongs to the set-up.

        What the executions are still to be told, output of an earlier process and why its state is
        lost, is put aside until `end_setup`.
        """
        if self._aside is None:
            self._aside = self.captures, self.lost
        limits = Limits({"reply_bytes": SETUP_EXCERPT_BYTES})
        self.captures = {stream: Capture(stream, None, limits) for stream in self.captures}
        self.resume_output()

    def complain(self, step: SetupStep, why: str, said: str) -> None:
        """Has the next execution told that a step failed.

        Args:
            said: what it printed to stderr.
        """
        if self._aside is None or step.told:
            return
        step.told = True
        words = "".join(f"  {line}\n" for line in said.splitlines() if line.strip())
        text = f"[nsm: {step.name} of this environment's set-up {why}]\n{words}"
        self._aside[0]["stderr"].write(text.encode("utf-8", "replace"))

    def end_setup(self) -> None:
        """All steps have been run: what is printed belongs to executions."""
        if self._aside is not None:
            self.captures, lost = self._aside
            self.lost = self.lost or lost
            self._aside = None

    # Output.

    def _watch_output(self, stream: str, pipe: OutputPipe) -> None:
        def on_output(_events: int) -> None:
            self._keep(stream, pipe.read())
            if not self.runs and self.captures[stream].full:
                # A background flood waits for the next execution rather than spin the agent.
                pipe.paused = True
                self.agent.poller.change(pipe.read_fd, 0)

        self.agent.poller.watch(pipe.read_fd, on_output)

    @property
    def runs(self) -> bool:
        """Whether the running execution is one of this interpreter."""
        return self.agent.running is not None and self.agent.running.interpreter is self

    def _keep(self, stream: str, data: bytes) -> None:
        self.captures[stream].write(data)
        execution = self.agent.running
        if data and self.runs and execution is not None and execution.preview is not None:
            execution.preview.write(stream, data)

    def resume_output(self) -> None:
        for pipe in self.pipes.values():
            if pipe.paused:
                pipe.paused = False
                self.agent.poller.change(pipe.read_fd, select.POLLIN)

    def take_output(self) -> dict[str, Capture]:
        """All that was printed up to now; what comes from now on is for the next execution."""
        for stream, pipe in self.pipes.items():
            if data := pipe.cut():
                self._keep(stream, data)
        taken = self.captures
        # One that has caught nothing is as good as new.
        self.captures = {
            stream: self.agent.new_capture(stream) if capture.total_bytes else capture
            for stream, capture in taken.items()
        }
        return taken

    def add_display(self, data: Any) -> None:
        """Keeps what the interpreter says was displayed, if it is what it ought to be."""
        bundle = _as_object(data)
        if bundle is None or len(self.displays) >= MAX_DISPLAYS:
            return
        if _is_deep(bundle):
            bundle = {kind: value for kind, value in bundle.items() if not _is_deep([value])}
            bundle = bundle or {"text/plain": DISPLAY_TOO_DEEP}
        try:
            size = len(encode_frame(bundle))
        except FrameError:
            return
        if self._display_bytes + size > DISPLAY_BYTES:
            bundle = {"text/plain": DISPLAY_LEFT_OUT}
            size = 0
        self._display_bytes += size
        self.displays.append(bundle)

    def take_displays(self) -> list[dict[str, Any]]:
        taken, self.displays, self._display_bytes = self.displays, [], 0
        return taken

    def add_note(self, text: object) -> None:
        """Keeps a sentence about the execution that its result is to show, on one line."""
        if isinstance(text, str) and len(self.notes) < MAX_RESULT_NOTES:
            self.notes.append(" ".join(text[:MAX_RESULT_NOTE].split()))

    def take_notes(self) -> list[str]:
        taken, self.notes = self.notes, []
        return taken

    # Private descriptors.

    def expect_private(self, expected: Mapping[int, tuple[int, int]]) -> None:
        """From now on `is_intact` compares these descriptors of the interpreter."""
        self._private = dict(expected)

    def is_intact(self) -> bool:
        """Whether code has left the descriptors alone that the next execution depends on."""
        for fd, identity in self._private.items():
            try:
                if _identity(os.stat(f"/proc/{self.pid}/fd/{fd}")) != identity:
                    return False
            except FileNotFoundError:
                return False
            except OSError:
                return True  # not ours to see, e.g. a set-user-id program: no reason to judge
        return True


class FramedInterpreter(Interpreter):
    """One whose control socket carries frames, as opposed to lines."""

    def __init__(self, agent: Agent, program: str) -> None:
        super().__init__(agent, program)
        self._reader = FrameReader(WORKER_FRAME_BYTES)
        self._token = ""

    def begin(self) -> None:
        self._reader = FrameReader(WORKER_FRAME_BYTES)

    def send(self, message: Mapping[str, Any]) -> None:
        if self.link is not None:
            self.link.send(encode_frame(message))

    def send_code(self, number: int, code: str, *, one_shot: bool = False) -> None:
        # Told with the end again: code of an earlier execution cannot have foreseen it.
        self._token = os.urandom(16).hex()
        message: dict[str, Any] = {
            "type": "run",
            "id": number,
            "token": self._token,
            "code": code,
        }
        if one_shot:
            message["one_shot"] = True
        self.send(message)

    def send_question(self, kind: str, number: int, fields: Mapping[str, Any]) -> None:
        self.send({"type": kind, "id": number, **fields})

    def on_begun(self) -> None:
        """The interpreter says that it is set up."""

    def on_started(self) -> None:
        """The interpreter says that the code can be interrupted from now on."""

    def on_data(self, data: bytes) -> None:
        reader = self._reader
        reader.receive_data(data)
        while self._reader is reader:
            try:
                message = reader.next_message()
            except FrameError as error:
                self.agent.end_interpreter(self, f"broke its control socket's protocol: {error}")
                return
            if message is None:
                return
            kind = message.get("type")
            if kind == "begun":
                self.on_begun()
            elif kind == "started":
                self.on_started()
            elif kind == "display":
                self.add_display(message.get("data"))
            elif kind == "note":
                self.add_note(message.get("text"))
            elif kind == "done" and message.get("token") == self._token:
                self.agent.on_done(self, message.get("id"), message.get("exit_code"))
            elif kind == "answer":
                self.on_answer(message)

    def on_answer(self, message: Mapping[str, Any]) -> None:
        """Takes an answer; one to a question that was given up frees the place for another."""
        question = self.question
        if question is not None and question.number == message.get("id"):
            self.question = None
            question.settle(message)


class SharedPage:
    """Two numbers of executions in memory that the agent shares with a Python worker.

    Each is written by one side and looked at by the other when it matters, so that a call that
    nobody interrupts wakes nobody for that. Code can write to it as well: all that it decides is
    whether an interrupt of that code is sent at once, later or never.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)  # shared, and there without the descriptor
        self._numbers = memoryview(self._memory).cast("Q")

    @staticmethod
    def make_file() -> int:
        """A descriptor for `SharedPage`. Nobody can shorten the file below the feet of another.

        Raises:
            OSError: no descriptor or memory is left.
        """
        fd = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @property
    def interruptible(self) -> int:
        """The execution whose code takes signals, or took them last; the worker's to write."""
        return self._numbers[0]

    @interruptible.setter
    def interruptible(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def awaited(self) -> int:
        """The execution whose `started` the agent wants to be sent; the agent's to write."""
        return self._numbers[1]

    @awaited.setter
    def awaited(self, number: int) -> None:
        self._numbers[1] = number


class ForkedWorker(BaseException):
    """Unwinds the agent's frames in a fork that is to be a Python worker.

    Derives from BaseException because it is no error and nothing on its way must catch it.
    """

    def __init__(self, control_fd: int, page: SharedPage) -> None:
        super().__init__()
        self.control_fd = control_fd
        self.page = page


class PythonInterpreter(FramedInterpreter):
    """A fork of the agent when the agent's own Python is to be used, else another program."""

    name = "python"
    answers = ("complete",)

    def __init__(self, agent: Agent, program: str) -> None:
        super().__init__(agent, program)
        self._page_fd = -1
        self._page: SharedPage | None = None
        self._number = 0
        self._awaits_start = False

    @property
    def takes_signals(self) -> bool:
        return self._page is not None and self._page.interruptible == self._number

    def kept_fds(self) -> tuple[int, ...]:
        return (self._page_fd,)

    def start(self) -> None:
        self._page_fd = SharedPage.make_file()
        try:
            self._page = SharedPage(self._page_fd)
            super().start()
        finally:
            os.close(self._page_fd)

    def become_program(self, control_fd: int) -> NoReturn:
        if self.program == sys.executable and self._page is not None:
            raise ForkedWorker(control_fd, self._page)
        agent_file = os.path.abspath(__file__)
        for fd in (control_fd, self._page_fd):
            os.set_inheritable(fd, True)
        os.execv(
            self.program,
            [self.program, "-I", agent_file, "--worker", str(control_fd), str(self._page_fd)],
        )

    def send_code(self, number: int, code: str, *, one_shot: bool = False) -> None:
        self._number = number
        self._awaits_start = True
        super().send_code(number, code, one_shot=one_shot)

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"__import__('os').environ.update({dict(variables)!r})"

    def on_started(self) -> None:
        if self._awaits_start:  # else code says so, which may say it thousands of times
            self._awaits_start = False
            self.agent.on_interruptible(self)

    def send_interrupt(self, number: int) -> None:
        if self._page is not None:
            # Before looking whether it takes signals, as the worker does it the other way round:
            # so at least one side sees what the other wrote.
            self._page.awaited = number
            self._awaits_start = self._awaits_start and not self.takes_signals
        # system(3) ignores SIGINT while its command runs, and the code would go on behind it.
        if self.takes_signals and ignores_interrupts(self.pid):
            self.send({"type": "interrupt"})
            send_signal(self.pid, PythonWorker.INTERRUPT)

    def limit(self, limits: Mapping[str, int]) -> None:
        self.send({"type": "limits", "limits": dict(limits)})


class BashInterpreter(Interpreter):
    """One long-lived shell.

    It is an interactive one, reading commands from its control socket: an interrupt or a failed
    expansion then aborts the code and not the shell. User code is never among those commands: it
    is sourced from a memory file that the agent rewrites, so an unclosed quote ends with the
    file. Descriptors 0 to 2 are the code's for the duration of that `source` only; what bash
    prints about the driver's own lines (`set -x`, DEBUG traps, prompts) goes to /dev/null.

    The descriptors that it needs between executions are close-on-exec, and those that bash saves
    while code runs lie above them, so that scripts have 3 to 199 for themselves.

    A one-shot needs no state afterwards. The shell replaces itself by `bash FILE`, so that all is
    as in a script: what stops it, the numbers of lines in messages, an EXIT trap. Only a shell
    that a set-up has given functions and variables runs a one-shot as it runs any code.

    In an interactive shell a failed expansion ends one command and `set -e` ends the shell. Code
    that may meet one of these, by its text or the options that are on, is guarded, so that it stops
    as a script does and the shell lives on. A failed expansion gives up the whole command that it
    is in, so the code is made one command, in braces, if it can be parsed as such. For `set -e`
    there are two traps, if code has none of its own: `ON_ERR` and `ON_EXIT`.
    """

    name = "bash"
    may_miss_interrupt = True
    exit_note = " (`exit`, `exec`, or a command that failed under `set -e`)"
    OPTIONS = (
        *("--norc", "--noprofile", "--noediting", "+o", "history", "+o", "histexpand"),
        *("-O", "execfail", "-i"),  # a failed `exec` ends no shell at a terminal either
    )
    FIRST_FD = 230
    ABORT_SIGNAL = signal.SIGURG
    """Follows SIGINT to have the shell give up the code. Ignored if code took the trap away.

    On SIGINT alone bash goes on with the next command if the one that it waits for handles the
    signal and exits, as test runners and `ping` do. A trap runs between the two. It leaves code
    alone that has a trap for SIGINT of its own, and does nothing while no code is sourced.
    """
    ABORT = (
        r"{ [[ -z ${BASH_SOURCE-} || -n $(\builtin \trap -p INT) ]] || \builtin \kill -INT "
        r'"$$"; } </dev/null >/dev/null 2>&1'
    )
    SETS_ERREXIT = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*e|\berrexit\b")
    SETS_NOUNSET = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*u|\bnounset\b")
    ASSERTS = re.compile(r"\$\{!?\w+(?:\[[^]]*\])?:?\?")
    SETS_ERRTRACE = re.compile(r"\bset\s(?:[^\n;&|]*\s)?[-+]\w*E|\berrtrace\b")
    ON_ERR = (
        "case $BASH_SUBSHELL:${#BASH_SOURCE[@]}:$- in "
        r"0:0:*e*) nsm_errexit=1; \set +e;; "
        r"0:1:*e*) nsm_stop=${nsm_stop-$((LINENO * 256 + $?))}; \return 0;; "
        r"0:*e*) nsm_stop=${nsm_stop-$((BASH_LINENO[-2] * 256 + $?))}; \return 1;; esac"
    )
    """Runs where `set -e` is about to end the shell, and returns from the code instead.

    It does so from each function in turn. Last fails the `.` of the driver, and `set -e` must be
    off then. A subshell ends as usual.
    """
    ON_EXIT = r'nsm_stop=$?; { \kill -INT "$$" || :; } 2>/dev/null'
    """Under `set -e` a failed expansion ends the shell at once. Only an interrupt leaves that.

    It does nothing to a shell that ends otherwise, since that has given up its code before.
    Without the `||` bash would not look for the interrupt again before it ends.
    """
    CONFIRMATIONS = 3
    """Reports after signals: SIGINT may discard one, `ABORT` another, before all is settled."""
    SCRIPT_ABORT = (
        r"{ [[ -n $(\builtin \trap -p INT) ]]; } </dev/null >/dev/null 2>&1"
        r' || \builtin \kill -INT "$$"'  # an EXIT trap that it sets off may print
    )

    def __init__(self, agent: Agent, program: str) -> None:
        super().__init__(agent, program)
        self._code_fd = -1
        self._line = b""
        self._fds: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._confirmations = 0
        self._has_handlers = False
        self._one_shot = False
        self._number = 0
        self._options = b""
        self._added_option = b""
        self._unparsed: str | None = None
        self._held = ""
        # Made with a name that nobody can foresee, and not used if it is there already.
        self._link_folder = f"/tmp/.nsm-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
        self.ends_with_code = False

    @property
    def takes_signals(self) -> bool:
        return self._has_handlers

    def kept_fds(self) -> tuple[int, ...]:
        return (self._code_fd,)

    def start(self) -> None:
        first = min(self.FIRST_FD, self.agent.limits.resources.get("descriptors", 1024) - 24)
        self._fds = (first, first + 1, first + 2, first + 3)
        if self._code_fd >= 0:
            os.close(self._code_fd)
        self._code_fd = os.memfd_create("code", os.MFD_CLOEXEC)
        super().start()

    def become_program(self, control_fd: int) -> NoReturn:
        restore_signals()
        for target, source in enumerate((self._code_fd, 0, 1, 2), start=20):
            os.dup2(source, target, inheritable=False)
        for target in (3, 4, 5, 6):
            os.dup2(target + 17, target)
        os.dup2(control_fd, 0)
        os.dup2(4, 1)
        os.dup2(4, 2)
        os.execv(self.program, ["bash", *self.OPTIONS])

    def begin(self) -> None:
        self._line = b""
        self._has_handlers = False
        self._options = b""
        self._held = ""
        self.ends_with_code = False
        code, null, out, err = self._fds
        # While 3 to 6 are closed for a group of commands, bash keeps them at 10 to 13 marked
        # close-on-exec, and duplicating a marked descriptor marks the copy.
        self._command(
            f"{{ \\exec {code}<&10 {null}<&11 {out}>&12 {err}>&13; }} 3<&- 4<&- 5>&- 6>&-\n"
            "\\exec 3<&- 4<&- 5>&- 6>&-\n"
            f"\\trap -- '{self.ABORT}' {self.ABORT_SIGNAL.name}\n" + self._report(0, 0)
        )

    @staticmethod
    def _report(number: int, confirmation: int, status: str = "$?") -> str:
        """Tells the status of the last command and the numbers by way of a failing redirection.

        No function, alias or disabled builtin can stand in the way of that, no trace shows it
        since nothing is run, and for `set -e` and an ERR trap it is not a command that failed.
        A DEBUG trap may forbid simple commands, and redirections are one; of compound commands it
        sees nothing before they are redirected. (They come second since bash, after an `exec` of
        redirections in the code, frees memory twice if those of a compound command fail.)
        """
        report = f'2>&0 3</dev/null/"{status} $- $BASHPID @ {number} {confirmation} "'
        return f"{report} && (( 1 )) {report} || 2>&0\n"

    @staticmethod
    def _last_report(number: int, confirmation: int, status: str = "$?") -> str:
        r"""Tells the same if the line with the report was given up, and sets the parser right.

        After an unclosed `$(` the parser of bash 5.2 counts -1 open quotes, and notes the next one
        in front of its list, where the allocator has the size of the block: the shell dies some
        time later. So nothing may be quoted until a syntax error has reset the count, and the
        report proper must have been read before the code ran. Unquoted text is split at `IFS`,
        which makes another error of it. (The syntax error is in a file since one of the driver's
        own would end the shell under `set -e`.)
        """
        report = rf"2>&0 3</dev/null/{status}\ $-\ $BASHPID\ @\ {number}\ {confirmation}\ "
        return f"{report} || 2>&0\n\\. /dev/fd/0 <<<\\) || 2>&0\n"

    def _command(self, lines: str) -> None:
        if self.link is not None:
            self.link.send(lines.encode())

    def send_code(self, number: int, code: str, *, one_shot: bool = False) -> None:
        self._number = number
        self._one_shot = one_shot
        self.ends_with_code = one_shot and not self.setup
        self._confirmations = 0
        self._unparsed = None
        self._added_option = b""
        source, null, out, err = self._fds
        streams = f"<&{null} >&{out} 2>&{err}"
        if self.ends_with_code:
            self._write_code(":;" + code)
            lines = (
                f"{self._become_script()} {streams}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )
            if self._has_handlers:
                self._command(lines)
            else:
                # It closes the control socket, and with lines unread in there its first report
                # is lost.
                self._held = lines
        elif b"u" in self._options or self.SETS_NOUNSET.search(code) or self.ASSERTS.search(code):
            self._unparsed = code
            self._write_code(f"((1))||{{ {code}\n}}")
            self._command(
                f"\\. /dev/fd/{source} <&{null} >&{null} 2>&{null}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )
        elif b"e" in self._options or self.SETS_ERREXIT.search(code):
            self._send_guarded(number, code)
        else:
            self._write_code(code)
            self._command(
                f"\\. /dev/fd/{source} {streams}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )

    def _send_guarded(self, number: int, code: str) -> None:
        """Has the shell run code so that what would end a script ends no more than the code."""
        self._write_code(code)
        source, null, out, err = self._fds
        status = "${nsm_stop-$?}"
        stays = b"E" in self._options or self.SETS_ERRTRACE.search(code)
        self._added_option = b"" if stays else b"E"
        untrace = "" if stays else r"\set +E; "
        self._command(
            r"\unset nsm_stop nsm_errexit; "
            rf"[[ $(\trap -p ERR) == *\'* ]] || \trap -- {_quoted(self.ON_ERR)} ERR; "
            rf"[[ $(\trap -p EXIT) == *\'* ]] || \trap -- {_quoted(self.ON_EXIT)} EXIT; \set -E"
            "\n"
            rf"\. /dev/fd/{source} <&{null} >&{out} 2>&{err}; "
            rf"nsm_stop={status}; (( ${{nsm_errexit-0}} == 0 )) || \set -e; "
            + self._report(number, self._confirmations, status)
            + self._last_report(number, self._confirmations, status)
            + r"[[ $(\trap -p ERR) != *nsm_stop* ]] || \trap - ERR; "
            r"[[ $(\trap -p EXIT) != *nsm_stop* ]] || \trap - EXIT; "
            rf"{untrace}\unset nsm_stop nsm_errexit"
            "\n"
        )

    def _write_code(self, code: str) -> None:
        os.ftruncate(self._code_fd, 0)
        view = memoryview(code.encode("utf-8", "replace"))
        offset = 0
        while offset < len(view):
            offset += os.pwrite(self._code_fd, view[offset:], offset)

    def _become_script(self) -> str:
        """Gives the command by which the shell becomes one that runs the file as a script.

        Bash's messages name a script by the path that bash was given. So that is `bash`, a link in
        a directory of its own, and the script's first command goes back from there. It is `:`, a
        function that is gone when it has run: messages about a syntax error show the whole line.
        """
        source = self._fds[0]
        first = (
            r"\unset BASH_ENV; \exec 8<&-; "
            rf"\trap -- {_quoted(self.SCRIPT_ABORT)} {self.ABORT_SIGNAL.name}; "
            rf":() {{ \unset -f :; \exec 9<&-; \cd -- {_quoted(self.agent.workspace)}; "
            r"\unset OLDPWD; }"
        )
        path, change = "/dev/fd/9", ""
        with contextlib.suppress(OSError):
            os.mkdir(self._link_folder, 0o700)
            os.symlink(path, f"{self._link_folder}/bash")
            path, change = "bash", rf"\cd -- {_quoted(self._link_folder)}; "
        return (
            rf"{change}BASH_ENV=/dev/fd/8 \exec -a bash {_quoted(self.program)} {path} "
            f"8<<<{_quoted(first)} 9</dev/fd/{source}"
        )

    def on_exit(self) -> None:
        if self.ends_with_code:
            self._note_background()
            with contextlib.suppress(OSError):
                os.unlink(f"{self._link_folder}/bash")
                os.rmdir(self._link_folder)

    def _note_background(self) -> None:
        """Says what ends with a one-shot though its code had put it into the background."""
        if self._one_shot and (count := self.agent.count_background()):
            ended = (
                "1 background process was" if count == 1 else f"{count} background processes were"
            )
            self.add_note(
                f"{ended} still running when the code ended, and ended with it; "
                "`wait` for them, or run the code in a session"
            )

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return "".join(f"export {name}={_quoted(value)}\n" for name, value in variables.items())

    def hold(self) -> None:
        """Stops the shell, so that what it is starting is there to be seen, and set up."""
        if self.takes_signals:
            send_signal(self.pid, signal.SIGSTOP)
            self._await(lambda row: row.state == b"T" and not self._has_new_forks())

    def await_forks(self) -> None:
        self._await(lambda _: not self._has_new_forks())

    def _await(self, condition: Callable[[Process], bool]) -> None:
        """Waits until that is true of the shell, or it has ended, for a bounded time."""
        limit = time.monotonic() + HOLD_LIMIT_S
        while True:
            row = read_process(self.pid)
            if row is None or not row.alive or condition(row) or time.monotonic() > limit:
                return
            time.sleep(HOLD_S)

    def _has_new_forks(self) -> bool:
        """Whether a child may still have the shell's handlers, all or those not yet reset.

        That takes a fork microseconds, but from when it is its turn to run. Interrupted before, it
        may take itself for the shell and read the lines that are meant for that.

        Forks reset them in the order of their numbers, but those that end a shell before, so that
        for SIGINT is gone when the one for `ABORT_SIGNAL` is. What has that of its own, after an
        exec, has others as well that no shell has.
        """
        mask = caught_signals(self.pid)
        last = 1 << self.ABORT_SIGNAL - 1
        for pid in read_children(self.pid):
            theirs = caught_signals(pid)
            if theirs == mask or (theirs & last and not theirs & ~mask):
                return True
        return False

    def release(self, number: int) -> None:
        # A report of before would say nothing about signals that the shell has yet to handle,
        # and that would hit the next execution.
        self._confirmations += 1
        if self.takes_signals:
            send_signal(self.pid, self.ABORT_SIGNAL)
        self._command(self._report(number, self._confirmations) * self.CONFIRMATIONS)

    def on_data(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-READ_BYTES:]
        for line in lines:
            words = line.partition(b": /dev/null/")[2].split(b" ", 6)
            if words[0].startswith(
                b"$"
            ):  # could not be expanded: the code was aborted, by a SIGINT
                words = [b"130", b"", b"", *(each.rstrip(b"\\") for each in words[3:])]
            if len(words) == 7 and words[3] == b"@" and words[2] in {b"", b"%d" % self.pid}:
                numbers = (words[0], words[4], words[5])
                if all(each.isdigit() and len(each) < 20 for each in numbers):
                    if b"r" in words[1]:
                        self.agent.end_interpreter(
                            self, "became a restricted shell by `set -r`", int(words[0])
                        )
                    else:
                        if words[1]:
                            self._options = words[1].replace(self._added_option, b"")
                        self._on_report(*map(int, numbers))

    def _on_report(self, status: int, number: int, confirmation: int) -> None:
        if number == 0:
            self._on_begun(status)
        elif self.runs and number == self._number and confirmation == self._confirmations:
            code, self._unparsed = self._unparsed, None
            if code is not None and confirmation == 0:
                self._confirmations = 1
                self._send_guarded(number, f"{{ {code}\n}}" if status == 0 else code)
                return
            self._note_background()
            line, status = divmod(status, 256)
            if line:
                self.add_note(f"`set -e` stopped the code at line {line}; the session goes on")
            self.agent.on_done(self, number, status)

    def _on_begun(self, status: int) -> None:
        if self._has_handlers:
            return  # code says so, which may say it thousands of times
        if status != 0:
            self.agent.end_interpreter(self, "cannot set up its descriptors; is it GNU bash?")
            return
        code, null, out, err = self._fds
        self.expect_private(
            {
                code: _identity(os.fstat(self._code_fd)),
                null: _identity(os.stat("/dev/null")),
                out: self.pipes["stdout"].identity,
                err: self.pipes["stderr"].identity,
            }
        )
        self._has_handlers = True
        held, self._held = self._held, ""
        execution = self.agent.running
        if held and execution is not None and not execution.stopping:
            self._command(held)
        self.agent.on_interruptible(self)

    def limit(self, limits: Mapping[str, int]) -> None:
        # The shell may have to begin anew anyway: its descriptors must lie below the limit.
        if self.has_state:
            super().limit(limits)
        else:
            self.start_over()


class NodeInterpreter(FramedInterpreter):
    """Node with `NODE_RUNNER`. It can't put descriptors back, so 1 and 2 must stay in place."""

    name = "node"
    CONTROL_FD = 3
    # Code that is interrupted in a timer or immediate leaves Node's book-keeping of asynchronous
    # contexts a level too deep; with the checks on, Node would abort over that.
    OPTIONS = ("--no-force-async-hooks-checks",)
    answers = ("check", "complete")
    reads_variables_at_start = True  # NODE_USE_ENV_PROXY, for one

    def become_program(self, control_fd: int) -> NoReturn:
        restore_signals()
        # Node marks what it inherits as close-on-exec, as far as descriptors are contiguous.
        os.dup2(control_fd, self.CONTROL_FD)
        os.execv(self.program, [self.program, *self.OPTIONS, "-e", NODE_RUNNER])

    def on_begun(self) -> None:
        self.expect_private({1: self.pipes["stdout"].identity, 2: self.pipes["stderr"].identity})

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"void Object.assign(process.env, {json.dumps(dict(variables))})"

    def send_interrupt(self, number: int) -> None:
        self.send({"type": "interrupt", "id": number})

    def on_control_end(self) -> None:
        # The thread that owned it is gone. Either the process ends now, and will have an exit
        # status, or nobody is left to tell when code ends.
        pid = self.pid

        def give_up() -> None:
            if self.pid == pid:
                self.agent.end_interpreter(self, "lost the thread that reports results")

        self.agent.poller.at("control end", time.monotonic() + CONTROL_END_S, give_up)


INTERPRETERS = {kind.name: kind for kind in (PythonInterpreter, BashInterpreter, NodeInterpreter)}


def _quoted(text: str) -> str:
    """Gives the text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def restore_signals() -> None:
    """Undoes what Python ignores: a program started with SIGPIPE ignored misses broken pipes."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        set_handler(number, DEFAULT_ACTION)


# ------------------------------------------------------------------------------- checks of input


class InputCheck:
    """A child process that says whether a text is a whole input, by parsing it.

    A process of its own, since parsers have texts on which they crash or take for ever; it is
    also there while code runs. The text is never run.

    Args:
        interpreter: `python` or `bash`.
        program: path of that interpreter.

    Raises:
        OSError: no process, descriptor or memory is left.
    """

    STATUSES = ("complete", "incomplete", "invalid")
    BASH = ("--norc", "--noprofile", "-O", "extglob", "-n")
    BASH_UNFINISHED = (
        rb"bash: line \d+: (syntax error: unexpected end of file|unexpected EOF while looking for"
        rb"|unexpected token `EOF')"
    )
    BASH_HERE = rb"bash: line \d+: warning: here-document .*delimited by end-of-file"

    def __init__(self, interpreter: str, program: str, code: str) -> None:
        self._interpreter = interpreter
        self._code = code
        with contextlib.ExitStack() as undo:
            text_fd = os.memfd_create("code", os.MFD_CLOEXEC)
            undo.callback(os.close, text_fd)
            with open(text_fd, "wb", closefd=False) as text:
                text.write(code.encode("utf-8", "replace"))
            os.lseek(text_fd, 0, os.SEEK_SET)
            self._answer_fd = os.memfd_create("answer", os.MFD_CLOEXEC)
            undo.callback(os.close, self._answer_fd)
            parent = os.getpid()
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    self._become_child(text_fd, program, parent)
                finally:
                    os._exit(126)
            undo.pop_all()
            os.close(text_fd)

    def _become_child(self, text_fd: int, program: str, parent: int) -> None:
        import resource

        os.setsid()
        signal.set_wakeup_fd(-1)
        set_handler(signal.SIGCHLD, DEFAULT_ACTION)
        restore_signals()
        if parent != 1:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        errors = self._answer_fd if self._interpreter == "bash" else null
        for target, source in enumerate((text_fd, self._answer_fd, errors)):
            os.dup2(source, target)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        for kind, most in (
            (resource.RLIMIT_CPU, 2),
            (resource.RLIMIT_DATA, CHECK_BYTES),
            (resource.RLIMIT_FSIZE, MAX_REPLY_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, limit))
        if self._interpreter == "bash":
            # A minimal environment: BASH_ENV would be run, and messages must not be translated.
            os.execve(program, ["bash", *self.BASH], {"LC_ALL": "C.UTF-8"})
        if program == sys.executable:
            answer_check()
        else:
            agent_file = os.path.abspath(__file__)
            os.execve(program, [program, "-I", "-S", agent_file, "--check"], dict(os.environ))

    def finish(self, wait_status: int) -> tuple[str, str]:
        """What the child said, which has ended: the status, and the next line's indentation."""
        size = os.fstat(self._answer_fd).st_size
        said = os.pread(self._answer_fd, min(size, READ_BYTES), 0)
        os.close(self._answer_fd)
        exit_code = os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else -1
        if self._interpreter == "bash":
            status, in_text = self._of_bash(exit_code, said)
        else:
            status, _, rest = said.decode("utf-8", "replace").strip().partition(" ")
            in_text = bool(rest)
            if exit_code != 0:
                status = ""
        if status not in self.STATUSES:
            return "unknown", ""
        indent = suggest_indent(self._code) if status == "incomplete" and not in_text else ""
        return status, indent

    def _of_bash(self, exit_code: int, said: bytes) -> tuple[str, bool]:
        """The status, and whether the text ends inside a quote or a here-document."""
        lines = [line for line in said.split(b"\n") if line.startswith(b"bash: line ")]
        errors = [line for line in lines if not re.match(self.BASH_HERE, line)]
        here = len(errors) < len(lines)
        if exit_code == 0:
            last = self._code.rpartition("\n")[2]
            open_line = (len(last) - len(last.rstrip("\\"))) % 2 == 1
            continued = open_line and not last.lstrip().startswith("#")
            return ("incomplete" if here or continued else "complete"), here
        if exit_code in {1, 2} and errors:
            quoted = b"looking for matching" in errors[0]
            unfinished = re.match(self.BASH_UNFINISHED, errors[0])
            return ("incomplete" if unfinished else "invalid"), here or quoted
        return "", False


def suggest_indent(code: str) -> str:
    """Indentation of the line that is to follow `code`, which is not whole yet.

    That of its last line; deeper after what opens a block or bracket, less deep after what leaves
    one. It is a suggestion, which whoever types will see.
    """
    *before, last = code.rstrip().split("\n")
    indent = _indent_of(last)
    if re.search(r"([:{(\[]|\b(then|do|else|in)|=>)$", re.sub(r"\s#.*", "", last).rstrip()):
        used = {_indent_of(line) for line in before} | {indent}
        unit = "\t" if "\t" in indent else min(used - {""}, key=len, default=" " * 4)
        indent += unit
    elif re.match(r"\s+(return|raise|pass|break|continue)\b", last):
        above = [_indent_of(line) for line in before if line.strip()]
        indent = next((i for i in reversed(above) if len(i) < len(indent)), "")
    return indent[:MAX_INDENT]


def _indent_of(line: str) -> str:
    return re.match(r"[ \t]*", line)[0]  # type: ignore[index]


def answer_check() -> NoReturn:
    """Reads a text from descriptor 0 and writes what Python says of it to descriptor 1."""
    import warnings

    warnings.simplefilter("ignore")
    with open(0, "rb") as file:
        code = file.read().decode("utf-8", "replace")
    try:
        answer = check_python(code.removeprefix("\ufeff"))
    except (RecursionError, MemoryError):
        answer = "unknown"
    os.write(1, answer.encode())
    os._exit(0)


PENDING_DEDENT = 0x200
PENDING_INPUT = 0x4000 if sys.version_info >= (3, 11) else 0
TOP_LEVEL_AWAIT = 0x2000
ONLY_AST = 0x400
SIMPLE_STATEMENTS = frozenset(
    "Expr Assign AugAssign AnnAssign TypeAlias Delete Raise Assert Import ImportFrom Global "
    "Nonlocal Pass Break Continue Return".split()
)


def check_python(code: str) -> str:
    """`complete`, `incomplete`, `invalid`; `incomplete text` if it ends inside a string.

    A block is complete with the blank line that ends it, as at Python's own prompt; several
    statements at once are fine.
    """
    try:
        tree = compile(code, "<input>", "exec", TOP_LEVEL_AWAIT | ONLY_AST, dont_inherit=True)
        compile(tree, "<input>", "exec", TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        if not _is_unfinished(code):
            return "invalid"
        return "incomplete text" if "triple-quoted" in str(error.msg) else "incomplete"
    except (ValueError, OverflowError):  # NUL, a lone surrogate, a number that is too large
        return "invalid"
    is_block = bool(tree.body) and type(tree.body[-1]).__name__ not in SIMPLE_STATEMENTS
    return "incomplete" if is_block and code.rpartition("\n")[2].strip() else "complete"


def _is_unfinished(code: str) -> bool:
    """Whether a text that Python refuses would be well with more text after it."""
    errors: list[tuple[str, int | None]] = []
    for more in ("", "\n\n"):
        try:
            flags = TOP_LEVEL_AWAIT | ONLY_AST | PENDING_DEDENT | PENDING_INPUT
            compile(code + more, "<input>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            errors.append((str(error.msg), error.lineno))
    if PENDING_INPUT:
        return bool(errors) and errors[0][0] == "incomplete input"
    # Before 3.11 it shows in where the error is: at the end, wherever that may be.
    return len(set(errors)) > 1 or any("was never closed" in text for text, _ in errors)


# ----------------------------------------------------------------------------------------- agent


class Execution:
    """The piece of code that runs now, and how far it is on the way to being stopped.

    Attributes:
        step: of a set-up, if it is one and nobody else's code.
    """

    def __init__(
        self,
        request_id: str | int,
        number: int,
        interpreter: Interpreter,
        grace_s: float,
        last_pid: int,
    ) -> None:
        self.id = request_id
        self.number = number
        self.interpreter = interpreter
        self.grace_s = grace_s
        self.preview: Preview | None = None
        self.step: SetupStep | None = None
        self.started = time.monotonic()
        self.started_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self._last_pid = last_pid
        self.timed_out = False
        self.interrupted = False

    @property
    def stopping(self) -> bool:
        return self.timed_out or self.interrupted

    def has_started(self, row: Process) -> bool:
        """Whether a process is this execution's, and not of an earlier one.

        A clock tick is long: the last execution may have started something within the same one.
        Pids grow, but for a wrap-around that would have to come in that very tick.
        """
        if row.started == self.started_ticks:
            return row.pid > self._last_pid
        return row.started > self.started_ticks


class Agent:
    """Messages from the supervisor on one side, interpreters on the other.

    Args:
        read_fd, write_fd: the channel; may be the same.
        programs: interpreter name → path of the program.
        workspace: working directory of interpreters and place for spilled output.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        programs: Mapping[str, str],
        workspace: str,
        limits: Limits | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.workspace = workspace
        self.limits = limits or Limits()
        self.running: Execution | None = None
        self.poller = Poller()
        self._token = ""
        self._rehearses = False
        self._executions = 0
        self._waiting: Mapping[str, Any] | None = None
        self._notes: dict[str, dict[str, Any]] = {}
        self._knows_setup = False
        self._questions = 0
        self._checks: dict[int, tuple[InputCheck, str | int]] = {}
        self._orphans: dict[int, Interpreter] = {}
        self._spills = Spills(workspace)
        self._newest = NewestPid()
        self._transfers = Transfers(
            workspace, self._send, lambda: self._channel.lag_bytes <= LAG_BYTES
        )
        self._interpreters = {
            name: INTERPRETERS[name](self, program) for name, program in programs.items()
        }
        # As PID 1 this process gets no signal from inside that it has no handler for, and orphans
        # come to it by themselves.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        if self.pid != 1:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wakeup_fd, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        set_handler(signal.SIGCHLD, _wake_up)
        self.poller.watch(self._wakeup_fd, lambda _: self._reap())
        self._channel = Channel(
            self.poller, read_fd, write_fd, self._on_request, self.end, self._on_progress
        )

    def run(self, prestart: str | None = None) -> NoReturn:
        """Serves until the channel ends.

        Args:
            prestart: name of the interpreter that is up before `ready` is sent.
        """
        if prestart is not None:
            self._interpreters[prestart].start()
            if prestart == "python":
                self._rehearse(self._interpreters[prestart])
        self._send(
            {
                "type": "ready",
                "protocol": PROTOCOL,
                "agent": AGENT_VERSION,
                "python": ".".join(map(str, sys.version_info[:3])),
                "pid": self.pid,
                "interpreters": sorted(self._interpreters),
                "capabilities": list(CAPABILITIES),
            }
        )
        while True:
            self.poller.turn()

    def _rehearse(self, interpreter: Interpreter) -> None:
        """Has it run code that does nothing, of which nobody hears.

        A fork's memory is copied page by page when it is first written to, which is most of the
        time of a first execution. A session that was kept ready has that behind it.
        """
        self._executions = -1
        self._rehearses = True
        self._on_execute(
            {
                "id": 0,
                "interpreter": interpreter.name,
                "code": "None",
                "timeout_s": REHEARSAL_S,
                "grace_s": 0.0,
            }
        )
        while self.running is not None:
            self.poller.turn()
        self._rehearses = False
        self._executions = 0
        interpreter.has_state = False
        interpreter.lost = ""

    def end(self) -> NoReturn:
        """Ends the agent; as PID 1 with it everything, else what it started."""
        self._transfers.drop_all()
        if self.pid != 1:
            for interpreter in self._interpreters.values():
                if interpreter.pid:
                    self.kill_tree(interpreter)
        os._exit(0)

    def new_capture(self, stream: str) -> Capture:
        return Capture(stream, self._spills, self.limits)

    # Messages.

    def _send(self, message: dict[str, Any]) -> None:
        if not self._rehearses:
            self._channel.send(message)

    def _on_progress(self) -> None:
        if self.running is not None and self.running.preview is not None:
            self.running.preview.schedule()
        self._transfers.go_on()

    def _fail(self, text: str, request_id: object = None) -> None:
        about = {"id": request_id} if isinstance(request_id, (str, int)) else {}
        self._send({"type": "error", "message": text, **about})

    def _on_request(self, message: Mapping[str, Any]) -> None:
        if message is RESUMED:
            self._on_resume()
            return
        kind = message.get("type")
        if kind == "execute":
            self._on_execute(message)
        elif kind == "interrupt":
            self._on_interrupt(message)
        elif kind == "stream":
            self._on_stream(message)
        elif kind == "ack":
            self._on_ack(message)
        elif kind == "hello":
            self._on_hello(message)
        elif kind in Transfers.REQUESTS:
            self._on_transfer(message)
        elif kind == "check":
            self._on_check(message)
        elif kind == "complete":
            self._on_complete(message)
        elif kind == "ping":
            self._send({"type": "pong"})
        elif kind == "status":
            self._on_status()
        elif kind == "listen":
            self._on_listen(message)
        elif kind == "shutdown":
            self.end()
        else:
            self._fail(
                f"unknown type {kind!r:.50}: expected execute, interrupt, stream, ack, hello, "
                "ping, status, check, complete, listen, shutdown, "
                f"{', '.join(Transfers.REQUESTS)}",
                message.get("id"),
            )

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        try:
            limits = Limits(_as_object(message.get("limits")))
            token = message.get("token")
            marker = resume_marker(token) if isinstance(token, str) else b""
            set_up = self._setup_of(message)
        except ValueError as error:
            self._fail(f"hello is not valid: {error}")
            return
        if marker and self._token not in {"", token}:
            self._fail("hello was said before with another token")
            return
        if marker and not self._token:
            self._token = str(token)
            self._channel.begin_sequence(marker)
        known, self.limits = self.limits.resources, limits
        for interpreter in self._interpreters.values():
            if interpreter.pid and self.running is None:
                interpreter.captures = {
                    stream: capture if capture.total_bytes else self.new_capture(stream)
                    for stream, capture in interpreter.captures.items()
                }
                # Those of its start hold already, and a filter may keep us from setting them.
                if limits.resources and limits.resources != known:
                    interpreter.limit(limits.resources)
        if set_up is not None:
            self._take_setup(*set_up)

    def _setup_of(self, message: Mapping[str, Any]) -> tuple[Interpreter, list[SetupStep]] | None:
        """What a `hello` says for the first time about a set-up.

        Raises:
            ValueError: it is not valid.
        """
        given = _as_object(message.get("setup"))
        if given is None or self._knows_setup:
            return None
        name = given.get("interpreter")
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            raise ValueError(f"setup is for interpreter {name!r:.50}, which is not in this session")
        return interpreter, SetupStep.all_of(given)

    def _take_setup(self, interpreter: Interpreter, steps: list[SetupStep]) -> None:
        self._knows_setup = True
        interpreter.setup = steps
        if interpreter.pid and not interpreter.has_state and self.running is None:
            interpreter.steps = steps[:]
            self._set_up(interpreter)

    def _on_listen(self, message: Mapping[str, Any]) -> None:
        request_id, port = message.get("id"), message.get("port", 0)
        variables = _as_texts(message.get("variables"))
        if not _is_id(request_id) or not _is_whole(port) or not 0 < port < 65536:
            self._fail("listen needs an id and a port", request_id)
            return
        if variables is None:
            self._fail("listen takes variables, names and values without NUL", request_id)
            return
        if not self._channel.passes_descriptors:
            self._fail("cannot listen: this channel is no socket", request_id)
            return
        try:
            listener = listen_on_loopback(port)
        except OSError as error:
            self._fail(f"cannot listen: {error.strerror}", request_id)
            return
        port = listener.getsockname()[1]
        answer = {"type": "listening", "id": request_id, "port": port}
        self._channel.send(answer, listener.detach())
        self._set_variables(
            {name: value.replace("{port}", str(port)) for name, value in variables.items()}
        )

    def _set_variables(self, variables: Mapping[str, str]) -> None:
        """Has code find them from now on, in interpreters that run as well."""
        new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
        if not new:
            return
        os.environ.update(new)
        for interpreter in self._live_interpreters():
            unused = self.running is None and not interpreter.has_state
            if unused and interpreter.reads_variables_at_start:
                interpreter.start_over()
                continue
            step = SetupStep("network", interpreter.variables_code(new), VARIABLES_S, GRACE_S)
            step.late = True
            interpreter.steps.append(step)
            if self.running is None:
                self._set_up(interpreter)

    def _on_ack(self, message: Mapping[str, Any]) -> None:
        number = message.get("seq")
        if not isinstance(number, int):
            self._fail(f"ack has seq {number!r}, expected a number")
            return
        self._channel.acknowledge(number)

    def _on_resume(self) -> None:
        executions = dict.fromkeys(self._channel.kept_results, "finished")
        if (running := self._running_id()) is not None:
            executions[str(running)] = "running"
        self._channel.resume(
            {
                "type": "resumed",
                "executions": executions,
                "files": self._transfers.ids,
                "notes": {
                    known: self._notes[known] for known in executions if known in self._notes
                },
                "recent": self._channel.recent,
                "count": self._executions,
            }
        )

    def _keep_note(self, message: Mapping[str, Any]) -> None:
        """Keeps what the supervisor wants to be told of an execution should it forget."""
        note = _as_object(message.get("note"))
        if note is None:
            return
        kept = self._channel.kept_results
        self._notes = {known: its for known, its in self._notes.items() if known in kept}
        self._notes[str(message["id"])] = {"note": note, "code": message["code"][:NOTED_CODE]}

    def _running_id(self) -> str | int | None:
        """The execution that runs, or waits for the set-up of its interpreter."""
        if self._waiting is not None:
            request_id: str | int = self._waiting["id"]
            return request_id
        if self.running is None or self.running.step is not None:
            return None
        return self.running.id

    def _on_transfer(self, message: Mapping[str, Any]) -> None:
        request_id = message.get("id")
        if _is_id(request_id):
            self._transfers.take(request_id, message)
        else:
            self._fail(f"{message['type']} needs an id")

    # Questions.

    def _interpreter_asked(self, message: Mapping[str, Any]) -> Interpreter | None:
        """The interpreter that a question with text is for; None if the question is none."""
        request_id, name = message.get("id"), message.get("interpreter")
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if not _is_id(request_id):
            self._fail(f"{message['type']} needs an id")
        elif not isinstance(message.get("code"), str):
            self._fail(f"{message['type']} needs code, a text", request_id)
        elif interpreter is None:
            have = ", ".join(sorted(self._interpreters))
            self._fail(
                f"interpreter {name!r:.50} is not in this session, which has {have}", request_id
            )
        else:
            return interpreter
        return None

    def _ask(
        self,
        interpreter: Interpreter,
        kind: str,
        fields: Mapping[str, Any],
        settle: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Has `settle` called with an interpreter's answer, or with nothing within a second.

        A question that is not answered yet, be it long given up, keeps others back: they would
        only pile up in front of an interpreter that is busy.
        """
        if not interpreter.pid or interpreter.question is not None:
            settle({})
            return
        self._questions += 1
        timer = f"question {self._questions}"

        def settled(answer: Mapping[str, Any]) -> None:
            self.poller.cancel(timer)
            settle(answer)

        question = interpreter.question = Question(self._questions, settled)
        self.poller.at(timer, time.monotonic() + QUESTION_S, lambda: question.settle({}))
        interpreter.send_question(kind, question.number, fields)

    def _on_complete(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code, cursor = message["id"], message["code"], message.get("cursor")
        if not isinstance(cursor, int) or cursor is True or not 0 <= cursor <= len(code):
            self._fail(f"cursor is {cursor!r:.50}, expected 0 to {len(code)}", request_id)
            return
        before = code[:cursor]

        def settle(answer: Mapping[str, Any]) -> None:
            prefix: Any = answer.get("prefix")
            found: list[Any] | None = answer.get("matches")
            available = isinstance(prefix, str) and before.endswith(prefix)
            matches = found if available and type(found) is list else []
            self._send(
                {
                    "type": "completions",
                    "id": request_id,
                    "start": cursor - len(str(prefix)) if available else cursor,
                    "end": cursor,
                    "matches": [text for text in matches if _may_be_offered(text)][:MAX_MATCHES],
                    "available": available,
                }
            )

        if (
            interpreter.runs
            or "complete" not in interpreter.answers
            or len(code) > MAX_QUESTION_CHARS
        ):
            settle({})
        else:
            fields = {"before": before, "next": code[cursor : cursor + 1]}
            self._ask(interpreter, "complete", fields, settle)

    def _on_check(self, message: Mapping[str, Any]) -> None:
        interpreter = self._interpreter_asked(message)
        if interpreter is None:
            return
        request_id, code = message["id"], message["code"]
        if len(code) > MAX_QUESTION_CHARS:
            self._tell_checked(request_id, "unknown", "")
        elif "check" in interpreter.answers:

            def settle(answer: Mapping[str, Any]) -> None:
                status, in_text = answer.get("status"), answer.get("in_text") is True
                if status not in InputCheck.STATUSES:
                    status = "unknown"
                indents = status == "incomplete" and not in_text
                self._tell_checked(request_id, status, suggest_indent(code) if indents else "")

            self._ask(interpreter, "check", {"code": code}, settle)
        else:
            self._begin_check(request_id, interpreter, code)

    def _tell_checked(self, request_id: str | int, status: object, indent: str) -> None:
        self._send({"type": "checked", "id": request_id, "status": status, "indent": indent})

    def _begin_check(self, request_id: str | int, interpreter: Interpreter, code: str) -> None:
        try:
            if len(self._checks) >= MAX_CHECKS:
                raise BlockingIOError
            check = InputCheck(interpreter.name, interpreter.program, code)
        except OSError:
            self._tell_checked(request_id, "unknown", "")
            return
        pid = check.pid
        self._checks[pid] = check, request_id
        self.poller.at(
            f"check {pid}",
            time.monotonic() + QUESTION_S,
            lambda: send_signal(pid, signal.SIGKILL),
        )

    def _on_checked(self, pid: int, wait_status: int) -> None:
        check, request_id = self._checks.pop(pid)
        self.poller.cancel(f"check {pid}")
        self._tell_checked(request_id, *check.finish(wait_status))

    def count_background(self) -> int:
        """The number of processes in the session besides the agent's and its interpreters'."""
        table = read_processes()
        ours = {self.pid, *self._checks, *(i.pid for i in self._interpreters.values())}
        inside = set(table) if self.pid == 1 else tree_of(table, self.pid, [self.pid])
        return sum(1 for pid in inside - ours if table[pid].alive)

    def _on_status(self) -> None:
        count = self.count_background()
        self._send({"type": "status", "running": self._running_id(), "background": count})

    def _on_execute(self, message: Mapping[str, Any]) -> None:
        request_id, code, name = (
            message.get("id"),
            message.get("code"),
            message.get("interpreter"),
        )
        timeout_s, grace_s = message.get("timeout_s"), message.get("grace_s", GRACE_S)
        if not _is_id(request_id):
            self._fail("execute needs an id")
            return
        if not isinstance(code, str):
            self._fail("execute needs code, a text", request_id)
            return
        if not (timeout_s is None or _is_seconds(timeout_s)) or not _is_seconds(grace_s):
            self._fail("timeout_s and grace_s must be numbers of seconds, 0 or more", request_id)
            return
        reply_bytes = message.get("reply_bytes")
        if not (reply_bytes is None or (_is_whole(reply_bytes) and reply_bytes > 0)):
            self._fail("reply_bytes must be a whole number above 0", request_id)
            return
        if _is_whole(message.get("ack")):
            self._channel.acknowledge(message["ack"])
        interpreter = self._interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            have = ", ".join(sorted(self._interpreters))
            self._fail(f"interpreter {name!r} is not in this session, which has {have}", request_id)
            return
        if self.running is not None:
            if self.running.step is not None and self._waiting is None:
                self._keep_note(message)
                self._waiting = message
            else:
                self._fail("another execution is running: wait for its result", request_id)
            return
        try:
            if interpreter.pid and not interpreter.is_intact():
                self.end_interpreter(interpreter, "lost descriptors that belong to nsm to code")
            if not interpreter.pid:
                # As long as there was one, every orphan was its own, and nobody had to look.
                if len(others := self._live_interpreters()) == 1:
                    self._note_orphans(others[0])
                interpreter.start()
        except OSError as error:
            self._fail(f"cannot start {interpreter.program}: {error}", request_id)
            return
        self._keep_note(message)
        if interpreter.steps:
            self._waiting = message
            self._set_up(interpreter)
            return
        self._executions += 1
        execution = Execution(
            request_id, self._executions, interpreter, float(grace_s), self._newest.pid()
        )
        self.running = execution
        if message.get("stream") is True:
            self._show_output(execution)
        if timeout_s is not None:
            self.poller.at("stop", execution.started + timeout_s, self._on_timeout)
        for capture in interpreter.captures.values():
            capture.bound_reply(reply_bytes or self.limits.reply_bytes)
        interpreter.resume_output()
        try:
            interpreter.send_code(execution.number, code, one_shot=message.get("one_shot") is True)
        except (FrameError, OSError) as error:  # too large, or no memory left for it
            self._cancel_timers()
            self.running = None
            self._fail(f"cannot hand over the code: {error}", request_id)

    def _show_output(self, execution: Execution) -> None:
        """Streams an execution's output from now on, beginning with what there is already."""

        def send(stream: str, text: str) -> None:
            self._send({"type": "output", "id": execution.id, "stream": stream, "text": text})

        execution.preview = Preview(self.poller, send, lambda: self._channel.lag_bytes <= LAG_BYTES)
        execution.preview.begin(execution.interpreter.captures)

    def _on_stream(self, message: Mapping[str, Any]) -> None:
        execution = self.running
        if execution is None or self._running_id() != message.get("id"):
            return
        if self._waiting is not None:
            self._waiting = {**self._waiting, "stream": True}
        elif not execution.preview:
            self._show_output(execution)

    def _on_interrupt(self, message: Mapping[str, Any]) -> None:
        execution, request_id = self.running, message.get("id")
        if execution is None or request_id is None or self._running_id() != request_id:
            self._send({"type": "idle", "id": request_id})
            return
        if self._waiting is not None:
            self._waiting = None
            self._send(_never_began(request_id))
        if not execution.stopping:
            execution.interrupted = True
            self._interrupt(execution)

    # The ladder: interrupt, interrupt again and wider, kill.

    def _on_timeout(self) -> None:
        execution = self.running
        if execution is not None and not execution.stopping:
            execution.timed_out = True
            self._interrupt(execution)

    def _interrupt(self, execution: Execution) -> None:
        now = time.monotonic()
        self.poller.at("stop", now + execution.grace_s, self._on_grace_over)
        self.poller.at("repeat", now + execution.grace_s / 2, self._repeat_interrupt)
        if execution.interpreter.may_miss_interrupt and now - execution.started < EARLY_S:
            self.poller.at("early", now + REPEAT_S, lambda: self._signal(execution, wide=False))
        self._signal(execution, wide=False)

    def _repeat_interrupt(self) -> None:
        if self.running is not None:
            self._signal(self.running, wide=True)

    def _signal(self, execution: Execution, *, wide: bool) -> None:
        """Interrupts the interpreter and its foreground: what Ctrl-C reaches, but not processes
        of earlier executions.

        Args:
            wide: processes in groups of their own too, such as a shell's jobs under `set -m`.
        """
        interpreter = execution.interpreter
        leader = interpreter.pid
        interpreter.hold()
        table = read_processes()
        below = [table[pid] for pid in tree_of(table, leader, ()) - {leader}]
        new = [row for row in below if row.alive and execution.has_started(row)]
        foreground = [row.pid for row in new if row.group == leader]
        interpreter.send_interrupt(execution.number)
        # The interpreter first: a shell whose child is gone before would go on with the next.
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGINT)
        # The rest all at once, as a terminal does it: else the last of a pipeline sees its input
        # end before it sees the signal, and its normal exit has the shell go on.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            for pid in foreground:
                send_signal(pid, number)
        if wide:
            for pid in {row.pid for row in new} - set(foreground):
                send_signal(pid, signal.SIGINT)
        interpreter.release(execution.number)
        # Held, or stopped by its own code: a stopped process handles no other signal. (Node that
        # stops itself has torn itself down before, believing that it would end.)
        if interpreter.takes_signals:
            send_signal(leader, signal.SIGCONT)

    def _signal_latecomers(self, execution: Execution) -> None:
        """Interrupts what the shell was about to start when it was interrupted itself.

        A child that is forked after the look at the processes and before the signal reaches the
        shell would live on in the background. A job that was meant to ignores the signal.
        """
        leader = execution.interpreter.pid
        execution.interpreter.await_forks()
        table = read_processes()
        for pid in tree_of(table, leader, ()) - {leader}:
            row = table[pid]
            if row.alive and row.group == leader and execution.has_started(row):
                send_signal(pid, signal.SIGINT)

    def _on_grace_over(self) -> None:
        if self.running is not None:
            self.end_interpreter(
                self.running.interpreter,
                f"did not stop within {self.running.grace_s:g} s of an interrupt and was killed",
            )

    # Set-up of an interpreter.

    def _set_up(self, interpreter: Interpreter) -> None:
        """Runs the next step of a set-up, or what waited for the last one."""
        if interpreter.steps:
            self._begin_step(interpreter, interpreter.steps[0])
            return
        interpreter.end_setup()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._on_execute(waiting)

    def _begin_step(self, interpreter: Interpreter, step: SetupStep) -> None:
        interpreter.begin_step()
        self._executions += 1
        execution = Execution("", self._executions, interpreter, step.grace_s, self._newest.pid())
        execution.step = step
        self.running = execution
        self.poller.at("stop", execution.started + step.timeout_s, self._on_timeout)
        try:
            interpreter.send_code(execution.number, step.code)
        except (FrameError, OSError) as error:
            self._finish_step(execution, step, 0, f"could not be handed over: {error}")

    def _finish_step(
        self, execution: Execution, step: SetupStep, exit_code: int, why: str = ""
    ) -> None:
        """Goes on with the next step, in a fresh interpreter if this one has ended it.

        Args:
            why: it could not be run.
        """
        interpreter = execution.interpreter
        self._cancel_timers()
        if execution.stopping and interpreter.pid:
            self._signal_latecomers(execution)
        said = interpreter.take_output()["stderr"].result()[0]
        interpreter.take_displays()
        interpreter.take_notes()
        self.running = None
        if self._live_interpreters() != [interpreter]:
            self._note_orphans(interpreter)
        if interpreter.pid and not interpreter.is_intact():
            self.end_interpreter(interpreter, "lost descriptors that belong to nsm")
        if not interpreter.pid:
            why = f"is left out from now on: {interpreter.lost}"
        elif execution.timed_out:
            why = f"was interrupted after {step.timeout_s:g} s"
        elif execution.interrupted:
            why = "was interrupted"
        elif exit_code != 0 and said.strip():  # a hook's last command may well be a test
            why = f"failed with exit code {exit_code}"
        if why:
            interpreter.complain(step, why, said)
        if not step.late:
            interpreter.has_state = False
            interpreter.lost = ""
        if interpreter.pid:
            del interpreter.steps[0]
        else:
            # It would end the next one as well.
            interpreter.setup = [each for each in interpreter.setup if each is not step]
            try:
                interpreter.start()
            except OSError as error:
                interpreter.end_setup()
                waiting, self._waiting = self._waiting, None
                if waiting is not None:
                    self._fail(f"cannot start {interpreter.program}: {error}", waiting["id"])
                return
        self._set_up(interpreter)

    # Executions.

    def on_interruptible(self, interpreter: Interpreter) -> None:
        """The interpreter takes signals from now on: here is the one that came too early."""
        execution = self.running
        if execution is not None and execution.interpreter is interpreter and execution.stopping:
            self._signal(execution, wide=False)

    def on_done(self, interpreter: Interpreter, number: object, exit_code: object) -> None:
        """The interpreter says that the code's foreground has ended."""
        execution = self.running
        if execution is None or execution.interpreter is not interpreter:
            return
        if execution.number == number:
            interpreter.has_state = True
            code = exit_code if isinstance(exit_code, int) and 0 <= exit_code <= 255 else 1
            self._finish(execution, code)

    def end_interpreter(self, interpreter: Interpreter, reason: str, exit_code: int = 137) -> None:
        """Kills an interpreter that can't go on, and answers for what it ran."""
        sentence = f"{interpreter.name} {reason}; its state and its background processes are gone"
        execution = self.running
        runs = interpreter.runs
        interpreter.has_state = interpreter.has_state or runs
        interpreter.discard(sentence)
        if execution is not None and runs:
            self._finish(execution, exit_code)

    def _on_death(self, interpreter: Interpreter, status: int) -> None:
        if interpreter.link is not None:
            interpreter.link.drain()
        if not interpreter.pid:
            return
        interpreter.on_exit()
        execution = self.running
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            exit_code = 128 + number
            reason = f"was killed by {_signal_name(number)}"
            expected = execution is not None and execution.stopping
        else:
            exit_code = os.WEXITSTATUS(status)
            reason = f"exited with status {exit_code}{interpreter.exit_note}"
            expected = True
        if interpreter.ends_with_code and interpreter.runs and expected and execution is not None:
            interpreter.discard("")
            self._finish(execution, exit_code)
        else:
            self.end_interpreter(interpreter, reason, exit_code)

    def _finish(self, execution: Execution, exit_code: int) -> None:
        if execution.step is not None:
            self._finish_step(execution, execution.step, exit_code)
            return
        interpreter = execution.interpreter
        self._cancel_timers()
        if execution.stopping and interpreter.pid:
            self._signal_latecomers(execution)
        captures = interpreter.take_output()
        if execution.preview is not None:
            execution.preview.finish()
        results = {stream: capture.result() for stream, capture in captures.items()}
        self.running = None
        if self._live_interpreters() != [interpreter]:
            self._note_orphans(interpreter)
        reason = interpreter.lost
        if interpreter.pid:
            interpreter.lost = ""
        if execution.timed_out:
            exit_code = 124
        elif execution.interrupted:
            exit_code = 130
        message: dict[str, Any] = {
            "type": "result",
            "id": execution.id,
            "stdout": results["stdout"][0],
            "stderr": results["stderr"][0],
            "exit_code": exit_code,
            "duration_s": round(time.monotonic() - execution.started, 6),
            "displays": interpreter.take_displays(),
            "truncated": {
                stream: left_out for stream, (_, left_out) in results.items() if left_out
            },
            "timed_out": execution.timed_out,
            "interrupted": execution.interrupted,
            "interpreter_restarted": bool(reason),
            "restart_reason": reason,
        }
        if notes := interpreter.take_notes():
            message["notes"] = notes
        try:
            self._send(message)
        except FrameError as error:
            message["displays"] = []
            message["stderr"] += f"\n[displays left out: {error}]\n"
            self._send(message)

    def _cancel_timers(self) -> None:
        for timer in ("stop", "repeat", "early"):
            self.poller.cancel(timer)

    # Processes.

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_fd, READ_BYTES)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                # Code has made this process its tracer (PTRACE_TRACEME), and would wait for it.
                send_signal(pid, signal.SIGKILL)
                continue
            self._orphans.pop(pid, None)
            if pid in self._checks:
                self._on_checked(pid, status)
            for interpreter in self._interpreters.values():
                if interpreter.pid == pid:
                    self._on_death(interpreter, status)

    def _live_interpreters(self) -> list[Interpreter]:
        return [i for i in self._interpreters.values() if i.pid]

    def _note_orphans(self, interpreter: Interpreter) -> None:
        """Remembers whose the orphans are that have not been seen yet; later nothing tells.

        Args:
            interpreter: the one that was running, or whose end has made them orphans.
        """
        leaders = {i.pid for i in self._interpreters.values()}
        for pid in read_children(self.pid) - leaders - set(self._checks) - set(self._orphans):
            self._orphans[pid] = self._recognise(pid) or interpreter

    def _recognise(self, pid: int) -> Interpreter | None:
        """The interpreter in whose session an orphan is, or whose pipes it has."""
        with contextlib.suppress(OSError):
            session = os.getsid(pid)
            for interpreter in self._live_interpreters():
                if interpreter.pid == session:
                    return interpreter
        pipes = {
            pipe.identity: interpreter
            for interpreter in self._interpreters.values()
            for pipe in interpreter.pipes.values()
        }
        for fd in (1, 2):
            with contextlib.suppress(OSError):
                owner = pipes.get(_identity(os.stat(f"/proc/{pid}/fd/{fd}")))
                if owner is not None:
                    return owner
        return None

    def kill_tree(self, interpreter: Interpreter) -> set[int]:
        """Kills everything that came from an interpreter, daemons in their own sessions included.

        Processes of other interpreters live on. Where there are none, one system call reaches
        all without a race; else rounds of looking and killing, which a fork bomb may outrun:
        then everything is stopped for the time it takes to sort out who is to go.

        Returns:
            Process ids of all that was killed; some may not have ended yet.
        """
        others = [i for i in self._interpreters.values() if i.pid and i is not interpreter]
        if self.pid == 1 and not others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
            # A process that is being killed starts no other one, so these are all.
            return set(read_processes()) - {self.pid}
        self._note_orphans(interpreter)
        killed: set[int] = set()
        for attempt in range(KILL_ROUNDS):
            freeze = self.pid == 1 and attempt == FREEZE_ROUND
            before = read_processes() if freeze else {}
            if freeze:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(-1, signal.SIGSTOP)
            table = read_processes()
            victims = self._belongings(table, interpreter, others)
            fresh = {pid for pid in victims - killed if table[pid].alive}
            for pid in fresh:
                send_signal(pid, signal.SIGKILL)
            killed |= fresh
            if freeze:
                for pid in set(table) - victims - {self.pid}:
                    if pid not in before or before[pid].state != b"T":
                        send_signal(pid, signal.SIGCONT)
            if not fresh:
                break
        return killed

    def await_end(self, killed: Iterable[int]) -> None:
        """Waits until processes that were killed are gone, for `END_S` at most.

        Until they are reaped they count against the session's limit of processes, so that after a
        fork bomb no new interpreter could be started.

        Args:
            killed: from `kill_tree`.
        """
        left = set(killed)
        deadline = time.monotonic() + END_S
        ended = select.poll()
        ended.register(self._wakeup_fd, select.POLLIN)
        while left and (left_s := deadline - time.monotonic()) > 0:
            self._reap()
            left = {pid for pid in left if os.path.exists(f"/proc/{pid}")}
            if left:
                ended.poll(left_s * 1000)

    def _belongings(
        self, table: Mapping[int, Process], interpreter: Interpreter, others: Sequence[Interpreter]
    ) -> set[int]:
        """Pids of an interpreter and all that it started, as far as can be told."""
        spared: set[int] = {self.pid, *self._checks}
        for other in others:
            adopted = [pid for pid, owner in self._orphans.items() if owner is other]
            spared |= tree_of(table, other.pid, adopted)
        adopted = [
            pid
            for pid, row in table.items()
            if row.parent == self.pid
            # An orphan that has not been noted was made by the killing.
            and self._orphans.get(pid, interpreter) is interpreter
        ]
        return tree_of(table, interpreter.pid, adopted) - spared


def _wake_up(_number: int, _frame: object) -> None:
    """Handles SIGCHLD: the write to the wake-up descriptor is all that it takes."""


def _never_began(request_id: object) -> dict[str, Any]:
    """The result of an execution that was interrupted while it waited for a set-up."""
    return {
        "type": "result",
        "id": request_id,
        "stdout": "",
        "stderr": "interrupted before it began: its environment was being set up\n",
        "exit_code": 130,
        "duration_s": 0.0,
        "displays": [],
        "truncated": {},
        "timed_out": False,
        "interrupted": True,
        "interpreter_restarted": False,
        "restart_reason": "",
    }


def _may_be_offered(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_MATCH and text.isprintable()


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --------------------------------------------------------------------------------- Python worker


def python_worker(control_fd: int, page: SharedPage) -> NoReturn:
    """Runs code from `control_fd` in a `__main__` module of its own until end-of-file."""
    try:
        PythonWorker(control_fd, page).serve()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(1)


NO_SHOW: Any = re.compile("FigureCanvas.* is non-interactive")


class WholeWriter(io.FileIO):
    """Python's own unbuffered stream loses the rest where a signal cuts a write short or a child
    process has made the shared pipe non-blocking; this one writes all."""

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            written = super().write(view[done:])
            if written is None:
                select.select([], [self.fileno()], [])
            done += written or 0
        return done


class PrettyPrinter:
    """Text of a container as `repr` gives it, over lines if it is long, and bounded.

    Only the containers of Python itself are taken apart; others have a representation of their own.
    """

    WIDTH = 80
    CHARS = 20_000
    """About as much is shown; then each container says how many items are left out."""
    MAX_INDENT = 12

    def __init__(self) -> None:
        import collections

        self._room = self.CHARS
        self._within: set[int] = set()
        empty: dict[Any, Any] = {}
        self._ends: dict[Any, tuple[str, str]] = {
            list: ("[", "]"),
            tuple: ("(", ")"),
            set: ("{", "}"),
            frozenset: ("frozenset({", "})"),
            type(empty.keys()): ("dict_keys([", "])"),
            type(empty.values()): ("dict_values([", "])"),
            type(empty.items()): ("dict_items([", "])"),
        }
        self._mappings: dict[Any, tuple[str, str]] = {
            dict: ("{", "}"),
            collections.Counter: ("Counter({", "})"),
            collections.defaultdict: ("defaultdict(", "})"),
        }

    def format(self, value: Any, indent: int = 0) -> str:
        """
        Args:
            indent: columns before it, in each of its lines.
        """
        kind = _type_of(value)
        is_mapping = kind in self._mappings
        ends = self._mappings.get(kind) or self._ends.get(kind)
        if ends is None or not value:
            return self._leaf(value)
        opening, closing = ends
        if id(value) in self._within:
            return f"{opening}...{closing}"
        if opening == "defaultdict(":
            opening += f"{value.default_factory!r}, {{"
        if kind is tuple and len(value) == 1:
            closing = ",)"
        self._within.add(id(value))
        inner = indent + min(len(opening), self.MAX_INDENT)
        items: Any = value
        if is_mapping:
            items = value.most_common() if opening == "Counter({" else value.items()
        parts: list[str] = []
        nested = is_mapping
        for item in items:
            if self._room <= 0:
                parts.append(f"... {len(value) - len(parts):,} more")
                break
            if is_mapping:
                key, item = item  # noqa: PLW2901  # a pair
                before = f"{self._leaf(key)}: "
                parts.append(before + self.format(item, inner + len(before)))
            else:
                nested = nested or _type_of(item) in self._ends or _type_of(item) in self._mappings
                parts.append(self.format(item, inner))
        self._within.discard(id(value))
        line = f"{opening}{', '.join(parts)}{closing}"
        if "\n" not in line and indent + len(line) <= self.WIDTH:
            return line
        lines = parts if nested else self._packed(parts, self.WIDTH - inner)
        return opening + (",\n" + " " * inner).join(lines) + closing

    def _leaf(self, value: object) -> str:
        text = repr(value)
        self._room -= len(text) + 2
        return text

    @staticmethod
    def _packed(parts: list[str], width: int) -> list[str]:
        """Join parts to lines, as many in each as there is room for."""
        lines = [parts[0]]
        for part in parts[1:]:
            if len(lines[-1]) + len(part) + 3 <= width:
                lines[-1] += f", {part}"
            else:
                lines.append(part)
        return lines


SHELL_COMMANDS = frozenset(
    "apt apt-get bash cat cd chmod conda cp curl docker echo export find git grep head ls make "
    "mkdir mv node npm npx pip pip3 pwd python python3 rm sed sh sudo tail touch uv wget "
    "which".split()
)
"""Names with which lines begin that people type in a shell."""

MAGICS = {
    "matplotlib": "leave the line out: figures are shown anyway",
    "timeit": "use timeit.timeit",
    "time": "use time.perf_counter",
    "cd": "use os.chdir",
    "pip": "it would be `python -m pip` in a shell",
    "run": "use runpy.run_path",
    "bash": "run the code in a Bash environment",
    "sh": "run the code in a Bash environment",
}


def hint_for(line: str) -> str:
    """Sentence on what to write instead of a line of IPython or of a shell, or an empty text."""
    line = line.strip()
    short = line if len(line) <= 60 else line[:59] + "\u2026"
    if found := re.match(r"(?:[\w, ]+=\s*)?!\s*(.+)", line):
        return (
            f"`{short}` is IPython syntax: run the command in a Bash environment, or with "
            f"subprocess.run({found[1][:80]!r}, shell=True)"
        )
    if found := re.match(r"(?:[\w, ]+=\s*)?%%?([A-Za-z_]\w*)", line):
        instead = MAGICS.get(found[1], "leave it out, or write it in Python")
        return f"`{short}` is a magic of IPython, which plain Python does not have: {instead}"
    found = re.fullmatch(r"\?{0,2}([A-Za-z_][\w.]*)\?{0,2}", line)
    if found and "?" in line:
        return f"`{short}` is IPython syntax: help({found[1]}) prints the documentation"
    found = re.match(r"([a-z][a-z0-9-]*)(?:\s+[^\s=(]|$)", line)
    if found and found[1] == "cd":
        return f"`{short}` is a shell command: os.chdir changes the directory"
    if found and found[1] in SHELL_COMMANDS:
        return (
            f"`{short}` is a shell command: run it in a Bash environment, or with "
            f"subprocess.run({line[:80]!r}, shell=True)"
        )
    return ""


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


class PythonWorker:
    """The interpreter's side: namespace, event loop, displays, tracebacks.

    Everything here shares a process with user code, so nothing is defended against it; what must
    hold against hostile code is the agent's business.
    """

    FUTURE_FLAGS = 0xFFF0000
    COROUTINE = 0x80
    TOP_LEVEL_AWAIT = 0x2000
    ONLY_AST = 0x400
    SOURCES = 500
    """Executions whose source text is kept for tracebacks and `inspect`."""
    INTERRUPT = signal.SIGURG
    """Stands in for a SIGINT that would be ignored. Ignored itself where code has its own use."""

    def __init__(self, control_fd: int, page: SharedPage) -> None:
        import _ast
        import _thread
        import builtins
        import linecache
        from types import ModuleType

        # What a call needs is at hand: code may have replaced it.
        self._expression, self._interactive = _ast.Expr, _ast.Interactive

        self._pid = os.getpid()
        self._control_fd = control_fd
        self._page = page
        self._out_fd, self._err_fd = _dup_high(1), _dup_high(2)
        self._null_fd = _dup_high(0)
        self._private = {
            fd: _identity(os.fstat(fd))
            for fd in (control_fd, self._out_fd, self._err_fd, self._null_fd)
        }
        self._reader = FrameReader()
        self._poll = select.poll()
        self._poll.register(control_fd, select.POLLIN)
        self._lock = _thread.allocate_lock()
        self._get_ident = _thread.get_ident
        self._main_thread = _thread.get_ident()
        self._linecache = linecache
        self._sources: list[str] = []
        self._flags: int = 0
        self._loop: Any = None
        self._context: Any = None
        self._known: list[object] = []
        self._images = 0
        self._thread_count = _thread._count  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        # A template has asyncio already, and a loop takes memory and descriptors.
        self._wants_loop = "asyncio" not in sys.modules
        self._handler: Any = signal.default_int_handler
        self._held = b""
        self._agent_module = sys.modules.get("__main__")  # its globals live as long as this does
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self._namespace = module.__dict__
        self._builtins = builtins.__dict__
        self._builtins["display"] = self.display
        sys.argv = [""]
        self._path = list(sys.path)
        sys.path.insert(0, "")
        sys.displayhook = self._display_hook
        self._open_streams()
        self._ignoring = self._ignore  # one object, to be told from others
        set_handler(signal.SIGINT, self._ignoring)
        set_handler(self.INTERRUPT, self._interrupt)
        os.register_at_fork(after_in_child=self._after_fork)
        import faulthandler

        faulthandler.enable(2)
        self._silence_show()
        self._tracing = [self._hide_from("trace"), self._hide_from("profile")]
        self._tracers: list[Any] = [None, None]
        self._exit_functions = self._count_exit_functions()
        random = sys.modules.get("numpy.random")
        if random is not None:  # a fork of a template would share the stream with its siblings
            random.seed()

    @staticmethod
    def _silence_show() -> None:
        """Figures are displayed anyway, so matplotlib's warning that it can't show them is wrong.

        The list is that of the `warnings` module, which is not imported for this.
        """
        import _warnings

        _warnings.filters.insert(0, ("ignore", NO_SHOW, UserWarning, None, 0))

    def _hide_from(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Keeps frames of this file from the functions that code gives to `sys.settrace` or
        `sys.setprofile`, e.g. those below `print`.

        Returns:
            Python's own functions, to get and to set.
        """
        original_set: Any = getattr(sys, f"set{name}")
        original_get: Any = getattr(sys, f"get{name}")
        own = self._run.__code__.co_filename

        def set_function(function: Any, /) -> None:
            if function is None:
                original_set(None)
                return

            def filtered(frame: Any, event: str, argument: Any) -> Any:
                if frame.f_code.co_filename == own:
                    return None
                return function(frame, event, argument)

            setattr(filtered, "given", function)  # noqa: B010  # a function has no such field
            original_set(filtered)

        def get_function() -> Any:
            function = original_get()
            return getattr(function, "given", function)

        setattr(sys, f"set{name}", set_function)
        setattr(sys, f"get{name}", get_function)
        return original_get, original_set

    def _resume_tracing(self) -> None:
        for (_, set_function), function in zip(self._tracing, self._tracers):
            if function is not None:
                set_function(function)

    def _suspend_tracing(self) -> None:
        """Between two executions nothing of what runs is code's.

        Tracers and profilers in C, which did not come through `sys`, cannot be set again, and stay.
        """
        found = [get_function() for get_function, _ in self._tracing]
        self._tracers = [each if hasattr(each, "given") else None for each in found]
        for (_, set_function), function in zip(self._tracing, self._tracers):
            if function is not None:
                set_function(None)

    # Control socket.

    def serve(self) -> NoReturn:
        """Runs what the agent sends, one piece after another."""
        while True:
            message = self._reader.next_message()
            if message is None:
                self._wait()
            elif message["type"] == "limits":
                apply_limits(message["limits"])
            elif message["type"] == "complete":
                self._complete(message)
            elif message["type"] == "run":
                number = message["id"]
                one_shot = message.get("one_shot") is True
                exit_code = self._run(number, message["code"], one_shot=one_shot)
                if os.getpid() != self._pid:
                    os._exit(exit_code)  # code forked and its child got to the end
                if not self._is_intact():
                    os._exit(exit_code)  # nobody can be told: the exit status says it
                done = {"type": "done", "id": number, "token": message["token"]}
                held, self._held = self._held, b""
                self._write(held + encode_frame({**done, "exit_code": exit_code}))

    def _complete(self, message: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            completer = PythonCompleter(self._namespace, self._builtins)
            prefix, matches = completer.complete(message["before"], message["next"])
            answer = {"prefix": prefix, "matches": matches}
        self._send({"type": "answer", "id": message["id"], **answer})

    def _wait(self) -> None:
        """Takes more bytes from the agent; the event loop, if there is one, runs meanwhile."""
        loop = self._loop
        if loop is not None and not loop.is_closed():

            def readable() -> None:
                # Once: another loop's `stop` may work twice, the second time in the code's await.
                loop.remove_reader(self._control_fd)
                loop.stop()

            try:
                loop.add_reader(self._control_fd, readable)
                try:
                    loop.run_forever()
                finally:
                    loop.remove_reader(self._control_fd)
            except BaseException as error:
                self._report(error)
            if not self._poll.poll(0):
                return
        data = os.read(self._control_fd, READ_BYTES)
        if not data:
            os._exit(0)
        self._reader.receive_data(data)

    def _send(self, message: Mapping[str, Any]) -> None:
        """Sends a frame whole: an interrupt in the middle of it waits until after it."""
        data = encode_frame(message)
        if self._get_ident() != self._main_thread:
            self._write(data)
            return
        data, self._held = self._held + data, b""
        late: list[int] = []

        def note(number: int, _frame: object) -> None:
            late.append(number)

        previous = set_handler(signal.SIGINT, note)
        try:
            self._write(data)
        finally:
            set_handler(signal.SIGINT, previous)
        if late and callable(previous):
            previous(signal.SIGINT, None)

    def _write(self, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(self._control_fd, data) :]

    def _is_intact(self) -> bool:
        try:
            for fd, known in self._private.items():
                if _identity(os.fstat(fd)) != known:
                    return False
        except OSError:
            return False
        return True

    def _after_fork(self) -> None:
        """Runs in a child that user code has forked: what is the agent's stays with the parent."""
        for fd in self._private:
            with contextlib.suppress(OSError):
                os.close(fd)

    # Descriptors and signals.

    def _open_streams(self) -> None:
        for name, fd, errors in (
            ("stdout", 1, "surrogateescape"),
            ("stderr", 2, "backslashreplace"),
        ):
            raw = WholeWriter(fd, "w", closefd=False)
            raw.name = f"<{name}>"  # as Python names them
            stream: Any = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
            stream.mode = "w"
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        empty = io.FileIO(0, closefd=False)
        empty.name = "<stdin>"
        stdin: Any = io.TextIOWrapper(empty, encoding="utf-8")
        stdin.mode = "r"
        sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]

    def _restore_descriptors(self) -> None:
        for fd, saved in ((0, self._null_fd), (1, self._out_fd), (2, self._err_fd)):
            os.dup2(saved, fd)
        for name in ("stdin", "stdout", "stderr"):
            if not self._is_open(getattr(sys, name, None)):
                if not self._is_open(getattr(sys, f"__{name}__", None)):
                    self._open_streams()
                setattr(sys, name, getattr(sys, f"__{name}__"))

    @staticmethod
    def _is_open(stream: Any) -> bool:
        try:
            return stream is not None and not getattr(stream, "closed", False)
        except ValueError:  # its buffer has been detached
            return False

    def _ignore(self, *_: object) -> None:
        """Handles an interrupt that comes when no code runs."""

    def _interrupt(self, _number: int, frame: Any) -> None:
        """Does what SIGINT would do if nobody outside of Python ignored it.

        The agent's word for it waits in the control socket; without, it is a signal of code's own.
        """
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and self._poll.poll(0):
            handler(signal.SIGINT, frame)

    def _arm(self, number: int) -> None:
        """From now on an interrupt reaches the code."""
        set_handler(signal.SIGINT, self._handler)
        self._page.interruptible = number
        if self._page.awaited == number:  # one has come too early
            self._send({"type": "started", "id": number})

    def _disarm(self) -> None:
        handler = None
        for _ in range(DISARM_ATTEMPTS):
            try:
                handler = set_handler(signal.SIGINT, self._ignoring)
                break
            except BaseException:  # noqa: S112
                continue  # the last interrupt, on the way out
        else:
            # Not interrupts, then: code has taken away what Python's own library needs.
            os._exit(1)
        if handler is not self._ignoring:
            self._handler = handler

    # Running code.

    def _run(self, number: int, code: str, *, one_shot: bool = False) -> int:
        """Runs a piece of code; returns its exit code. Never raises."""
        name = f"<exec {number}>"
        code = code.removeprefix("\ufeff")  # as a file's would be
        self._wants_loop = self._wants_loop or "asyncio" in code
        try:
            if number:  # else it is the rehearsal, of which nothing stays
                self._remember_source(name, code)
            self._namespace.pop("__warningregistry__", None)
            for finder in list(sys.path_importer_cache.values()):
                # Modules written since the last look, within the time stamp's resolution.
                invalidate = getattr(finder, "invalidate_caches", None)
                if invalidate is not None:
                    invalidate()
        except Exception:  # noqa: S110
            pass  # all this belongs to code, and may be anything
        exit_code = 1
        self._images = 0
        try:
            try:
                self._restore_descriptors()
                self._arm(number)
                try:
                    self._execute(name, code)
                    exit_code = 0
                except BaseException as error:
                    exit_code = self._report(error)
                    self._hint(error, name, code)
                if one_shot and os.getpid() == self._pid:
                    try:
                        exit_code = self._end_program() or exit_code
                    except BaseException as error:
                        exit_code = self._report(error) or exit_code
                self._show_figures()
            finally:
                self._disarm()
        except BaseException as error:  # an interrupt during the report
            exit_code = self._report(error)
        if not one_shot:
            self._adopt_loop()
            self._note_what_goes_on()
        return exit_code

    def _execute(self, name: str, code: str) -> None:
        flags: int = self._flags | self.TOP_LEVEL_AWAIT
        try:
            tree: _ast.Module = compile(
                code, name, "exec", flags | self.ONLY_AST, dont_inherit=True
            )
            ends_in_value = (
                tree.body
                and isinstance(tree.body[-1], self._expression)
                and not self._ends_in_semicolon(code, tree.body[-1])
            )
            last = tree.body.pop() if ends_in_value else None
            whole: CodeType = compile(tree, name, "exec", flags, dont_inherit=True)
        except RecursionError:
            # Python 3.9 compiles texts that are too deep to become a tree of objects, and back.
            last, whole = None, compile(code, name, "exec", flags, dont_inherit=True)
        self._flags |= whole.co_flags & self.FUTURE_FLAGS
        flags |= self._flags
        pieces = [whole]
        if last is not None:
            value = self._interactive([last])
            pieces.append(compile(value, name, "single", flags, dont_inherit=True))
        if any(piece.co_flags & self.COROUTINE for piece in pieces):
            self._run_in_loop(pieces)
            return
        try:
            self._resume_tracing()
            for piece in pieces:
                if self._context is None:
                    exec(piece, self._namespace)
                else:
                    self._context.run(exec, piece, self._namespace)
        finally:
            self._suspend_tracing()

    @staticmethod
    def _ends_in_semicolon(code: str, last: _ast.stmt) -> bool:
        """Tell whether `;` follows the last statement, which hides its value."""
        if ";" not in code:
            return False
        lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        end = last.end_lineno or 0
        after = "".join([lines[end - 1].encode()[last.end_col_offset :].decode(), *lines[end:]])
        return after.lstrip(" \t\f\\").startswith(";")

    def _import(self, name: str) -> Any:
        """A module of the standard library, whatever lies in the working directory."""
        module = sys.modules.get(name)
        if module is None:
            import importlib

            path = sys.path
            sys.path = list(self._path)
            try:
                module = importlib.import_module(name)
            finally:
                sys.path = path
        return module

    def _remember_source(self, name: str, code: str) -> None:
        # As Python counts lines: a form feed, for one, ends none.
        text = code.replace("\r\n", "\n").replace("\r", "\n")
        lines = [line + "\n" for line in text.split("\n")]
        if text.endswith("\n"):
            lines.pop()
        self._linecache.cache[name] = (len(code), None, lines, name)
        self._sources.append(name)
        if len(self._sources) > self.SOURCES:
            self._linecache.cache.pop(self._sources.pop(0), None)

    # The event loop.

    def _current_loop(self) -> Any:
        asyncio = self._import("asyncio")
        if self._loop is None:
            self._loop = self._made_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self._loop

    def _adopt_loop(self) -> None:
        """Once code has imported asyncio there is a loop for it, current in the main thread.

        A loop that code made by asking for the current one becomes ours, so that the tasks it
        holds run while the session idles.
        """
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not hasattr(asyncio, "set_event_loop"):
            return
        if self._loop is None and not self._wants_loop and self._made_loop() is None:
            return
        try:
            self._current_loop()
        except Exception as error:
            self._report(error)

    @staticmethod
    def _made_loop() -> Any:
        """The loop that code made by asking for the current one; before Python 3.10 events and
        locks do that, too."""
        policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
        return getattr(getattr(policy, "_local", None), "_loop", None)

    async def _in_turn(self, pieces: list[CodeType]) -> None:
        try:
            self._resume_tracing()
            for piece in pieces:
                if piece.co_flags & self.COROUTINE:
                    await eval(piece, self._namespace)
                else:
                    exec(piece, self._namespace)
        finally:
            self._suspend_tracing()

    def _run_in_loop(self, pieces: list[CodeType]) -> None:
        """Runs code that awaits: the loop runs from its beginning to its end."""
        asyncio = self._import("asyncio")
        loop = self._current_loop()
        if sys.version_info >= (3, 11):  # noqa: UP036  # jails may have an older one
            # A task has a context of its own. This one is that of all code from now on: what a
            # context variable is set to must be there for the next code.
            if self._context is None:
                self._context = self._import("contextvars").copy_context()
            task = loop.create_task(self._in_turn(pieces), context=self._context)
        else:
            task = loop.create_task(self._in_turn(pieces))
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            if task.done():
                raise
            # It came while the loop waited, or in another task: stop ours where it awaits.
            task.cancel()
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError as error:
                raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
        except RuntimeError:
            # Code has stopped the loop: ours must not go on in a later execution.
            task.cancel()
            raise

    # What code leaves under way.

    def _note(self, text: str) -> None:
        """Adds a sentence to the result; it is sent with what comes next."""
        self._held += encode_frame({"type": "note", "text": text})

    def _tasks(self) -> list[Any]:
        """Tasks of our loop that are not done."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return []
        return list(sys.modules["asyncio"].all_tasks(loop))

    def _threads(self) -> list[Any]:
        """Threads for which Python would wait before it exits, without idle ones of pools."""
        threading = sys.modules.get("threading")
        if threading is None or not self._thread_count():
            return []
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

        def is_idle(thread: Any) -> bool:
            frame = frames.get(thread.ident)
            where = frame.f_code if frame is not None else None
            return where is not None and (
                where.co_name == "_worker"
                and where.co_filename.endswith(os.path.join("concurrent", "futures", "thread.py"))
            )

        return [
            thread
            for thread in threading.enumerate()
            if thread.ident != self._main_thread and not thread.daemon and not is_idle(thread)
        ]

    def _note_what_goes_on(self) -> None:
        """Add a note on threads and tasks that outlive their code, once for each."""
        try:
            threads, tasks = self._threads(), self._tasks()
            if not threads and not tasks:
                self._known.clear()
                return
            known, self._known = self._known, [*threads, *tasks]
            words = [
                _counted(len(new), word)
                for things, word in ((threads, "thread"), (tasks, "asyncio task"))
                if (new := [thing for thing in things if all(thing is not old for old in known)])
            ]
            if words:
                self._note(
                    f"{' and '.join(words)} still under way: "
                    "what is printed there comes with the next result"
                )
        except Exception:  # noqa: S110
            pass  # code may have replaced any of it

    @staticmethod
    def _count_exit_functions() -> int:
        atexit = sys.modules.get("atexit")
        return 0 if atexit is None else atexit._ncallbacks()  # noqa: SLF001

    def _end_program(self) -> int:
        """Do what Python does at the end of a program, since nothing comes after a one-shot.

        Cancel the tasks that are left, as `asyncio.run` does; wait for threads; call the functions
        of `atexit`.

        Returns:
            An exit code if that went wrong, else 0.
        """
        tasks = self._tasks()
        if tasks:
            self._note(
                f"{_counted(len(tasks), 'asyncio task')} cancelled, since the code had ended: "
                "await what has to finish"
            )
            self._cancel(tasks)
        threads = self._threads()
        try:
            if self._thread_count() and "threading" in sys.modules:
                sys.modules["threading"]._shutdown()  # noqa: SLF001
        except KeyboardInterrupt:
            running = sum(thread.is_alive() for thread in threads)
            if not running:
                raise
            self._note(f"the code had ended, but not {_counted(running, 'thread')} that it started")
            return 130
        if self._count_exit_functions() != self._exit_functions:
            sys.modules["atexit"]._run_exitfuncs()  # noqa: SLF001
        return 0

    def _cancel(self, tasks: list[Any]) -> None:
        asyncio, loop = sys.modules["asyncio"], self._loop
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._report(error)

    # What is shown.

    def _report(self, error: BaseException) -> int:
        """Prints an exception as Python would; returns the exit code it means."""
        try:
            if isinstance(error, SystemExit):
                if error.code is None:
                    return 0
                if isinstance(error.code, int):
                    return error.code & 255
                print(error.code, file=sys.stderr)
                return 1
            if isinstance(error, getattr(sys.modules.get("bdb"), "BdbQuit", ())):
                print(
                    "The debugger ended the code: standard input is empty, so nobody can answer "
                    "its prompt. Leave breakpoint() and pdb out, and print what you want to see.",
                    file=sys.stderr,
                )
                return 1
            self._print_error(error)
        except BaseException as second:
            # The hook or what it needs is broken, e.g. by code's own module `traceback`.
            stderr, sys.stderr = sys.stderr, sys.__stderr__
            try:
                sys.__excepthook__(type(error), error, error.__traceback__)
            except BaseException:
                with contextlib.suppress(BaseException):
                    os.write(2, f"{type(error).__name__} (not printable: {second!r})\n".encode())
            finally:
                sys.stderr = stderr
        return 130 if isinstance(error, KeyboardInterrupt) else 1

    def _hint(self, error: BaseException, name: str, code: str) -> None:
        """Add a note on what to write instead, if the code that failed is not Python."""
        try:
            number = None
            if isinstance(error, SyntaxError) and error.filename == name:
                number = error.lineno
            elif isinstance(error, NameError) and error.__traceback__ is not None:
                entry = error.__traceback__
                if entry.tb_next is None and entry.tb_frame.f_code.co_filename == name:
                    number = entry.tb_lineno
            if number:
                hint = hint_for(code.replace("\r\n", "\n").split("\n")[number - 1])
                if hint:
                    self._note(hint)
        except Exception:  # noqa: S110
            pass  # the error has been told, and code may have replaced what this needs

    def _print_error(self, error: BaseException) -> None:
        self._clean_traceback(error, set())
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
            return
        traceback = self._import("traceback")
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        sys.stderr.write("".join(lines))

    def _clean_traceback(self, error: BaseException, seen: set[int]) -> None:
        """Takes frames of the worker, and of the loop below user code, off a traceback."""
        if id(error) in seen:
            return
        seen.add(id(error))
        frames: list[TracebackType] = []
        entry = error.__traceback__
        while entry is not None:
            frames.append(entry)
            entry = entry.tb_next
        own = self._run.__code__.co_filename
        if frames and frames[0].tb_frame.f_code.co_filename == own:
            user = [
                index
                for index, frame in enumerate(frames)
                if frame.tb_frame.f_code.co_filename.startswith("<exec ")
            ]
            if user:
                del frames[: user[0]]
        clean: TracebackType | None = None
        for frame in reversed(frames):
            if frame.tb_frame.f_code.co_filename != own:
                kind = type(frame)
                clean = kind(clean, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = clean
        for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
            if isinstance(other, BaseException):
                self._clean_traceback(other, seen)

    def _display_hook(self, value: object) -> None:
        if value is not None:
            self._builtins["_"] = None
            self._show(self._bundle(value), hold=True)
            self._builtins["_"] = value

    def display(self, *values: object) -> None:
        """Shows values as rich as they can be shown, in their place among what is printed."""
        for value in values:
            bundle = self._bounded(self._bundle(value))
            text = bundle.get("text/plain")
            if any(kind.startswith("image/") for kind in bundle):
                self._images += 1
                bundle[PLACE] = self._images
                print(f"[image {self._images}]")
                if isinstance(text, str) and not (text[:1] == "<" and text[-1:] == ">"):
                    print(text)  # more than a bare representation: a caption
            elif isinstance(text, str):
                bundle[PLACE] = 0
                print(text)
            if bundle.keys() - {"text/plain", PLACE} and os.getpid() == self._pid:
                self._show(bundle)

    def _show(self, bundle: dict[str, Any], *, hold: bool = False) -> None:
        """
        Args:
            hold: send it with what comes next, which after a trailing expression is the end.
        """
        if os.getpid() != self._pid:
            print(bundle.get("text/plain", ""))
            return
        message = {"type": "display", "data": self._bounded(bundle)}
        if hold and self._get_ident() == self._main_thread:
            self._held += encode_frame(message)
        else:
            self._send(message)

    @staticmethod
    def _bounded(bundle: dict[str, Any]) -> dict[str, Any]:
        """The bundle, or a text in its place if it is larger than what the agent keeps."""
        size = sum(len(str(data)) for data in bundle.values())
        return bundle if size <= DISPLAY_BYTES else {"text/plain": DISPLAY_LEFT_OUT}

    REPRESENTATIONS = (
        ("_repr_html_", "text/html"),
        ("_repr_markdown_", "text/markdown"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_png_", "image/png"),
        ("_repr_jpeg_", "image/jpeg"),
        ("_repr_latex_", "text/latex"),
        ("_repr_json_", "application/json"),
    )

    def _bundle(self, value: object) -> dict[str, Any]:
        """The value's representations by MIME type; like IPython's, but asked of the type only."""
        try:
            is_plain = type(value) in (int, float, str, bool)
            text = repr(value) if is_plain else PrettyPrinter().format(value)
        except RecursionError:
            text = repr(value)
        found: dict[str, Any] = {"text/plain": text}
        kind = type(value)
        for method, mime in self.REPRESENTATIONS:
            if callable(getattr(kind, method, None)):
                found[mime] = self._ask(value, method)
        if callable(getattr(kind, "_repr_mimebundle_", None)):
            answer = self._first(self._ask(value, "_repr_mimebundle_", include=None, exclude=None))
            found.update(_as_object(answer) or {})
        plain = {str(mime): self._plain(self._first(data)) for mime, data in found.items()}
        return {mime: data for mime, data in plain.items() if data is not None}

    @staticmethod
    def _first(answer: Any) -> Any:
        """The data of an answer that may come with metadata, as a tuple."""
        found: Any = answer
        return found[0] if isinstance(answer, tuple) and answer else found

    def _ask(self, value: object, method: str, **arguments: object) -> Any:
        try:
            return getattr(value, method)(**arguments)
        except NotImplementedError:
            return None
        except Exception as error:
            self._print_error(error)
            return None

    @staticmethod
    def _plain(data: object) -> Any:
        """`data` as it can travel in JSON; None if it can't."""
        if isinstance(data, (bytes, bytearray)):
            import binascii

            return binascii.b2a_base64(data, newline=False).decode()
        try:
            return _from_json(_to_json(data))  # which are bound before code can replace them
        except (TypeError, ValueError, RecursionError):
            return None

    def _show_figures(self) -> None:
        """Displays and closes matplotlib's open figures, if code has imported it."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                png = io.BytesIO()
                try:
                    figure.savefig(png, format="png", bbox_inches="tight")
                finally:
                    pyplot.close(figure)
                self._show({"text/plain": repr(figure), "image/png": self._plain(png.getvalue())})
        except Exception as error:
            self._print_error(error)


def _type_of(value: object) -> Any:
    return type(value)


# What classes have and inherit, whatever their metaclasses say.
_mro_of: Any = vars(type)["__mro__"].__get__
_members_of: Any = vars(type)["__dict__"].__get__


class PythonCompleter:
    """What names could follow a text, found without running any code of the namespace.

    Attributes are looked up where they are kept, in the dictionaries of modules, instances and
    classes, by C code that nobody can override; what takes a property, `__getattr__` or the like
    to find is not found. Dictionaries are gone through rather than asked, since asking one may
    compare keys by a method of theirs.
    """

    MISSING = object()
    MAX_NAMES = 200_000
    PROXY = _type_of(vars(type))
    GETSET = _type_of(vars(type)["__dict__"])
    MEMBER = _type_of(vars(type(lambda: None))["__globals__"])
    # Compiled on first use: most sessions have nobody who types.
    DOTTED = r"((?:[^\W\d]\w*\s*\.\s*)*)([^\W\d]\w*)?\Z"
    SUBSCRIPT = r"((?:[^\W\d]\w*\s*\.\s*)*[^\W\d]\w*)\s*\[\s*\Z"
    FROM = r"\s*from\s+([\w.]+)\s+import\s+\(?(?:[\w\s,]*,\s*)?(\w*)\Z"
    IMPORT = r"\s*(?:from|import)\s+(?:[\w\s.,]*,\s*)?((?:\w+\.)*)(\w*)\Z"
    TEXTS = (
        r"(?s)#[^\n]*|"
        r'"""(?:\\.|[^\\])*?"""|' + r"'''(?:\\.|[^\\])*?'''|"
        r'"(?!"")(?:\\.|[^"\\\n])*"|' + r"'(?!'')(?:\\.|[^'\\\n])*'|"
        r'(?P<open>"""|' + r"'''|[" + r'"' + r"'])"
    )
    MODULE_ENDS = (".py", ".pyc", ".so")

    def __init__(self, namespace: Mapping[str, Any], builtins: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._builtins = builtins

    def complete(self, before: str, following: str) -> tuple[str, list[str]]:
        """What of the text before the cursor is to be replaced, and by what.

        Args:
            following: the character at the cursor, if any.
        """
        line = before[-MAX_MATCH:].rpartition("\n")[2]
        in_text, quote, start = self._open_text(before)
        if in_text:
            return self._complete_key(before, quote, start, following)
        if found := re.match(self.FROM, line):
            return found[2], self._offered(self._of_module(found[1]), found[2])
        if found := re.match(self.IMPORT, line):
            return found[2], self._offered(self._modules(found[1].split(".")[:-1]), found[2])
        dotted = re.search(self.DOTTED, line)
        if dotted is None:
            return "", []
        path, prefix = dotted[1], dotted[2] or ""
        preceding = line[: dotted.start()][-1:]
        if preceding == "." or (path and preceding in {")", "]", "}", '"', "'"}):
            return prefix, []
        if preceding.isdigit():
            return "", []
        if not path:
            return prefix, self._offered(self._top_level(), prefix)
        value = self._resolve(path)
        if value is self.MISSING:
            return prefix, []
        return prefix, self._offered(self._names(value), prefix)

    # The text.

    def _open_text(self, before: str) -> tuple[bool, str, int]:
        """Whether the cursor is in a comment or string; then its quote and where it begins."""
        place = 0
        texts = re.compile(self.TEXTS)
        while found := texts.search(before, place):
            place = found.end()
            quote = found["open"]
            if quote is None:
                if found[0][0] == "#" and place == len(before):
                    return True, "", place
                continue
            if len(quote) == 1:
                line_end = before.find("\n", place)
                if line_end >= 0:
                    place = line_end
                    continue
            return self._in_expression(before, found.start(), place), quote, place
        return False, "", 0

    @staticmethod
    def _in_expression(before: str, start: int, place: int) -> bool:
        """False where an f-string's braces make the cursor's place code again."""
        letters = re.search(r"[A-Za-z]*\Z", before[max(0, start - 3) : start])
        if letters is None or "f" not in letters[0].lower():
            return True
        text = before[place:].replace("{{", "")
        return text.rfind("{") <= text.rfind("}")

    def _complete_key(
        self, before: str, quote: str, start: int, following: str
    ) -> tuple[str, list[str]]:
        """Keys of a dictionary whose subscript has been begun."""
        prefix = before[start:]
        head = before[max(0, start - MAX_MATCH) : start - 1]
        found = re.search(self.SUBSCRIPT, head.rpartition("\n")[2]) if len(quote) == 1 else None
        value = self._resolve(found[1] + ".") if found else self.MISSING
        if value is self.MISSING or not self._inherits(_type_of(value), dict):
            return prefix, []
        end = "" if following == quote else f"{quote}]"
        keys = (
            key.replace("\\", "\\\\").replace(quote, f"\\{quote}")
            for key in self._keys(value)
            if len(key) < MAX_MATCH // 2 and key.isprintable()
        )
        return prefix, sorted({key + end for key in keys if key.startswith(prefix)})[:MAX_MATCHES]

    def _offered(self, names: Iterable[str], prefix: str) -> list[str]:
        kept = [name for name in names if name.startswith(prefix)]
        if not prefix.startswith("_"):
            kept = [name for name in kept if name[:1] != "_"]
        fit = (name for name in sorted(dict.fromkeys(kept)) if self._may_be_name(name))
        return list(itertools.islice(fit, MAX_MATCHES))

    @staticmethod
    def _may_be_name(text: str) -> bool:
        return len(text) <= MAX_MATCH and text.isidentifier()

    # Objects.

    @staticmethod
    def _inherits(kind: Any, base: type[object]) -> bool:
        """Like `issubclass`, without the comparisons of `in`, which metaclasses may define."""
        return any(other is base for other in _mro_of(kind))

    def _keys(self, mapping: Any) -> list[str]:
        """Those that are plain texts."""
        owner: Any = self.PROXY if _type_of(mapping) is self.PROXY else dict
        view = owner.keys(mapping)
        for _ in range(3):
            with contextlib.suppress(RuntimeError):  # another thread has changed it
                keys: list[Any] = list(itertools.islice(view, self.MAX_NAMES))
                return [key for key in keys if type(key) is str]
        return []

    def _find(self, mapping: Any, name: str) -> Any:
        owner: Any = self.PROXY if _type_of(mapping) is self.PROXY else dict
        view = owner.items(mapping)
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                for key, value in view:
                    if type(key) is str and key == name:
                        return value
                break
        return self.MISSING

    def _find_inherited(self, kind: Any, name: str) -> Any:
        for base in _mro_of(kind):
            value = self._find(_members_of(base), name)
            if value is not self.MISSING:
                return value
        return self.MISSING

    def _is_class(self, value: object) -> bool:
        return self._inherits(_type_of(value), type)

    def _own(self, value: object) -> Any:
        """The dictionary of an instance or module; an empty one if it has none."""
        getter = self._find_inherited(_type_of(value), "__dict__")
        is_member = _type_of(getter) is self.GETSET or _type_of(getter) is self.MEMBER
        # By its own name: others, such as those of a text file, ask objects of whatever class.
        if is_member and getter.__name__ == "__dict__":
            with contextlib.suppress(TypeError, AttributeError):  # another class's descriptor
                found = getter.__get__(value)
                if self._inherits(_type_of(found), dict):
                    return found
        return {}

    def _attribute(self, value: Any, name: str) -> Any:
        if self._is_class(value):
            return self._undecorated(self._find_inherited(value, name))
        inherited = self._find_inherited(_type_of(value), name)
        kind = _type_of(inherited)
        if kind is self.MEMBER:
            try:
                return inherited.__get__(value)
            except (AttributeError, TypeError):  # nothing in the slot, or another class's
                return self.MISSING
        for method in ("__set__", "__delete__"):  # it would come before the instance's own
            if self._find_inherited(kind, method) is not self.MISSING:
                return self.MISSING
        own = self._find(self._own(value), name)
        return self._undecorated(inherited) if own is self.MISSING else own

    def _undecorated(self, value: Any) -> Any:
        """What a class has under a name, unless only code can say what that gives."""
        kind = _type_of(value)
        if kind is staticmethod or kind is classmethod:
            return value.__func__
        functions = type(lambda: None), type(len), type(str.join), type(object.__init__)
        if any(kind is function for function in functions):
            return value
        if self._find_inherited(kind, "__get__") is self.MISSING:
            return value
        return self.MISSING

    def _resolve(self, path: str) -> Any:
        first, *rest = [name.strip() for name in path.split(".")[:-1]]
        value = self._find(self._namespace, first)
        if value is self.MISSING:
            value = self._find(self._builtins, first)
        for name in rest:
            if value is self.MISSING:
                break
            value = self._attribute(value, name)
        return value

    def _names(self, value: Any) -> Iterator[str]:
        kinds = _mro_of(value if self._is_class(value) else _type_of(value))
        mappings = [_members_of(kind) for kind in kinds]
        if not self._is_class(value):
            own = self._own(value)
            is_module = self._inherits(_type_of(value), _type_of(sys))
            mappings = [own] if is_module else [own, *mappings]
        for mapping in mappings:
            yield from self._keys(mapping)

    def _top_level(self) -> Iterator[str]:
        yield from self._keys(self._namespace)
        yield from self._keys(self._builtins)
        yield from keyword.kwlist

    # Modules.

    def _loaded(self, name: str) -> Any:
        modules: Any = sys.modules
        if not self._inherits(_type_of(modules), dict):
            return self.MISSING
        return self._find(modules, name)

    def _of_module(self, name: str) -> Iterator[str]:
        module = self._loaded(name)
        if module is not self.MISSING:
            yield from self._names(module)
        yield from self._modules(name.split("."))

    def _modules(self, parents: list[str]) -> Iterator[str]:
        """Modules that could be imported, of a package or at the top."""
        if not parents:
            yield from sys.builtin_module_names
        loaded = self._loaded(".".join(parents))
        paths: Any = sys.path
        below = parents
        if loaded is not self.MISSING and parents:
            paths, below = self._find(self._own(loaded), "__path__"), []
        if _type_of(paths) is not list:
            return
        entries: list[Any] = list(paths)
        for path in entries:
            if type(path) is str:
                yield from self._modules_in(os.path.join(path or ".", *below))

    def _modules_in(self, directory: str) -> Iterator[str]:
        with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= self.MAX_NAMES:
                    break
                stem, dot, _ = entry.name.partition(".")
                if entry.name.endswith(self.MODULE_ENDS) if dot else entry.is_dir():
                    yield stem


def _dup_high(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    except OSError:  # above the limit of descriptors, which may be set from outside at any moment
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


# ----------------------------------------------------------------------------------- Node runner

NODE_RUNNER = r"""
'use strict';
(() => {
// What code may replace, or hide behind a let of that name, is taken before there is any.
const {
  Array, ArrayBuffer, Atomics, BigInt, Boolean, Buffer, Error, Int32Array, JSON, Math, Number,
  Object, Reflect, Set, SharedArrayBuffer, String, Symbol, SyntaxError, TypeError, clearImmediate,
  eval: evaluate, process, setImmediate,
} = globalThis;
const {
  apply, defineProperty, deleteProperty, getOwnPropertyDescriptor, getPrototypeOf, ownKeys,
} = Reflect;
const { compareExchange, load, wait } = Atomics;
const fs = require('node:fs');
const inspector = require('node:inspector');
const { readFileSync, readSync } = fs;
const { hasOwn } = Object;
const { toString: errorText } = Error.prototype;
const { includes, indexOf, repeat, slice, startsWith } = String.prototype;
const { constants: { signals: { SIGSTOP, SIGTTOU } } } = require('node:os');
const { inspect, types: { isNativeError, isProxy } } = require('node:util');
const EventEmitter = require('node:events');
const { Writable } = require('node:stream');
const { Worker } = require('node:worker_threads');
const Module = require('node:module');
const { builtinModules, createRequire } = Module;
const { pathToFileURL } = require('node:url');

// Shared with the worker. INTERRUPTED: number of an execution that must not begin any more. PHASE:
// whether the main thread tells an execution's end itself, which saves a hop, or the worker, which
// has begun to interrupt it. LOCK: held by the thread that writes to the control socket.
const shared = {
  CONTROL_FD: 3, INTERRUPTED: 0, PHASE: 1, LOCK: 2, ANSWERED: 0, RUNNING: 1, INTERRUPTING: 2,
  state: new Int32Array(new SharedArrayBuffer(12)),
};
const { CONTROL_FD, INTERRUPTED, PHASE, ANSWERED, RUNNING, INTERRUPTING, state } = shared;

// What the worker answers about texts; its source is put into the worker's.
const questions = (inspector) => {
  // What V8's parser says of a text, here where no code runs: { message, at } of its error, if any.
  const parse = (text) => {
    const own = new inspector.Session();
    own.connect();
    let failure = { message: 'not parsed' };
    own.post('Runtime.enable');
    const request = { expression: text, sourceURL: '', persistScript: false };
    own.post('Runtime.compileScript', request, (error, { exceptionDetails: details } = {}) => {
      if (error) return;
      failure = details && {
        message: details.exception.description || '',
        at: text.split('\n').slice(0, details.lineNumber)
          .reduce((sum, line) => sum + line.length + 1, details.columnNumber),
      };
    });
    own.disconnect();
    return failure;
  };
  // An unfinished comment, or a string whose last line ends in a backslash.
  const OPEN = /^(\/\*|(["'])(\\[^]|(?!\2)[^\\\n])*\\\n?$)/;
  const judge = (text) => {
    const failure = parse(text);
    if (!failure) return 'complete';
    const { message, at } = failure;
    if (/Unexpected end of input|Unterminated template/.test(message)) return 'incomplete';
    if (/call stack|not parsed/.test(message)) return '';
    if (/Missing } in template/.test(message)) {
      return /in template/.test(parse(text + '}`')?.message) ? 'invalid' : 'incomplete';
    }
    if (/Missing catch or finally/.test(message)) {
      return parse(text + ' finally {}') ? 'invalid' : 'incomplete';
    }
    if (/missing \) after/.test(message)) {
      return /end of input/.test(parse(text + ',')?.message) ? 'incomplete' : 'invalid';
    }
    if (/Invalid or unexpected token/.test(message) && OPEN.test(text.slice(at))) {
      return 'incomplete';
    }
    return 'invalid';
  };
  // Whether a text is whole. Outside of functions await is an operator like void, in a session.
  const check = (text) => {
    let status = judge(text);
    if (status === 'invalid' && /\bawait\b/.test(text)) {
      status = judge(text.replace(/\bfor(\s+)await\b/g, 'for$1     ')
        .replace(/\bawait\b/g, 'void '));
    }
    if (status !== 'complete' && /^\s*\{/.test(text)) {
      const value = judge('(' + text + '\n)');
      if (value === 'complete' || (status === 'invalid' && judge('(' + text) === 'incomplete')) {
        status = value === 'complete' ? value : 'incomplete';
      }
    }
    const failure = status === 'incomplete' ? parse(text + '\u0001') : null;
    return { status, in_text: /end of input/.test(failure?.message) };
  };
  const KEYWORDS = ('async await break case catch class const continue debugger default delete ' +
    'do else export extends false finally for function if import in instanceof let new null of ' +
    'return static super switch this throw true try typeof var void while with yield').split(' ');
  const NAME = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u;
  const PATH =
    /((?:[\p{ID_Start}$_][\p{ID_Continue}$]*\s*\??\.\s*)*)([\p{ID_Start}$_][\p{ID_Continue}$]*)?$/u;
  const TEXTS = new RegExp([
    /\/\/[^\n]*/, /\/\*(?:[^]*?(\*\/)|[^]*)/, /(["'])(?:\\[^]|(?!\2)[^\\\n])*(\2)?/,
    /`(?:\\[^]|[^`\\])*(`)?/,
  ].map(({ source }) => source).join('|'), 'g');
  // Whether a text ends in a comment, a string, or the plain part of a template.
  const inText = (text) => {
    for (const { 0: found, 1: comment, 3: string, 4: template, index } of text.matchAll(TEXTS)) {
      if (index + found.length === text.length && !(comment ?? string ?? template)) {
        return found[0] !== '`' || found.lastIndexOf('${') <= found.lastIndexOf('}');
      }
    }
    return false;
  };
  // The names before a text's end: `steps` lead to an object, `prefix` begins a name of its.
  const dissect = (before) => {
    const line = before.slice(-1000).split('\n').pop();
    const [matched, path, prefix = ''] = PATH.exec(line);
    const preceding = line[line.length - matched.length - 1] ?? '';
    const ofOther = path ? /[)\]}"'`.#\p{Nd}]/u : /[.#\p{Nd}]/u;  // more than a path of names
    if (inText(before) || ofOther.test(preceding)) return null;
    const steps = path.split('.').map((name) => name.replace('?', '').trim()).slice(0, -1);
    return { steps, prefix };
  };
  const choose = ({ steps, prefix }, names) => {
    const all = new Set(steps.length ? names : [...KEYWORDS, ...names]);
    const fits = (name) => name.startsWith(prefix) && NAME.test(name);
    return { prefix, matches: [...all].filter(fits).sort().slice(0, 500) };
  };
  return { check, dissect, choose };
};

// Replaces `import` before `(`, outside of strings, comments and regular expressions.
const rewriteImports = (code) => {
  if (!/\bimport\b/.test(code)) return code;
  const word = /[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/uy;
  const call = /(?:\s|\/\*[^]*?\*\/|\/\/[^\n]*\n)*\(/y;
  const before = new Set(['return', 'typeof', 'case', 'in', 'of', 'do', 'else', 'void', 'delete',
    'throw', 'new', 'instanceof', 'await', 'yield']);
  const nesting = [], places = new Set();
  let i = 0, value = false, dot = false, called = -1;
  const skipTemplate = () => {
    for (; i < code.length; i++) {
      if (code[i] === '\\') i++;
      else if (code[i] === '`') { i++; value = true; return; }
      else if (code[i] === '$' && code[i + 1] === '{') {
        i += 2; nesting.push('`'); value = false; return;
      }
    }
  };
  while (i < code.length) {
    const c = code[i];
    if (/\s/.test(c)) { i++; continue; }
    if (c === '/' && code[i + 1] === '/') {
      i = code.indexOf('\n', i);
      if (i < 0) break;
      continue;
    }
    if (c === '/' && code[i + 1] === '*') {
      i = code.indexOf('*/', i + 2);
      if (i < 0) break;
      i += 2;
      continue;
    }
    const afterDot = dot;
    dot = c === '.' && code[i + 1] !== '.';
    if (c === '"' || c === "'") {
      for (i++; i < code.length && code[i] !== c; i++) if (code[i] === '\\') i++;
      i++;
      value = true;
    } else if (c === '`') { i++; skipTemplate(); }
    else if (c === '{' || c === '(' || c === '[') {
      nesting.push(c === '(' && called >= 0 ? called : c);
      called = -1;
      value = false;
      i++;
    } else if (c === '}' || c === ')' || c === ']') {
      i++;
      const opened = nesting.pop();
      if (opened === '`') skipTemplate();
      else value = c !== '}';
      // Followed by a body: a method of that name, not a call.
      if (typeof opened === 'number' && /^\s*\{/.test(code.slice(i))) places.delete(opened);
    } else if (c === '/' && !value) {
      let set = false;
      for (i++; i < code.length && (set || code[i] !== '/') && code[i] !== '\n'; i++) {
        if (code[i] === '\\') i++;
        else if (code[i] === '[') set = true;
        else if (code[i] === ']') set = false;
      }
      i++;
      value = true;
    } else if ((word.lastIndex = i, word.test(code))) {
      const name = code.slice(i, word.lastIndex);
      call.lastIndex = word.lastIndex;
      if (name === 'import' && !afterDot && call.test(code)) {
        places.add(i);
        called = i;
      }
      i = word.lastIndex;
      value = !before.has(name);
    } else {
      value = /[0-9]/.test(c) || (value && /[.+-]/.test(c) && code[i - 1] === c);
      i++;
    }
  }
  let out = '', copied = 0;
  for (const place of places) {
    out += code.slice(copied, place) + '__import__';
    copied = place + 'import'.length;
  }
  return out + code.slice(copied);
};

// An object literal looks like a block: taken for what it must be meant as, as in a console.
const asExpression = (vm, code) => {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return code;
  try {
    new vm.Script('(' + code + '\n)');
    return '(' + code + '\n)';
  } catch {
    return code;
  }
};

const looksLikeModule = (code) =>
  /(?:^|[;}])[ \t]*(?:import\b(?!\s*\()|export\b)|\bimport\s*\.\s*meta\b/m.test(code);
// Whether code has something for `makeRewriter`. The first code of all replaces nothing.
const needsRewriting = ({ code, one_shot }, isFirst) => looksLikeModule(code) ||
  (!one_shot && (isFirst ? /\bconst\b/ : /\b(?:class|const|function|let|var)\b/).test(code));

const prepare = (vm, { id, token, code, one_shot }, rewritten) => {
  const { text, hoisted, names, failure } = rewritten ?? { text: asExpression(vm, code) };
  const url = '\n//# sourceURL=<exec-' + id + '>';
  return {
    type: 'run', id, token, one_shot, names, failure,
    hoisted: hoisted && rewriteImports(hoisted) + url,
    expression: rewriteImports(text) + url,
    lines: code.split(/\r\n|[\n\r\u2028\u2029]/),  // as V8 counts them
  };
};

// Lets any declaration at the top replace any earlier one, and runs modules as scripts. V8's REPL
// mode takes a let for a let and a class, and a var or function for a var or function. So
// - const becomes let, and what assigns to it assigns to a real constant instead, which throws;
// - a declaration whose name is of the other sort becomes assignments, `let x = 1` for example
//   `var [] = [x = 1]`: no value of its own, and names and line numbers stay. What such a
//   declaration still needs is declared by another text, `hoisted`, which is run before.
// As in browsers' consoles, functions of earlier executions see the new value: they look names up.
// Text that the parser does not know is left to V8.
const makeRewriter = (vm, parse, looksLikeModule, asExpression) => {
  const constants = new Set();
  const isNode = (value) => typeof value?.type === 'string';
  const childrenOf = (node) => Object.values(node).flat().filter(isNode);
  const isFunction = ({ type }) => /Function/.test(type);
  // The identifiers that a pattern binds or assigns to, with whether it is `{ x }` for `{ x: x }`.
  const targetsOf = (node, shorthand = false) => {
    switch (node?.type) {
      case 'Identifier': return [{ node, shorthand }];
      case 'ObjectPattern': return node.properties.flatMap(
        (each) => targetsOf(each.type === 'Property' ? each.value : each, each.shorthand));
      case 'ArrayPattern': return node.elements.flatMap((each) => targetsOf(each));
      case 'AssignmentPattern': return targetsOf(node.left, shorthand);
      case 'RestElement': return targetsOf(node.argument);
      default: return [];
    }
  };
  const namesOf = (pattern) => targetsOf(pattern).map(({ node }) => node.name);
  const boundBy = (declaration) => declaration.declarations.flatMap(({ id }) => namesOf(id));
  const assignedBy = ({ type, operator, left, argument }) => {
    if (type === 'UpdateExpression') return targetsOf(argument);
    const assigns = type === 'AssignmentExpression' ? !/^(\|\||&&|\?\?)=/.test(operator)
      : /^For(In|Of)/.test(type);
    return assigns ? targetsOf(left) : [];
  };

  const transform = ({ code, one_shot }, conflicts = new Set()) => {
    const edits = [];
    const replace = (start, end, text) => edits.push({ start, end, text });
    const blank = (start, end) => replace(start, end, code.slice(start, end).replace(/\S/g, ' '));
    const names = { lexical: [], vars: [] };
    const declared = { let: [], var: [] };
    let functions = '', prologue = '';
    const isConflict = (name) => conflicts.has(name);
    const declare = (kind, found) => {
      (kind === 'var' ? names.vars : names.lexical).push(...found);
      for (const name of found) constants[kind === 'const' ? 'add' : 'delete'](name);
      if (!found.some(isConflict)) return false;
      // A var's conflict is a let, which is made anew; a let's is a property of globalThis.
      for (const name of found) {
        if (kind !== 'var' && !isConflict(name)) declared.let.push(name);
        if (kind === 'var') declared[isConflict(name) ? 'let' : 'var'].push(name);
      }
      return true;
    };
    const assign = (start, keywordEnd, end, text = '') => {
      const ended = code[end - 1] === ';';
      replace(start, keywordEnd, 'var [] = [' + text);
      replace(ended ? end - 1 : end, end, '];');
    };
    const ofVariables = (node, parent) => {
      const { kind, start, end, declarations } = node;
      const isHead = /^For/.test(parent?.type) && node !== parent.body;
      if (isHead && kind !== 'var') return;
      if (!/^(const|let|var)$/.test(kind)) return;
      if (!declare(kind, boundBy(node))) {
        if (kind === 'const') replace(start, start + 5, 'let  ');
        return;
      }
      if (isHead) { blank(start, start + 3); return; }
      for (const { id, init } of declarations) {
        if (init) continue;
        const keeps = kind === 'var' && !isConflict(id.name);
        replace(id.end, id.end, ' = ' + (keeps ? id.name : 'void 0'));
      }
      assign(start, start + kind.length, end);
    };
    // Variables that blocks declare for the top.
    const ofBlocks = (node, parent) => {
      if (isFunction(node) || /^Class/.test(node.type)) return;
      if (node.type === 'VariableDeclaration' && node.kind === 'var') ofVariables(node, parent);
      for (const child of childrenOf(node)) ofBlocks(child, node);
    };
    const ofStatement = (node) => {
      if (one_shot) return;
      const { type, start, end, id } = node;
      if (type === 'VariableDeclaration') ofVariables(node);
      else if (type === 'ClassDeclaration') {
        if (declare('let', [id.name])) assign(start, start, end, id.name + ' = ');
      } else if (type === 'FunctionDeclaration') {
        if (!declare('var', [id.name])) return;
        const { line } = node.loc.start;
        functions = functions.padEnd(functions.length + line - 1 - (functions.match(/\n/g) ?? [])
          .length, '\n') + 'let ' + id.name + ' = ' + code.slice(start, end) + ';';
        declared.let.pop();
        blank(start, end);
      } else ofBlocks(node);
    };
    // What one statement assigns to and what it declares inside of it.
    const guardConstants = (statement) => {
      const inner = new Set(), targets = [];
      const visit = (node, parent) => {
        if (node !== statement && node.id) for (const each of namesOf(node.id)) inner.add(each);
        if (node.type === 'VariableDeclaration' && parent) {
          for (const each of boundBy(node)) inner.add(each);
        }
        for (const each of [...(node.params ?? []), node.param].flatMap((it) => namesOf(it))) {
          inner.add(each);
        }
        targets.push(...assignedBy(node));
        for (const child of childrenOf(node)) visit(child, node);
      };
      visit(statement, null);
      if (statement.type === 'VariableDeclaration') {
        for (const each of boundBy(statement)) inner.delete(each);
      }
      for (const { node: { name, start, end }, shorthand } of targets) {
        if (!constants.has(name) || inner.has(name)) continue;
        replace(start, end, (shorthand ? name + ': ' : '') + '__constant__');
        declared.constant = true;
      }
    };
    const importFrom = ({ source, attributes = [] }, wanted, target) => {
      const pairs = attributes.map(({ key, value }) =>
        JSON.stringify(key.name ?? key.value) + ': ' + value.raw).join(', ');
      const options = pairs ? `{ with: { ${pairs} }, assert: { ${pairs} } }` : 'void 0';
      prologue += `var [] = [${target}await __import__(${source.raw}, ${options}, ` +
        `${JSON.stringify(wanted)})];`;
    };
    const nameOf = ({ name, value }) => name ?? value;
    const ofImport = (node) => {
      const locals = node.specifiers.map(({ local }) => local.name);
      names.lexical.push(...locals);
      for (const name of locals) {
        constants.add(name);
        if (!isConflict(name)) declared.let.push(name);
      }
      const wanted = [];
      let pattern = '';
      for (const { type, imported, local } of node.specifiers) {
        if (type === 'ImportNamespaceSpecifier') importFrom(node, [], local.name + ' = ');
        else {
          const name = type === 'ImportDefaultSpecifier' ? 'default' : nameOf(imported);
          wanted.push(name);
          pattern += JSON.stringify(name) + ': ' + local.name + ', ';
        }
      }
      if (pattern || !locals.length) importFrom(node, wanted, pattern && `{ ${pattern}} = `);
      blank(node.start, node.end);
    };
    const ofModuleItem = (node) => {
      const { type, start, end, declaration, source, specifiers } = node;
      if (type === 'ImportDeclaration') ofImport(node);
      else if (type === 'ExportDefaultDeclaration' && !declaration.id) {
        assign(start, declaration.start, declaration.end);
      } else if (declaration) {
        blank(start, declaration.start);
        ofStatement(declaration);
      } else if (/^Export/.test(type)) {
        if (source) importFrom(node, (specifiers ?? []).map(({ local }) => nameOf(local)), '');
        blank(start, end);
      } else ofStatement(node);
    };
    const ofMeta = (node) => {
      if (node.type === 'MetaProperty' && node.meta.name === 'import') {
        replace(node.start, node.end, '__import__.meta');
      }
      for (const child of childrenOf(node)) ofMeta(child);
    };

    const common = { ecmaVersion: 'latest', allowHashBang: true, locations: true };
    let tree, isModule = false;
    try {
      tree = parse(code, { ...common, sourceType: 'script', allowAwaitOutsideFunction: true });
    } catch {
      tree = parse(code, { ...common, sourceType: 'module' });
      isModule = true;
    }
    for (const node of tree.body) ofModuleItem(node);
    if (constants.size) for (const node of tree.body) guardConstants(node.declaration ?? node);
    if (isModule) {
      ofMeta(tree);
      if (code.startsWith('#!')) replace(0, 2, '//');
    }
    let text = '', copied = 0;
    edits.sort((one, other) => one.start - other.start || one.end - other.end);
    for (const { start, end, text: inserted } of edits) {
      text += code.slice(copied, start) + inserted;
      copied = end;
    }
    text += code.slice(copied);
    if (isModule) text = "'use strict';void 0;" + prologue + text;
    const hoisted = functions + (declared.constant ? 'const __constant__ = void 0;' : '') +
      ['let', 'var'].map((kind) => [...new Set(declared[kind])].map((name) => `${kind} ${name};`)
        .join('')).join('');
    return { text, hoisted: hoisted && (isModule ? "'use strict';" : '') + hoisted, names };
  };
  const mentionsConstant = (code) => {
    for (const name of constants) if (code.includes(name)) return true;
    return false;
  };
  const rewrite = (message, conflicts) => {
    const code = asExpression(vm, message.code);
    try {
      return transform({ ...message, code }, conflicts);
    } catch ({ loc, message: said }) {
      if (!loc || !looksLikeModule(code)) return null;
      const description = 'SyntaxError: ' + said.replace(/ \(\d+:\d+\)$/, '');
      const place = { lineNumber: loc.line - 1, columnNumber: loc.column };
      return { text: '', failure: { ...place, exception: { description } } };
    }
  };
  return { rewrite, mentionsConstant };
};

// What writes, in both threads, with nothing that code may have replaced.
const makeWriter = ({ Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared }) => {
  const { CONTROL_FD, LOCK, state } = shared;
  const { compareExchange, notify, store, wait } = Atomics;
  const { from: encode } = Buffer;
  const { stringify } = JSON;
  const { writeSync } = fs;
  const sleeper = new Int32Array(new SharedArrayBuffer(4));
  // At once and whole, also if somebody has made the descriptor non-blocking.
  const writeAll = (fd, data) => {
    for (let done = 0; done < data.length;) {
      try {
        done += writeSync(fd, data, done);
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        wait(sleeper, 0, 0, 1);
      }
    }
  };
  const lock = () => {
    while (compareExchange(state, LOCK, 0, 1) !== 0) wait(state, LOCK, 1);
  };
  const unlock = () => {
    store(state, LOCK, 0);
    notify(state, LOCK, 1);
  };
  const send = (message) => {
    const frame = encode('size' + stringify(message));
    const size = frame.length - 4;
    for (let i = 0; i < 4; i++) frame[i] = size >>> (24 - 8 * i);
    lock();
    try {
      writeAll(CONTROL_FD, frame);
    } finally {
      unlock();
    }
  };
  // Returns when the other thread is not, or no longer, in the middle of sending.
  const letOtherSend = () => { lock(); unlock(); };
  return { letOtherSend, send, writeAll };
};

// Listens to the control socket while the main thread is busy.
const worker = new Worker(`
  const fs = require('node:fs');
  const net = require('node:net');
  const inspector = require('node:inspector');
  const { parentPort, workerData: shared } = require('node:worker_threads');
  const vm = require('node:vm');
  const { CONTROL_FD, INTERRUPTED, PHASE, RUNNING, INTERRUPTING, state } = shared;
  const { check, dissect, choose } = (${questions})(inspector);
  // Here, where code can't have replaced what they use.
  const rewriteImports = ${rewriteImports};
  const asExpression = ${asExpression};
  const prepare = ${prepare};
  const needsRewriting = ${needsRewriting};
  // Node's own parser, which it has for its REPL.
  const looksLikeModule = ${looksLikeModule};
  const { rewrite, mentionsConstant } = (${makeRewriter})(vm, (text, options) =>
    require('internal/deps/acorn/acorn/dist/acorn').parse(text, options),
  looksLikeModule, asExpression);
  const { letOtherSend, send } = (${makeWriter})({
    Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared,
  });
  let buffered = [], size = 0, running = 0, token = '', interrupting = false, ended = null;
  let current;  // the message of the running execution
  const finish = (id, exit_code) => {
    if (id !== running) return;
    if (interrupting) { ended = exit_code; return; }
    running = 0;
    send({ type: 'done', id, token, exit_code });
  };
  parentPort.on('message', (message) => {
    if (message.type === 'display' || message.type === 'note') send(message);
    else if (message.type === 'names') {
      send({ type: 'answer', id: message.id, ...choose(message, message.names.split('\\0')) });
    } else if (message.type === 'first') listen(message);
    else if (message.type === 'conflicts') {
      if (message.id !== running || interrupting) return;
      const rewritten = rewrite(current, new Set(message.names));
      parentPort.postMessage({ ...prepare(vm, current, rewritten), names: undefined });
    }
    else finish(message.id, message.exit_code);
  });
  // Ends whatever JavaScript runs on the main thread. The session lives for that moment only:
  // with one open, process.exit() would wait for it. The execution's end is told after it, so
  // that a late termination can't hit the next.
  const interrupt = (id) => {
    if (id !== running || interrupting) return;
    if (Atomics.compareExchange(state, PHASE, RUNNING, INTERRUPTING) !== RUNNING) return;
    Atomics.store(state, INTERRUPTED, id);
    // It may still be on its way out of telling the end of the execution before. What is ended
    // there would hold the lock for ever, since no finally clause is run then. It sends no more.
    letOtherSend();
    interrupting = true;
    ended = null;
    const session = new inspector.Session();
    session.connectToMainThread();
    const settle = (tries) => session.post('Runtime.evaluate', { expression: '0' }, (error) => {
      if (error && tries > 0) { settle(tries - 1); return; }
      session.disconnect();
      interrupting = false;
      // The main thread answers again: it has been ended, or it waits in an await, which nothing
      // can end: then the execution is over and what it waits for is left alone.
      if (ended !== null) finish(id, ended);
      else parentPort.postMessage({ type: 'abandon', id });
    });
    session.post('Runtime.terminateExecution', () => settle(10));
  };
  const take = (message) => {
    if (message.type === 'run') {
      running = message.id;
      token = message.token;
      current = message;
      const rewritten = needsRewriting(message, false) || mentionsConstant(message.code)
        ? rewrite(message) : null;
      const prepared = prepare(vm, message, rewritten);
      Atomics.store(state, PHASE, RUNNING);
      parentPort.postMessage(prepared);
    } else if (message.type === 'interrupt') interrupt(message.id);
    else if (message.type === 'complete') {
      const wanted = dissect(message.before);
      if (wanted) parentPort.postMessage({ type: 'complete', id: message.id, ...wanted });
      else send({ type: 'answer', id: message.id, prefix: '', matches: [] });
    } else if (message.type === 'check') {
      let answer = {};
      try { answer = check(message.code); } catch {}
      send({ type: 'answer', id: message.id, ...answer });
    }
  };
  const receive = (data) => {
    buffered.push(data);
    size += data.length;
    while (size >= 4) {
      if (buffered[0].length < 4) buffered = [Buffer.concat(buffered)];
      const end = 4 + buffered[0].readUInt32BE(0);
      if (size < end) return;
      const all = Buffer.concat(buffered);
      buffered = [all.subarray(end)];
      size -= end;
      take(JSON.parse(all.subarray(4, end).toString()));
    }
  };
  // Takes over from the main thread, which has read the first message.
  const listen = ({ first, isTaken }) => {
    if (isTaken) ({ id: running, token } = first);
    else take(first);
    const socket = new net.Socket({ fd: CONTROL_FD, readable: true, writable: true });
    socket.on('data', receive);
    socket.on('close', () => process.exit());
    socket.on('error', () => process.exit());
  };
`, {
  eval: true, workerData: shared, execArgv: ['--expose-internals'],
  // Else Node opens its own streams to pass the thread's output on; see Output.
  stdout: true, stderr: true,
});
const reallyExit = process.reallyExit.bind(process);
const exit = process.exit.bind(process);
worker.on('exit', () => reallyExit(1));
const post = worker.postMessage.bind(worker);

const { Session } = inspector;
let session = new Session();
session.connect();
const { post: postToInspector } = session;
const { prototype: everyObject } = Object;
// Node makes JSON of a request, in which a toJSON that code gave to all objects must have no say:
// it is away until the request's last property has been read.
const ask = (method, params, callback) => {
  const theirs = getOwnPropertyDescriptor(everyObject, 'toJSON');
  if (theirs !== undefined && deleteProperty(everyObject, 'toJSON')) {
    const restore = () => { defineProperty(everyObject, 'toJSON', theirs); };
    defineProperty(params, 'last', { __proto__: null, enumerable: true, get: restore });
  }
  apply(postToInspector, session, [method, params, callback]);
};
let exiting = false;
process.on('exit', () => {
  exiting = true;
  concludeOneShot();
  session.disconnect();
  // Reached when a handler that failed has stopped the exit: without the inspector there is no
  // going on.
  setImmediate(() => reallyExit(process.exitCode || 1));
});

// Output is written at once and whole: Node's own streams for pipes buffer, and make the pipe
// non-blocking for every process that shares it.
const { send, writeAll } = makeWriter({
  Atomics, Buffer, Int32Array, JSON, SharedArrayBuffer, fs, shared,
});
// It has no state that an interrupt in the middle of a write could leave behind.
class Output extends Writable {
  constructor(fd) {
    super({ decodeStrings: false });
    Object.assign(this, { fd, _type: 'pipe', _isStdio: true, destroySoon: this.destroy });
  }
  write(chunk, encoding, callback) {
    if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding];
    if (typeof chunk !== 'string' && !ArrayBuffer.isView(chunk)) {
      throw Object.assign(new TypeError('The "chunk" argument must be of type string or an ' +
        'instance of Buffer, TypedArray, or DataView'), { code: 'ERR_INVALID_ARG_TYPE' });
    }
    writeAll(this.fd, typeof chunk === 'string' ? Buffer.from(chunk, encoding)
      : Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    if (typeof callback === 'function') process.nextTick(callback);
    return true;
  }
  end(chunk, encoding, callback) {
    if (typeof chunk === 'string' || ArrayBuffer.isView(chunk)) this.write(chunk, encoding);
    const last = [chunk, encoding, callback].find((given) => typeof given === 'function');
    if (last) process.nextTick(last);
    return this;
  }
  destroy() { return this; }
}
for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
  const stream = new Output(fd);
  Object.defineProperty(process, name, {
    configurable: true, enumerable: true, get: () => stream,
  });
}

// Modules are looked for from the working directory, from where the interpreter has started, and
// from the project, in this order. The first failure is the one that is told.
const cwd = process.cwd.bind(process);
const start = cwd();
const roots = () => [cwd(), start, '/project'];
const requireFromStart = createRequire(start + '/');
const locate = (specifier) => {
  if (typeof specifier !== 'string' || !specifier || apply(startsWith, specifier, ['node:'])) {
    return specifier;
  }
  const directories = roots();
  let failure;
  for (let i = 0; i < directories.length; i++) {
    try {
      return requireFromStart.resolve(specifier, { paths: [directories[i]] });
    } catch (error) {
      failure ??= error;
      if (error.code !== 'MODULE_NOT_FOUND') break;
    }
  }
  throw failure;
};
const require_ = Object.assign(function require(specifier) {
  return requireFromStart(locate(specifier));
}, {
  resolve: Object.assign(function resolve(specifier, options) {
    return options ? requireFromStart.resolve(specifier, options) : locate(specifier);
  }, { paths: requireFromStart.resolve.paths }),
  main: globalThis.module,  // for `if (require.main === module)`
  extensions: requireFromStart.extensions,
  cache: requireFromStart.cache,
});
const setGlobal = (name, value) => Object.defineProperty(globalThis, name, {
  value, configurable: true, writable: true, enumerable: false,
});
setGlobal('require', require_);
setGlobal('module', require_.main);
process.nextTick(setGlobal, 'module', require_.main);  // Node takes it away after this script
// Code evaluated by the inspector has no way to load modules by import(), but a module has.
const importers = { __proto__: null, [start]: (specifier, options) => import(specifier, options) };
const importFrom = (directory, specifier, options) => {
  if (importers[directory] === undefined) {
    const name = directory + '/[eval]';
    const module = new Module(name);
    module._compile('module.exports = (specifier, options) => import(specifier, options)', name);
    importers[directory] = module.exports;
  }
  return importers[directory](specifier, options);
};
const importAnywhere = async (specifier, options) => {
  const directories = roots();
  let failure;
  for (let i = 0; i < directories.length; i++) {
    try {
      return await importFrom(directories[i], specifier, options);
    } catch (error) {
      failure ??= error;
      // A module that was found may fail with the same code, over what it imports itself.
      const isMissing = error?.code === 'ERR_MODULE_NOT_FOUND'
        && / imported from .*\/\[eval\d*\]$/.test(error.message);
      if (!isMissing) throw error;
    }
  }
  throw failure;
};
const import_ = async (specifier, options, names = []) => {
  const found = await importAnywhere(specifier, options);
  for (let i = 0; i < names.length; i++) {
    if (hasOwn(found, names[i])) continue;
    throw new SyntaxError("The requested module '" + specifier +
      "' does not provide an export named '" + names[i] + "'");
  }
  return found;
};
import_.meta = {
  __proto__: null,
  get dirname() { return cwd(); },
  get filename() { return cwd() + '/[eval]'; },
  get url() { return pathToFileURL(cwd() + '/[eval]').href; },
  resolve: (specifier) => {
    const found = locate(specifier);
    return found[0] === '/' ? pathToFileURL(found).href
      : builtinModules.includes(found) ? 'node:' + found : found;
  },
};
Object.defineProperty(globalThis, '__import__', { value: import_, enumerable: false });
// Where code signals its own process, Node expects it to end and takes the inspector down, also
// for signals that are survived. It does not recognize the process by another thread's number.
const { pid, _kill: kill } = process;
const idle = new Int32Array(new SharedArrayBuffer(4));
const thread = fs.readdirSync('/proc/self/task').map(Number).find((id) => id !== pid) ?? pid;
const STATUS = '/proc/self/status';
const isPending = (signal) => {
  const text = readFileSync(STATUS, 'latin1');
  const at = apply(indexOf, text, ['ShdPnd:\t']) + 8;
  const low = evaluate('0x' + apply(slice, text, [at + 8, at + 16]));
  return ((low >>> (signal - 1)) & 1) === 1;
};
process._kill = (target, signal) => {
  if (target !== pid || !(signal > 0)) return kill(target, signal);
  const outcome = kill(thread, signal);
  // A stop comes when that thread gets to run: this one must not answer before.
  const stops = signal >= SIGSTOP && signal <= SIGTTOU;
  for (let tries = 0; stops && tries < 100 && isPending(signal); tries++) wait(idle, 0, 0, 1);
  return outcome;
};
process.argv.length = 1;
process.execArgv = [];
delete process._eval;

// No stack shows the runner's frames, or the inspector's that it calls code by. Code may replace
// this function, as it may Node's own.
defineProperty(Error, 'prepareStackTrace', {
  configurable: true, writable: true, enumerable: false,
  value: (error, sites) => {
    let text;
    try {
      const { name, code, message } = error;
      const isNodes = typeof code === 'string' && apply(startsWith, code, ['ERR_']);
      text = isNodes ? name + ' [' + code + ']: ' + message : apply(errorText, error, []);
    } catch {
      text = '<error>';
    }
    let end = sites.length;
    for (let i = 0; i < sites.length; i++) {
      if (sites[i].getFileName() === 'node:inspector') end = i;
    }
    for (let i = 0; i < end; i++) {
      const file = sites[i].getFileName();
      if (file !== '[eval]' && file !== 'node:inspector') text += '\n    at ' + sites[i];
    }
    return text;
  },
});

// Takes the runner's frames, and the inspector's above them, off the stacks of an error.
const RUNNER = /(\n    at [^\n]*\(node:inspector:[^\n]*)*\n    at ([^\n]*\()?\[eval\]:\d[^]*$/;
const DEEP = /\n    at Session\.post \(node:inspector:.*$/;
const trim = (error, depth) => {
  if (depth > 10 || !isNativeError(error)) return;
  try {
    error.stack = error.stack.replace(RUNNER, '').replace(DEEP, '');
    trim(error.cause, depth + 1);
    for (const other of error.errors ?? []) trim(other, depth + 1);
  } catch {}
};
const describe = (error) => {
  trim(error, 0);
  try {
    return 'Uncaught ' + inspect(error) + '\n';
  } catch {
    const told = isNativeError(error) ? getOwnPropertyDescriptor(error, 'message')?.value : '';
    return 'Uncaught ' + (typeof told === 'string' ? told : '') +
      '\n(showing it failed: its own code, or Error.prepareStackTrace, threw)\n';
  }
};
const { from: encode } = Buffer;
const complain = (text) => writeAll(2, encode(text));

// The value of the last line as text. Timers, child processes, servers and streams are seldom
// meant to be read, and may have hundreds of lines: they are their names.
const { isPrototypeOf } = Object.prototype;
const EMITTER = EventEmitter.prototype;
const TIMERS = [setTimeout(() => {}), setImmediate(() => {})];
clearTimeout(TIMERS[0]);
clearImmediate(TIMERS[1]);
for (let i = 0; i < 2; i++) TIMERS[i] = Object.getPrototypeOf(TIMERS[i]);
const isAny = (prototype, value) => apply(isPrototypeOf, prototype, [value]);
const show = (value) => {
  const text = inspect(value);
  if (isProxy(value)) return text;
  const isLong = isAny(TIMERS[0], value) || isAny(TIMERS[1], value)
    || text.length > 400 && isAny(EMITTER, value);
  if (!isLong) return text;
  const end = apply(indexOf, text, [' {']);
  if (end < 0) return text;
  const start = apply(startsWith, text, ['<ref ']) ? apply(indexOf, text, ['> ']) + 2 : 0;
  return '[' + apply(slice, text, [start, end]) + ']';
};

// Failures that no code waits for, unless code listens for them itself. A rejection while an
// execution runs counts as its own. A one-shot ends with the first one, as a program does.
let running = 0, failed = false, turn, oneShot;
const listenerCount = process.listenerCount.bind(process);
const tellUncaught = (error) => {
  complain(describe(error));
  if (!oneShot) return;
  process.exitCode ||= 1;
  if (!exiting) exit();
};
process.on('uncaughtException', (error) => {
  if (listenerCount('uncaughtException') === 1) tellUncaught(error);
});
process.on('unhandledRejection', (error) => {
  if (listenerCount('unhandledRejection') > 1) return;
  if (listenerCount('uncaughtException') > 1) {
    process.emit('uncaughtException', error, 'unhandledRejection');
    return;
  }
  failed = true;
  tellUncaught(error);
});

// The value behind an inspector's reference. It is handed to a function that is known to the
// inspector from the beginning, and in no place where code could find it.
let taken;
const taker = (value) => { taken = value; };
let takerId;
const introduceTaker = () => {
  const key = '__nsm_taker_' + pid;
  defineProperty(globalThis, key, { __proto__: null, value: taker, configurable: true });
  ask('Runtime.evaluate', { expression: key }, (error, { result }) => {
    takerId = result.objectId;
  });
  deleteProperty(globalThis, key);
};
introduceTaker();
const take = (remote) => {
  if (!hasOwn(remote, 'objectId')) {
    if (hasOwn(remote, 'unserializableValue')) return evaluate(remote.unserializableValue);
    return hasOwn(remote, 'value') ? remote.value : undefined;
  }
  taken = undefined;
  ask('Runtime.callFunctionOn', {
    functionDeclaration: 'function (value) { this(value); }',
    objectId: takerId, arguments: [{ objectId: remote.objectId }],
  }, () => {});
  const value = taken;
  taken = undefined;
  return value;
};

const describeSyntax = (details, lines, name) => {
  let line = details.lineNumber, column = details.columnNumber;
  if (line >= lines.length) {  // the end was not expected
    line = lines.length - 1;
    column = lines[line].length;
  }
  let message = details.exception.description || '';
  const end = apply(indexOf, message, ['\n']);
  if (end >= 0) message = apply(slice, message, [0, end]);
  return name + ':' + (line + 1) + '\n' + lines[line] + '\n' + apply(repeat, ' ', [column]) +
    '^\n' + message + '\n';
};

// Whether the inspector still evaluates.
const isUsable = () => {
  let usable = false;
  ask('Runtime.evaluate', { expression: '0' }, (error) => { usable = !error; });
  return usable;
};

const finish = (id, token, exit_code, shown, note) => {
  running = 0;
  const data = shown !== undefined && { __proto__: null, 'text/plain': shown };
  const itself = compareExchange(state, PHASE, RUNNING, ANSWERED) === RUNNING;
  const tell = itself ? send : post;
  if (data) tell({ __proto__: null, type: 'display', data });
  if (note) tell({ __proto__: null, type: 'note', text: note });
  if (itself) send({ __proto__: null, type: 'done', id, token, exit_code });
  else post({ id, exit_code });
};

// What keeps the event loop going besides the runner, and the names that people have for it.
const KINDS = {
  __proto__: null, Timeout: 'timer', ProcessWrap: 'child process', TCPServerWrap: 'server',
  PipeServerWrap: 'server', TCPSocketWrap: 'connection', UDPWrap: 'connection',
  FSEventWrap: 'file watcher', StatWatcher: 'file watcher', FSReqCallback: 'request',
  FSReqPromise: 'request', GetAddrInfoReqWrap: 'request',
};
const { getActiveResourcesInfo, nextTick } = process;
const countResources = () => {
  const counts = { __proto__: null };
  const active = apply(getActiveResourcesInfo, process, []);
  for (let i = 0; i < active.length; i++) {
    const kind = KINDS[active[i]];
    if (kind !== undefined) counts[kind] = (counts[kind] ?? 0) + 1;
  }
  return counts;
};
const describeUnfinished = (before) => {
  const now = countResources(), kinds = ownKeys(now);
  let text = '', sum = 0;
  for (let i = 0; i < kinds.length; i++) {
    const kind = kinds[i], count = now[kind] - (before[kind] ?? 0);
    if (count <= 0) continue;
    sum += count;
    const ending = count === 1 ? '' : kind === 'child process' ? 'es' : 's';
    text += (text && ' and ') + count + ' ' + kind + ending;
  }
  return text && text + (sum === 1 ? ' is still under way; its' : ' are still under way; their') +
    ' output comes with the next call';
};

// The exit code that code itself has asked for.
const takeExitCode = () => {
  try {
    const wanted = Number(process.exitCode ?? 0) & 255;
    if (wanted !== 0) process.exitCode = undefined;
    return wanted;
  } catch {  // it is a property that code can replace
    return 0;
  }
};

// The names whose earlier declaration V8 would not let be replaced.
const findConflicts = ({ lexical, vars }) => {
  const conflicts = [];
  for (let i = 0; i < lexical.length; i++) {
    const found = getOwnPropertyDescriptor(global_, lexical[i]);
    if (found?.configurable === false && found.writable) {
      conflicts[conflicts.length] = lexical[i];
    }
  }
  const known = vars.length ? lexicalNames() : [];
  for (let i = 0; i < vars.length; i++) {
    for (let j = 0; j < known.length; j++) {
      if (known[j] === vars[i]) conflicts[conflicts.length] = vars[i];
    }
  }
  return conflicts;
};

const run = ({ id, token, one_shot, names, failure, hoisted, expression, lines }) => {
  if (load(state, INTERRUPTED) === id) { finish(id, token, 130); return; }
  const name = '<exec-' + id + '>';
  if (failure) {
    complain(describeSyntax(failure, lines, name));
    finish(id, token, 1);
    return;
  }
  const conflicts = names ? findConflicts(names) : [];
  if (conflicts.length) { post({ type: 'conflicts', id, names: conflicts }); return; }
  running = id;
  failed = false;
  if (one_shot) beginOneShot(id, token);
  else takeExitCode();  // of what ran between executions
  const before = one_shot || countResources();
  const takeOutcome = (error, outcome) => {
    if (running !== id || exiting) return;  // abandoned while it awaited, or overtaken
    let exit_code = 0, shown;
    try {
      // An evaluation that was ended is "terminated", and since Node 22 an "Internal error". So is
      // one after Node believed that process.kill(-1) would end it, and tore down.
      if (error && isUsable()) exit_code = 130;
      else if (error) {
        complain('the interpreter cannot go on: ' + error.message + '\n');
        reallyExit(1);
      } else if (hasOwn(outcome, 'exceptionDetails')) {
        exit_code = 1;
        const details = outcome.exceptionDetails;
        const thrown = take(details.exception);
        const isSyntax = details.exception.className === 'SyntaxError'
          && !apply(includes, details.exception.description || '', [' <exec-'])
          && !apply(includes, details.exception.description || '', ['(<exec-']);
        if (isSyntax) complain(describeSyntax(details, lines, name));
        else if (oneShot) {
          // Node is to find out that nobody has caught it: code may listen for that.
          oneShot.settled = true;
          nextTick(() => { throw thrown; });
          return;
        } else complain(describe(thrown));
      } else if (awaited === undefined && hasOwn(outcome.result, 'subtype')
        && outcome.result.subtype === 'promise') {
        // The promise that is the value is awaited too.
        awaited = take(outcome.result);
        if (oneShot) oneShot.value = awaited;
        const { objectId: promiseObjectId } = outcome.result;
        ask('Runtime.awaitPromise', { promiseObjectId }, takeOutcome);
        return;
      } else {
        const value = take(outcome.result);
        if (value !== undefined) shown = show(value);
      }
    } catch (problem) {
      exit_code = 1;
      try { complain(describe(problem)); } catch {}
    }
    ask('Runtime.releaseObjectGroup', { objectGroup: 'exec' });
    if (oneShot && exit_code !== 130) {
      oneShot.settled = true;
      oneShot.shown = shown;
      if (exit_code) exit(exit_code);
      return;
    }
    // One turn of the loop later rejections that nobody handles are known. Node never gets over
    // an interrupt in the second of two callbacks of one turn, so there is but one of ours.
    clearImmediate(turn);
    turn = setImmediate(() => {
      if (running !== id) return;
      const wanted = takeExitCode();
      const note = one_shot ? '' : describeUnfinished(before);
      finish(id, token, exit_code || (failed ? 1 : wanted), shown, note);
    });
  };
  let awaited, fails = false;
  if (hoisted) {
    ask('Runtime.evaluate', { expression: hoisted, replMode: true }, (error, outcome) => {
      fails = error || hasOwn(outcome, 'exceptionDetails');
      if (fails) takeOutcome(error, outcome);
    });
  }
  if (fails) return;
  ask('Runtime.evaluate', {
    expression, replMode: true, awaitPromise: true, objectGroup: 'exec',
  }, takeOutcome);
};

// A one-shot is over when Node would exit, since nothing keeps its event loop going any more: the
// listener may not either. What Node is told last is the execution's end.
const beginOneShot = (id, token) => {
  oneShot = { id, token, settled: false };
  worker.unref();
  const { emit } = process;
  let last;
  process.emit = function (name, ...values) {
    if (name === 'exit' && last === 'beforeExit') oneShot.ranDry = true;
    last = name;
    // An interrupt that has begun needs the loop to be answered.
    if (load(state, PHASE) === INTERRUPTING) worker.ref();
    const heard = apply(emit, this, [name, ...values]);
    if (name === 'exit' && running === id) {
      finish(id, token, Number(process.exitCode ?? 0) & 255, oneShot.shown);
    }
    return heard;
  };
};
const concludeOneShot = () => {
  if (!oneShot?.ranDry || oneShot.settled) return;
  if (hasOwn(oneShot, 'value')) oneShot.shown = show(oneShot.value);
  else if (process.exitCode === undefined) {
    complain('Warning: Detected unsettled top-level await\n');
    process.exitCode = 13;
  }
};

// The inspector tells its session when a promise that an evaluation awaits is collected, and Node
// 22 aborts over that. A session that is gone is not told.
const forsake = () => {
  const next = new Session();
  next.connect();
  session.disconnect();
  session = next;
  introduceTaker();
};

// What completion looks up. No getter is called but those that were there before any code, no
// proxy is asked, and nothing is used that code may have replaced.
const { isArray } = Array;
const { isView } = ArrayBuffer;
const global_ = globalThis;
const NOTHING = {};
const PROTOTYPES = {
  __proto__: null, string: String.prototype, number: Number.prototype, bigint: BigInt.prototype,
  boolean: Boolean.prototype, symbol: Symbol.prototype,
};
// Since Node 22 the description of a web interface, FormData for one, loads what is behind it,
// which would take a third more time to start; then none of those has a getter.
const GETTABLE = getOwnPropertyDescriptor(global_, 'AbortController')?.get ? ownKeys(global_)
  : ['Buffer', 'crypto', 'navigator', 'performance', 'process', ...builtinModules];
const OWN_GETTERS = [
  ...GETTABLE.map((name) => getOwnPropertyDescriptor(global_, name)?.get),
  ...['stdout', 'stderr'].map((name) => getOwnPropertyDescriptor(process, name).get),
].filter(Boolean);
const objectOf = (value) => {
  const kind = typeof value;
  return (kind === 'object' || kind === 'function') && value !== null ? value
    : PROTOTYPES[kind] ?? null;
};
const getProperty = (value, name) => {
  let object = objectOf(value);
  for (let depth = 0; object !== null && depth < 100 && !isProxy(object); depth++) {
    const found = getOwnPropertyDescriptor(object, name);
    if (found !== undefined) {
      if (hasOwn(found, 'value')) return found.value;
      for (let i = 0; i < OWN_GETTERS.length; i++) {
        if (OWN_GETTERS[i] === found.get) return apply(found.get, value, []);
      }
      return NOTHING;
    }
    object = getPrototypeOf(object);
  }
  return NOTHING;
};
const lexicalNames = () => {
  let names = [];
  ask('Runtime.globalLexicalScopeNames', {}, (error, answer) => {
    if (!error) names = answer.names;
  });
  return names;
};
// Reading a let, const or class runs nothing.
const getLexical = (name) => {
  let value = NOTHING;
  const key = '__nsm_take_' + pid;
  const take = (found) => { value = found; };
  defineProperty(global_, key, { __proto__: null, value: take, configurable: true });
  ask('Runtime.evaluate', { expression: key + '(' + name + ')', silent: true }, () => {});
  deleteProperty(global_, key);
  return value;
};
const complete = ({ id, steps, prefix }) => {
  let names = '', count = 0;  // one text: an object of as many names takes a second to send
  const add = (name) => {
    if (typeof name === 'string' && count < 200000 && apply(startsWith, name, [prefix])
      && !apply(includes, name, ['\0'])) {
      names += name + '\0';
      count++;
    }
  };
  const lexical = lexicalNames();
  let object = global_;
  if (steps.length) {
    let value = NOTHING;
    for (let i = 0; i < lexical.length; i++) {
      if (lexical[i] === steps[0]) value = getLexical(steps[0]);
    }
    if (value === NOTHING) {
      value = steps[0] === 'globalThis' ? global_ : getProperty(global_, steps[0]);
    }
    for (let i = 1; i < steps.length && value !== NOTHING; i++) {
      value = getProperty(value, steps[i]);
    }
    object = value === NOTHING ? null : objectOf(value);
  } else for (let i = 0; i < lexical.length; i++) {
    if (lexical[i] !== '__constant__') add(lexical[i]);
  }
  for (let depth = 0; object !== null && depth < 100 && !isProxy(object); depth++) {
    // Of millions of elements no name could be completed.
    const many = isView(object) || (isArray(object) && object.length > 1000);
    const keys = many ? ['length'] : ownKeys(object);
    for (let i = 0; i < keys.length; i++) add(keys[i]);
    object = getPrototypeOf(object);
  }
  post({ type: 'names', id, steps, prefix, names });
};
const onMessage = (message) => {
  // An interrupt ended code that runs at exit, such as an endless handler, and the exit with it:
  // without the inspector, which has been let go, nothing more can be run.
  if (exiting) reallyExit(process.exitCode ?? 0);
  if (message.type === 'run') {
    try {
      run(message);
    } catch (problem) {
      try { complain(describe(problem)); } catch {}
      finish(message.id, message.token, 1);
    }
  }
  else if (message.type === 'complete') {
    try {
      complete(message);
    } catch {
      post({ type: 'names', id: message.id, steps: [''], prefix: message.prefix, names: '' });
    }
  } else if (message.type === 'abandon') {
    if (running === message.id) clearImmediate(turn);
    if (running === message.id) {
      running = 0;
      forsake();
    }
    post({ id: message.id, exit_code: 130 });
  }
};
// Code may have replaced emitters' methods, or what they call, such as `listener.apply`.
const { emit } = worker;
worker.emit = (name, value) => name === 'message' ? onMessage(value)
  : apply(emit, worker, [name, value]);

// The worker takes as long to start as all else. Until there is something to listen for besides,
// this thread can wait for the first message itself.
const readWhole = (size) => {
  const data = Buffer.alloc(size);
  for (let done = 0; done < size;) {
    const count = readSync(CONTROL_FD, data, done, size - done);
    if (count === 0) reallyExit(0);
    done += count;
  }
  return data;
};
send({ type: 'begun' });
const first = JSON.parse(readWhole(readWhole(4).readUInt32BE(0)).toString());
const isTaken = first.type === 'run' && !needsRewriting(first, true);
post({ type: 'first', first, isTaken });
if (isTaken) {
  state[PHASE] = RUNNING;
  onMessage(prepare(require('node:vm'), first));
}
})();
"""


# ------------------------------------------------------------------------------------------ main


def claim_channel() -> tuple[int, int]:
    """Moves the channel away from descriptors 0 and 1, which become /dev/null and the log."""
    read_fd, write_fd = _dup_high(0), _dup_high(1)
    if _identity(os.fstat(read_fd)) == _identity(os.fstat(write_fd)):
        os.close(write_fd)
        write_fd = read_fd
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a log
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return read_fd, write_fd


def which(name: str) -> str:
    """Path of a program on PATH, or an empty string."""
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def serve(
    read_fd: int,
    write_fd: int,
    *,
    prestart: str | None = None,
    programs: Mapping[str, str] | None = None,
    workspace: str = "",
    limits: Limits | None = None,
    host_network: bool = False,
) -> NoReturn:
    """Becomes an agent on this channel; also callable in a fork of a process that did nothing.

    Nobody who shares the uid may look into this process from now on, so it must never `execve`,
    which would undo that.

    Args:
        read_fd, write_fd: the channel, close-on-exec and above 2; may be the same.
        prestart: name of the interpreter to be up before `ready`.
        programs: interpreter name → path, for those that are not the default.
        workspace: default `/workspace`, or the working directory where there is none.
        limits: for interpreters from their start; default none until `hello` brings some.
        host_network: the network is the host's, and what else is in it is to be out of reach.
    """
    prctl(PR_SET_DUMPABLE, 0)
    if host_network:
        shut_abstract_sockets()
    given = programs or {}
    defaults = {"python": sys.executable, "bash": which("bash"), "node": which("node")}
    found = {name: given.get(name) or path for name, path in defaults.items()}
    directory = workspace or ("/workspace" if os.path.isdir("/workspace") else os.getcwd())
    available = {name: path for name, path in found.items() if path}
    try:
        Agent(read_fd, write_fd, available, os.path.realpath(directory), limits).run(prestart)
    except ForkedWorker as fork:
        worker = fork.control_fd, fork.page
    python_worker(*worker)


def main(arguments: Sequence[str]) -> NoReturn:
    """The command line; see docs/agent-protocol.md."""
    if list(arguments) == ["--check"]:
        answer_check()
    if len(arguments) == 3 and arguments[0] == "--worker":
        control_fd, page_fd = map(int, arguments[1:])
        os.set_inheritable(control_fd, False)
        page = SharedPage(page_fd)
        os.close(page_fd)
        python_worker(control_fd, page)
    names = ("prestart", "python", "bash", "node", "workspace", "limits", "network")
    options: dict[str, str] = dict.fromkeys(names, "")
    for option, value in zip(arguments[::2], [*arguments[1::2], ""]):
        if option[2:] not in options or not option.startswith("--") or not value:
            known = ", ".join(f"--{name} VALUE" for name in options)
            sys.exit(f"sandbox_agent: {option} {value}: expected {known}")
        options[option[2:]] = value
    prestart = options.pop("prestart") or None
    if prestart not in {None, *INTERPRETERS}:
        sys.exit(f"sandbox_agent: --prestart {prestart}: expected {', '.join(INTERPRETERS)}")
    workspace = options.pop("workspace")
    try:
        limits = Limits(_as_object(_from_json(options.pop("limits") or "{}")))
    except ValueError as error:
        sys.exit(f"sandbox_agent: --limits: {error}")
    host_network = options.pop("network") == "host"
    read_fd, write_fd = claim_channel()
    serve(
        read_fd,
        write_fd,
        prestart=prestart,
        programs=options,
        workspace=workspace,
        limits=limits,
        host_network=host_network,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
