"""One helper, as the supervisor holds it: a process, and messages to and from it."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from nsmd.host.channel_process import ChannelProcess

MODULE = "nsmd.network.secrets.helper"
MAX_MESSAGE = 256 * 1024


class HelperProcess(ChannelProcess):
    """A helper that runs, or has run."""

    async def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: the helper has ended.
        """
        data = json.dumps(message).encode()
        while True:
            try:
                socket.send_fds(self.control, [data], list(descriptors))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.control)
            else:
                return

    async def next_message(self) -> dict[str, Any] | None:
        """Receive its next message; None at the end."""
        try:
            data = await self.receive(MAX_MESSAGE)
        except (OSError, trio.ClosedResourceError):  # we have closed it
            return None
        return json.loads(data) if data else None

    def end(self) -> None:
        """End it, and close our descriptors."""
        self.kill()
        self.close()
