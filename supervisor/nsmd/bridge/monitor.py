"""The process between the supervisor and a bridge program.

It starts the program, reads its output, and ends it with all that it started
(`nsmd.host.monitor`). A program may write gigabytes. This process decides what to report and to
keep, which leaves the supervisor's event loop to the calls.

Descriptor 0 is the supervisor's hold: when that is closed, the program is stopped. A second one has
the order, a third one takes lines of JSON: `{"started": pid}` before the program executes,
`{"told": [[stream, line], ...]}`, and one `{"end": ...}`.

Processes that a program leaves behind when it ends by itself go on, since that may be its purpose;
their output is still read, since writing to a closed pipe would end them.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from nsmd.bridge.path_walk import Ways, why_any_other
from nsmd.host.monitor import (
    CHUNK_BYTES,
    Monitor,
    NotStartedError,
    descendants,
    line,
    signal_tree,
    sweep,
    write,
)
from nsmd.host.processes import signal_group
from nsmd.model.text import HeadTail

STEP_S = 5.0
"""Time for a program to end by itself after a signal, with all that it started."""

SWEEP_S = 20.0
"""Time for killed processes to be gone. Hundreds of processes that ignore signals and start others,
on a machine that they fill, take that long (measured with 700). All else is gone in milliseconds.
"""

LINGER_S = 0.25
"""How long the end of the output is waited for after the program's end: processes that it left
behind may keep its output open for days.
"""

MAX_DRAINED_BYTES = 1024 * 1024
"""Largest content of a pipe at the end (pipe(7), /proc/sys/fs/pipe-max-size)."""

PIECE_CHARS = 8192
"""A longer line is reported in pieces of exactly so many characters; a shorter piece
ends the line.
"""

MAX_WAITING_LINES = 20_000

MAX_WAITING_CHARS = 2 * 1024 * 1024
"""Largest size of lines that wait to be reported. Further lines are only counted: a program that
floods does not wait for readers, and the result has head and tail anyway.
"""

BATCH_LINES = 64
BATCH_CHARS = 32 * 1024
"""Largest report. With `INTERVAL_S`, that is 3,200 lines a second: more than anybody reads, and a
few hundredths of the event loop's time.
"""

INTERVAL_S = 0.02
"""Time between two reports while the program runs."""

Told = tuple[str, str | int]
"""Name of a stream with a line or a piece of one; or the number of lines that were left out."""

ANOTHER_VERSION = (
    "another version of nsm is installed by now than the supervisor that runs is of; `nsm reload` "
    "brings that one up"
)

KILLED_AT_ONCE = "while it started: it was killed at once, but may have run for some milliseconds"
"""Message about a program that was exchanged, or exchanged itself, right after its start."""

_STAGES = {
    b"c": "its working directory {directory!r} cannot be entered: {reason}",
    b"x": "its command {path!r} cannot be executed: {reason}{more}",
}
"""Messages of a child that could not become the program, by the first byte that it writes."""


class Order:
    """Program to start, and its settings, as `running` writes them; texts are bytes, read as
    Latin-1.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.path = _path(plain["path"])
        self.descriptor: int = plain["descriptor"]
        self.script: bool = plain["script"]
        self.ways: Ways = tuple((_path(path), tuple(way)) for path, way in plain["ways"])
        self.arguments: list[bytes] = [text.encode("latin-1") for text in plain["arguments"]]
        self.variables: dict[bytes, bytes] = {
            name.encode("latin-1"): value.encode("latin-1")
            for name, value in plain["variables"].items()
        }
        self.directory: bytes = plain["directory"].encode("latin-1")
        self.output_bytes: int = plain["output_bytes"]
        self.step_s: float = plain["step_s"]

    def why_another(self) -> str | None:
        """Return why the file to execute is not the checked one. A binary is executed by its
        descriptor, so it always is (`nsmd.bridge.commands`).
        """
        return why_any_other(self.ways) if self.script else None


def _path(plain: str) -> str:
    return plain.encode("latin-1").decode(errors="surrogateescape")


class OutputLines:
    """One stream, cut into lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def add(self, data: bytes) -> list[str]:
        """Return the lines and pieces that are complete with these bytes."""
        *lines, rest = (self._rest + self._decoder.decode(data)).split("\n")
        found: list[str] = []
        for text in lines:
            found += _pieces(text)
            found[-1] = found[-1].removesuffix("\r")
        *pieces, self._rest = _pieces(rest)
        return found + pieces

    def skip(self, data: bytes) -> int:
        """Take bytes whose lines are not reported. Returns their number."""
        before, newline, after = data.rpartition(b"\n")
        skipped = 0
        if newline:
            skipped = before.count(b"\n") + 1
            self._forget()
        if len(after) > 4 * PIECE_CHARS:  # not decoded: there may be gigabytes without any line
            self._forget()
            return skipped + 1
        self._rest += self._decoder.decode(after)
        if len(self._rest) >= PIECE_CHARS:
            self._forget()
            skipped += 1
        return skipped

    def end(self) -> list[str]:
        """Return the text after the last newline when the stream ends."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return [piece for piece in _pieces(rest) if piece]

    def _forget(self) -> None:
        self._rest = ""
        self._decoder.reset()


