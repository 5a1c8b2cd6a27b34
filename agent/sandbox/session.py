"""The session: values that all parts of the agent share, and the way to the supervisor."""

from __future__ import annotations

import errno
import os

from sandbox.capture import Capture, Spills
from sandbox.channel import LAG_BYTES
from sandbox.limits import Limits
from sandbox.polling import Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from sandbox.channel import Channel
    from sandbox.interpreters.image_worker import ImageWorkers
    from sandbox.overlay_layers import OverlayLayers


class SharedSession:
    """Values that every part of the agent may use. It knows none of the parts.

    Args:
        file: path of the agent's program, for another Python to run.
        workspace: working directory of interpreters and place for spilled output.

    Attributes:
        pid: the agent's process.
        has_forks: the session has been forked; what starts in it is kept from its forks.
        rehearses: nobody is to hear of what runs.
        layers: overlays that undo takes back: the copies of the project and of an image.
        workers: makes workers of an image's Python; None if it cannot be forked.
    """

    pid: int
    channel: Channel

    def __init__(self, file: str, workspace: str, limits: Limits | None) -> None:
        self.file = file
        self.workspace = workspace
        self.limits = limits or Limits()
        self.has_forks = False
        self.rehearses = False
        self.poller = Poller()
        self.layers: Sequence[OverlayLayers] = ()
        self.workers: ImageWorkers | None = None
        self._spills = Spills(workspace)

    def new_capture(self, stream: str) -> Capture:
        return Capture(stream, self._spills, self.limits)

    def send(
        self,
        message: dict[str, Any],
        descriptor: int | None = None,
        fallback: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        if not self.rehearses:
            self.channel.send(message, descriptor, fallback)

    def may_send(self) -> bool:
        """False while the supervisor lags behind with what it has been sent."""
        return self.channel.lag_bytes <= LAG_BYTES

    def fail(self, text: str, request_id: object = None) -> None:
        self.send(refusal(text, request_id))

    def send_descriptor(self, message: dict[str, Any], descriptor: int, failure: str) -> None:
        """Send an answer with a descriptor, or an error if the kernel refuses to pass it.

        Args:
            failure: what could not be done, such as "cannot listen".
        """
        why = f"{failure}: {os.strerror(errno.ETOOMANYREFS)}"
        self.channel.send(message, descriptor, lambda: refusal(why, message["id"]))


def refusal(text: str, request_id: object = None) -> dict[str, Any]:
    """Make the answer to a request that cannot be done."""
    about = {"id": request_id} if isinstance(request_id, (str, int)) else {}
    return {"type": "error", "message": text, **about}
