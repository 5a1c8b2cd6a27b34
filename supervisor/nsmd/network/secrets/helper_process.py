"""One helper, as the supervisor holds it: a process, and messages to and from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from nsmd.host.channel_process import ChannelProcess

MODULE = "nsmd.network.secrets.helper"
MAX_MESSAGE = 256 * 1024


class HelperProcess(ChannelProcess):
    """A helper that runs, or has run."""

    async def send_message(
        self, message: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> None:
        """Send a message.

        Raises:
            OSError: the helper has ended.
        """
        await self.send(json.dumps(message).encode(), descriptors)

    async def next_message(self) -> dict[str, Any] | None:
        """Receive its next message; None at the end."""
        try:
            data = await self.receive(MAX_MESSAGE)
        except (OSError, trio.ClosedResourceError):  # we have closed it
            return None
        return json.loads(data) if data else None