def _pieces(text: str) -> list[str]:
    """Split a line into pieces; the last one is shorter, possibly empty."""
    whole = len(text) // PIECE_CHARS * PIECE_CHARS
    starts = range(0, whole, PIECE_CHARS)
    return [*(text[start : start + PIECE_CHARS] for start in starts), text[whole:]]


class Waiting:
    """Bounded queue of lines of all streams, in their order."""

    def __init__(self) -> None:
        self._told: deque[Told] = deque()
        self._chars = 0
        self._skipped: dict[str, int] = {}
        self._full = False

    def __bool__(self) -> bool:
        return bool(self._told or self._skipped)

    @property
    def has_room(self) -> bool:
        """True while lines are accepted. Once it was full, it accepts lines again only after half
        of them were reported, so that gaps are few.
        """
        share = 2 if self._full else 1
        self._full = (
            len(self._told) >= MAX_WAITING_LINES // share
            or self._chars >= MAX_WAITING_CHARS // share
        )
        return not self._full

    def add(self, stream: str, lines: Sequence[str]) -> None:
        """Add lines; the caller has checked `has_room`."""
        if lines and (skipped := self._skipped.pop(stream, 0)):
            self._told.append((stream, skipped))
        for text in lines:
            self._told.append((stream, text))
            self._chars += len(text)

    def leave_out(self, stream: str, count: int) -> None:
        """Count lines that are not reported."""
        if count:
            self._skipped[stream] = self._skipped.get(stream, 0) + count

    def batch(self) -> list[Told]:
        """Take as much as fits into one report; empty if nothing waits."""
        found: list[Told] = []
        chars = 0
        while self._told and len(found) < BATCH_LINES and chars < BATCH_CHARS:
            stream, told = self._told.popleft()
            found.append((stream, told))
            if isinstance(told, str):
                chars += len(told)
        self._chars -= chars
        if not self._told:
            found += self._skipped.items()
            self._skipped = {}
        return found


