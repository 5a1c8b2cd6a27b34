"""One broker, as the supervisor holds it: a process, and messages to and from it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import trio

from nsmd.host.child_processes import ChannelProcess
from nsmd.network.broker_messages import (
    MAX_BYTES,
    BrokerMessage,
    BrokerProtocolError,
    parse_message,
)

log = logging.getLogger(__name__)

MAX_WAITING = 4
"""Messages of one connection that wait: ours sends two where none was read before."""

MAX_MESSAGES_S = 5000
"""Messages of one broker in a second; more wait. Each takes some 20 µs."""

IDLE_S = 120.0
"""A broker without connections ends after that time: it takes 13 MB, and sessions live for days."""


class BrokeredConnection:
    """A connection of a client that a broker serves."""

    def __init__(
        self, broker: BrokerProcess, number: int, messages: trio.MemoryReceiveChannel[BrokerMessage]
    ) -> None:
        self._broker = broker
        self._number = number
        self._messages = messages

    async def next(self) -> BrokerMessage:
        """Wait for what the broker says next about it."""
        return await self._messages.receive()

    async def send(
        self, word: str, rest: str = "", passed: trio.SocketStream | None = None
    ) -> None:
        """Send the broker a message about it, perhaps with a socket, which the caller keeps. Raises
        `trio.EndOfChannel` if the broker has ended.
        """
        await self._broker.send(f"{word} {self._number} {rest}", passed)


class BrokerProcess:
    """A broker that runs, or has run; it owns its process. Its task is `listen`."""

    def __init__(self, process: ChannelProcess, moved: Callable[[int, int], None]) -> None:
        self.began_s = trio.current_time()
        self.ended = False
        self._process = process
        self._moved = moved
        self._last = 0
        self._channels: dict[int, trio.MemorySendChannel[BrokerMessage]] = {}

    def __repr__(self) -> str:
        return f"<BrokerProcess {self.pid}>"

    @classmethod
    def start(
        cls, stand_ins: Mapping[str, str], moved: Callable[[int, int], None]
    ) -> BrokerProcess:
        """Start a broker. Raises `OSError` if there is no room for another process."""
        process = ChannelProcess.start("nsmd.network.broker", variables={})
        try:
            process.control.send(b"stand-ins " + json.dumps({**stand_ins}).encode())
        except BaseException:
            process.end()
            raise
        return cls(process, moved)

    @property
    def pid(self) -> int:
        """Process id, for people; 0 if it is gone."""
        return 0 if self.ended else self._process.pid

    async def listen(self, whose: str) -> None:
        """Read its messages until it ends, or is ended: for a message that ours does not send, or
        since it is not needed now.
        """
        try:
            while True:
                next_s = trio.current_time() + 1.0
                for _ in range(MAX_MESSAGES_S):
                    if data := await self._receive():
                        self._deliver(parse_message(data))
                    else:
                        return
                await trio.sleep_until(next_s)
        except BrokerProtocolError as error:
            log.warning("%s: the broker of its proxy was ended: %s", whose, error)
        except trio.ClosedResourceError:
            pass
        finally:
            self.end()

    async def _receive(self) -> bytes:
        """Receive its next message; nothing at the end, or if it has been idle."""
        while True:
            with trio.move_on_after(IDLE_S):
                return await self._process.receive(MAX_BYTES + 1)
            if not self._channels:
                return b""

    def end(self) -> None:
        """End it, and with it all its connections; may be repeated."""
        if not self.ended:
            self.ended = True
            for channel in self._channels.values():
                channel.close()
            self._process.end()

    @asynccontextmanager
    async def serving(
        self, client: trio.SocketStream, direct: str = ""
    ) -> AsyncGenerator[BrokeredConnection]:
        """Have it serve a connection of a client, for as long as the block lasts. `direct` is the
        HOST:PORT that a program means which knows no proxy.
        """
        self._last += 1
        number = self._last
        sender, receiver = trio.open_memory_channel[BrokerMessage](MAX_WAITING)
        self._channels[number] = sender
        with sender, receiver:
            try:
                word = f"direct {number} {direct}" if direct else f"serve {number}"
                await self.send(word, client)
                yield BrokeredConnection(self, number, receiver)
            finally:
                del self._channels[number]

    async def send(self, words: str, passed: trio.SocketStream | None = None) -> None:
        """Send the broker a message. Raises `trio.EndOfChannel` if it has ended."""
        await trio.lowlevel.checkpoint()  # a connection may be allowed no more
        descriptors = [] if passed is None else [passed.socket.fileno()]
        try:
            await self._process.send(words.encode(), descriptors)
        except (OSError, trio.ClosedResourceError):
            raise trio.EndOfChannel from None

    def _deliver(self, message: BrokerMessage) -> None:
        """Give a message to the connection that it is about."""
        if message.kind == "moved":
            self._moved(*message.moved)
            return
        channel = self._channels.get(message.number)
        if channel is None:
            if message.number > self._last:
                raise BrokerProtocolError("a connection that there never was")
            return  # we have closed it meanwhile
        if message.kind == "over":
            channel.close()
            return
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            raise BrokerProtocolError("too many messages of one connection") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise BrokerProtocolError("a message about a connection that was over") from None
