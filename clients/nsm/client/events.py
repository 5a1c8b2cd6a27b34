"""Callbacks for the events that come before an answer, and the descriptor that comes with it."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from nsm.client.retry import RECONNECTED
from nsm.wire.messages import read
from nsm.wire.sessions import SessionRow

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping

    from nsm.wire.messages import Event
    from nsm.wire.transcripts import Entry


T = TypeVar("T")

Stream: TypeAlias = Literal["stdout", "stderr"]

if TYPE_CHECKING:
    OnOutput: TypeAlias = Callable[[Stream, str], object]
    OnEntry: TypeAlias = Callable[[Entry], object]


def output_of(event: Event) -> tuple[Stream, str] | None:
    """The stream and text of an `output` event; None for events of any other kind."""
    stream, text = event.data.get("stream"), text_of(event.data.get("text"))
    if event.event != "output" or not isinstance(text, str):
        return None
    if stream == "stdout" or stream == "stderr":  # checkers narrow this
        return stream, text
    return None


def text_of(told: object) -> object:
    """Output as text, in which bytes that are not UTF-8 are lone surrogates."""
    return told.decode("utf-8", "surrogateescape") if isinstance(told, bytes) else told


def output_to(on_output: OnOutput) -> Callable[[Event], None]:
    """Make a callback for events that hands output on."""

    def on_event(event: Event) -> None:
        output = output_of(event)
        if output is not None:
            on_output(*output)

    return on_event


def data_to(
    hear: Callable[[T], object] | None, kind: type[T], *, event: str = "progress", key: str = ""
) -> Callable[[Event], None] | None:
    """Make a callback for events that hands their data on; None for nobody.

    Args:
        kind: of the data.
        event: which events.
        key: of the data's field; without one, all of it.
    """
    if hear is None:
        return None

    def on_event(told: Event) -> None:
        if told.event == event:
            hear(read(kind, told.data, key))

    return on_event


def rows_to(rows: list[object]) -> Callable[[Event], None]:
    """Make a callback for the events of `sessions`, which collects rows for `rows_of`."""

    def on_event(event: Event) -> None:
        if event.event == "sessions" and isinstance(event.data.get("sessions"), list):
            rows.extend(event.data["sessions"])
        elif event.event == RECONNECTED:  # it starts again
            rows.clear()

    return on_event


def rows_of(rows: list[object], answer: Mapping[str, Any]) -> list[SessionRow]:
    """Return the rows of `sessions`: from its events, and from the answer, in which an older
    supervisor sends all of them.
    """
    streamed = read(list[SessionRow], {"sessions": rows}, "sessions")
    return streamed + read(list[SessionRow], answer, "sessions")


def entries_to(on_entry: OnEntry) -> Callable[[Event], None]:
    """Make a callback for the events of `logs` that hands entries on."""
    from nsm.wire import transcripts  # noqa: PLC0415  # few programs read logs

    def on_event(event: Event) -> None:
        entry = transcripts.entry(event.event, event.data)
        if entry is not None:
            on_entry(entry)

    return on_event


_READ_BYTES = 65536

_ROOM = socket.CMSG_LEN(4)
"""Room for one descriptor: an answer has no more."""


def receive_passing(connection: socket.socket, descriptors: deque[int]) -> bytes:
    """Read once, and keep the descriptor that comes with the data.

    Raises:
        OSError: as recvmsg(2).
    """
    data, parts, _, _ = connection.recvmsg(_READ_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    descriptors.extend(_descriptors_in(parts))
    return data


def _descriptors_in(parts: Iterable[tuple[int, int, bytes]]) -> list[int]:
    return [
        int.from_bytes(content[:4], sys.byteorder)
        for level, kind, content in parts
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    ]