class Stream:
    """One of the program's two outputs."""

    def __init__(self, name: str, descriptor: int, limit_bytes: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.lines = OutputLines()
        self.kept = HeadTail(limit_bytes)
        os.set_blocking(descriptor, False)

    def read(self, waiting: Waiting) -> int | None:
        """Read available output. Returns the number of bytes: 0 at its end, None if there is
        nothing now.
        """
        try:
            data = os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        self.kept.write(data)
        if waiting.has_room:
            waiting.add(self.name, self.lines.add(data))
        else:
            waiting.leave_out(self.name, self.lines.skip(data))
        return len(data)


class ProgramMonitor(Monitor):
    """One run of a program of the bridge; what it leaves behind lives on."""

    interval_s = INTERVAL_S
    sweep_s = SWEEP_S
    ends_rest = False

    def __init__(self, order: Order, hold: int, report: int) -> None:
        super().__init__(hold, report, [signal.SIGTERM], order.step_s)
        self._order = order
        self._waiting = Waiting()
        self._streams: dict[int, Stream] = {}
        self._began_s = 0.0

    def start(self, die_with_parent: Callable[[signal.Signals], None]) -> None:
        order = self._order
        outputs = [os.pipe() for _ in range(2)]
        said, says = os.pipe()
        waits, go = os.pipe()
        # This process has one thread, so any code may run after the fork.
        own = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            os.close(go)
            _become(order, [end for _, end in outputs], waits, says, own, die_with_parent)
        os.close(says)
        os.close(waits)
        for (read, written), name in zip(outputs, ("stdout", "stderr"), strict=True):
            os.close(written)
            self._streams[read] = Stream(name, read, order.output_bytes)
        # Told before the program runs: whoever kills this process, the supervisor knows the session
        # that may have processes of the program.
        self._began_s = time.monotonic()
        self.send({"started": self.pid})
        with suppress(BrokenPipeError):  # somebody killed the child
            os.write(go, b"!")
        os.close(go)
        problem = os.read(said, CHUNK_BYTES)  # it ends at a successful execve
        os.close(said)
        if not problem and (reason := order.why_another()):
            problem = b"?" + f"{reason} ({KILLED_AT_ONCE})".encode(errors="replace")
        if problem:
            sweep()
            raise NotStartedError(_reason(order, problem))
        self.outputs = set(self._streams)

    def read(self, descriptor: int) -> bool:
        count = self._streams[descriptor].read(self._waiting)
        self.has_news = bool(self._waiting)
        return count != 0

    def ends_at_s(self) -> float:
        if self.ladder.begun:
            return float("inf") if self.reap() else 0.0
        return super().ends_at_s() + LINGER_S * bool(self.outputs)

    def news(self) -> Mapping[str, Any]:
        batch = self._waiting.batch()
        self.has_news = bool(self._waiting)
        return {"told": batch}

    def send_signal(self, number: signal.Signals) -> None:
        numbers = [number, signal.SIGCONT]  # what is stopped goes on, to have it
        own: set[int] = set()
        if self.status is None:  # not reaped yet, so the group is still its own
            own.add(self.pid)
            for each in numbers:
                signal_group(self.pid, each)
        signal_tree(numbers, but=own, until_s=self.ladder.due_s)

    def finish(self) -> None:
        ended_s = time.monotonic() if self.ladder.begun else self.ended_s
        for stream in self._streams.values():
            self._drain(stream)
            self._waiting.add(stream.name, stream.lines.end())
        left = len(descendants(os.getpid()))
        if self.outputs and not self.ladder.begun:
            _read_on(sorted(self.outputs))
        while self._waiting:
            self.send(self.news())
        end = self.how_it_ended()
        end |= {"duration_s": ended_s - self._began_s, "left": left}
        for stream in self._streams.values():
            end[stream.name], end[f"{stream.name}_omitted"] = stream.kept.result()
        self.send({"end": end})

    def _drain(self, stream: Stream) -> None:
        """Read the last output."""
        drained = 0
        while stream.descriptor in self.outputs and drained < MAX_DRAINED_BYTES:
            count = stream.read(self._waiting)
            if count is None:
                return
            if count == 0:
                self.outputs.discard(stream.descriptor)
            drained += count


def _become(
    order: Order,
    outputs: list[int],
    waits: int,
    says: int,
    monitor: int,
    die_with_parent: Callable[[signal.Signals], None],
) -> NoReturn:
    """Become the program, in the child, once the monitor has reported it, or say why not."""
    stage = b"x"
    try:
        os.setsid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != monitor:  # the supervisor ended before the prctl
            os._exit(1)
        for number in signal.valid_signals():
            with suppress(OSError):  # all but SIGKILL and SIGSTOP
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, old in enumerate([nothing, *outputs]):
            os.dup2(old, new)
        if not os.read(waits, 1):  # the monitor ended
            os._exit(1)
        stage = b"c"
        os.chdir(order.directory)
        if reason := order.why_another():
            os.write(says, b"?" + reason.encode(errors="replace"))
            os._exit(1)
        stage = b"x"
        path = os.fsencode(order.path) if order.script else order.descriptor
        os.execve(path, order.arguments, order.variables)  # noqa: S606 - never through one
    except OSError as error:
        os.write(says, stage + str(error.errno).encode())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not go on as a monitor
        os.write(says, b"?" + repr(error).encode())
    os._exit(1)


def _reason(order: Order, problem: bytes) -> str:
    stage, detail = problem[:1], problem[1:].decode(errors="replace")
    if stage not in _STAGES:
        return detail
    number = int(detail or 0)
    more = ""
    if order.script and stage == b"x" and number == 2:
        more = " (of the program that its first line names)"
    return _STAGES[stage].format(
        path=order.path,
        directory=os.fsdecode(order.directory),
        reason=os.strerror(number),
        more=more,
    )


def _read_on(descriptors: list[int]) -> None:
    """Leave a process behind that reads further output.

    Processes that a program left behind often write to its output. Without a reader, their next
    line would end them by SIGPIPE.
    """
    try:
        if os.fork():
            return
    except OSError:  # too many processes: nobody reads on then
        return
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in descriptors:
                with suppress(OSError):  # the directory's own is closed already
                    os.close(int(name))
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        while descriptors:
            for descriptor, _ in poll.poll():
                with suppress(BlockingIOError):
                    if not os.read(descriptor, CHUNK_BYTES):
                        poll.unregister(descriptor)
                        descriptors.remove(descriptor)
    finally:
        os._exit(0)


def main() -> None:
    """`... REPORT_FD ORDER_FD`."""
    report, given = (int(text) for text in sys.argv[1:])
    with open(given, "rb") as file:
        plain = json.load(file)
    try:
        order = Order(plain)
    except (KeyError, TypeError, ValueError):
        # This file was read from disk just now, but the supervisor read its own at its start.
        write(report, line({"end": {"not_started": ANOTHER_VERSION}}))
        return
    for descriptor in (report, order.descriptor):
        os.set_inheritable(descriptor, False)
    ProgramMonitor(order, 0, report).run()
