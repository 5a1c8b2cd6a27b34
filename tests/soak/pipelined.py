"""A client with many requests under way, for tests that ask first and look at the answers later."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING, Any

from nsm.client import retry
from nsm.wire.messages import Cancel, ClientConnection, Event, Failure, Hello, Request, Result

if TYPE_CHECKING:
    from typing import Self

Answer = Result | Failure


class Pipelined:
    """One connection. The protocol's own state machine refuses an answer that nobody asked for."""

    def __init__(self, socket_path: str, *, scope: str = "storm") -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(socket_path)
        self._protocol = ClientConnection()
        self._answers: dict[int, Answer] = {}
        self._waiting: set[int] = set()
        self.streamed: dict[tuple[int, str], str] = {}
        """Output that came while a request was carried out, by its id and the stream."""
        self._write(self._protocol.send(retry.hello(name="storm", scope=scope)))
        hello = self._next(time.monotonic() + 20)
        assert isinstance(hello, Hello), hello

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, op: str, args: dict[str, Any]) -> int:
        """Send a request; its id."""
        number = self._protocol.new_id()
        self._waiting.add(number)
        self._write(self._protocol.send(Request(number, op, args)))
        return number

    def cancel(self, number: int) -> None:
        """Ask for the end of a request that may have its answer already."""
        if number in self._protocol.in_flight:
            self._write(self._protocol.send(Cancel(number)))

    def answer(self, number: int, *, within_s: float) -> Answer:
        """Wait for one answer, and keep the others that come meanwhile.

        Raises:
            TimeoutError: it has not come.
        """
        deadline = time.monotonic() + within_s
        while number not in self._answers:
            message = self._next(deadline)
            if isinstance(message, Event):
                self._take(message)
                continue
            assert not isinstance(message, Hello)
            assert message.id in self._waiting, message
            self._waiting.remove(message.id)
            self._answers[message.id] = message
        return self._answers.pop(number)

    def _take(self, event: Event) -> None:
        assert event.id in self._waiting, event
        if event.event == "output":
            key = event.id, event.data["stream"]
            self.streamed[key] = self.streamed.get(key, "") + event.data["text"]

    def result(self, op: str, args: dict[str, Any], *, within_s: float = 60) -> dict[str, Any]:
        """Ask and wait; what must not fail."""
        answer = self.answer(self.ask(op, args), within_s=within_s)
        assert isinstance(answer, Result), answer
        return answer.result

    def _next(self, deadline: float) -> Hello | Answer | Event:
        while (message := self._protocol.next_message()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([self._socket], [], [], remaining)[0]:
                raise TimeoutError(f"no answer to {sorted(self._waiting)[:10]}")
            data = self._socket.recv(1 << 20)
            assert data, "the supervisor closed the connection"
            self._protocol.receive_data(data)
        return message

    def _write(self, data: bytes) -> None:
        """Send, and read meanwhile: a peer that waits for us to read must not wait for ever."""
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self._socket], [self._socket], [], 60)
            assert readable or writable, "the supervisor neither reads nor writes"
            if writable:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT) :]
            elif readable:
                self._protocol.receive_data(self._socket.recv(1 << 20))
