"""What a backend offers: start a jail, hand back the agent's socket."""

from __future__ import annotations

import socket
from typing import Protocol

from nsmd.values import JailSpec


class Jail(Protocol):
    """One running jail with an agent in it.

    Resources: owns `socket`, `pidfd` and the process of the jail's starter until `release`.
    The owner calls `kill`, awaits `wait`, and calls `release`, in this order.
    """

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end of the agent's channel: a stream, non-blocking, close-on-exec."""
        ...

    @property
    def pid(self) -> int:
        """Process id on the host of the jail's PID 1."""
        ...

    @property
    def pidfd(self) -> int:
        """Descriptor of the jail's PID 1; readable once nothing of the jail is left."""
        ...

    def kill(self) -> None:
        """SIGKILL to PID 1, which takes everything in the jail with it. May be repeated."""
        ...

    async def wait(self) -> None:
        """Return once nothing of the jail is left and its starter has been reaped.

        Cancellation: loses nothing; call it again.
        """
        ...

    def stderr_text(self) -> str:
        """What the starter and the agent wrote before the agent took its descriptors; bounded.

        It comes out of the jail: text to show, nothing to trust. Control characters are removed.
        """
        ...

    def release(self) -> None:
        """Close the descriptors. May be repeated.

        It does not kill: the agent ends by end-of-file on its socket unless another process holds
        a duplicate of `socket`.
        """
        ...


class Launcher(Protocol):
    """Starts jails of one kind."""

    async def prepare(self, spec: JailSpec) -> None:
        """Wait for what many jails are made from, where such a thing is used.

        Apart from `launch`, so that a limit on launches is not used up by those who wait for one
        thing. Whether there is something then, `launch` finds out.

        Raises, Cancellation: as `launch`.
        """
        ...

    async def launch(self, spec: JailSpec) -> Jail:
        """Start a jail and return when its agent has begun to speak.

        Raises:
            StartFailedError: it did not come to that; the message has the starter's own words.
            BadProjectError: the project directory is not the one that was checked, or the jail's
                user cannot read it.

        Cancellation: ends what was started.
        """
        ...
