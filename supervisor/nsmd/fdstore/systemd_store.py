"""Descriptors kept by systemd (sd_notify(3), FDSTORE=1), which starts the supervisor again itself.

Variables say whether it does: with `FileDescriptorStoreMax=` in the unit, systemd from 254 on sets
FDSTORE to the number that it keeps; for older versions our unit sets NSM_FDSTORE. systemd reads
datagrams between other work, so its socket may be full; `nsmd.fdstore.holder_store` describes what
happens then.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from nsmd.fdstore.store import Kept, Refill, StoreKind, copies_of

log = logging.getLogger(__name__)

HELD = ".held"
"""End of the name for a session's sockets and processes; its records have other names.

systemd looks for each descriptor among all that it keeps, under any name, and takes none twice
(`service_add_fd_store`, 252 to 257). So a descriptor sent under a session's next name would stay
under the earlier one, and be dropped with that.
"""

RETRY_S = 1.0
"""Time before descriptors are sent again for which the kernel had no room."""

SETTLE_TIMEOUT_S = 5.0
"""Time for systemd to read what it was sent: a millisecond, unless the machine swaps.
sd_notify_barrier waits as long.
"""


def systemd_keeps(variables: Mapping[str, str]) -> int | None:
    """Number of descriptors that systemd keeps for this service; None if it keeps none.

    Returns:
        0 where it does not say how many.
    """
    if not variables.get("NOTIFY_SOCKET", "").startswith(("/", "@")):
        return None
    said = variables.get("FDSTORE", "")
    if said.isdigit():
        return int(said) or None
    return 0 if variables.get("NSM_FDSTORE") == "systemd" else None


class SystemdStore:
    """Descriptor store of systemd.

    Args:
        most: number of descriptors that it keeps; 0 if unknown.
    """

    kind: StoreKind = "systemd"

    def __init__(self, address: str, most: int = 0, kept: Kept | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._most = most
        self._sizes = {name: len(descriptors) for name, descriptors in (kept or {}).items()}
        self._refill: Refill = tuple
        self._behind: dict[str, None] = {}
        self._dropped: set[str] = set()
        self._trouble = ""
        self._changed = trio.Event()
        self._link: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<SystemdStore {len(self._sizes)} names, behind={len(self._behind)}>"

    @property
    def problem(self) -> str:
        kept = sum(self._sizes.values())
        if self._most and kept > self._most:
            return (
                f"systemd keeps {self._most} descriptors for this service, and {kept} are needed: "
                "set a larger FileDescriptorStoreMax= in nsm-supervisor.service"
            )
        if self._behind:
            return f"systemd has not taken {len(self._behind)} things yet{self._trouble}"
        return ""

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        self.has(name, descriptors)
        for part, some in _parts(name, descriptors):
            self._tell(part, some)

    def has(self, name: str, descriptors: Sequence[int]) -> None:
        """Note descriptors that systemd keeps since before a reload of this process.

        The next program gets new copies of records; sent again, systemd would keep them beside
        equal ones.
        """
        for part, some in _parts(name, descriptors):
            # They may have been sent before: then this is too high until the next drop.
            self._sizes[part] = max(self._sizes.get(part, 0), len(some))

    def drop(self, name: str) -> None:
        held = _held(name)
        if held is not None and name == held and self._has_others(held):
            return
        if self._sizes.pop(name, None) is not None:
            self._tell(name)
        if held is not None and held in self._sizes and not self._has_others(held):
            del self._sizes[held]
            self._tell(held)

    def _has_others(self, held: str) -> bool:
        """Return whether there is a record for what is held there."""
        prefix = held.removesuffix(HELD)
        return any(name.startswith(prefix) and name != held for name in self._sizes)

    def copies(self) -> dict[str, list[int]]:
        return copies_of(self._refill)

    def _tell(self, name: str, descriptors: Sequence[int] = ()) -> None:
        if name in self._behind or not self._send(_message(name, descriptors), descriptors):
            self._behind[name] = None
            if not descriptors:
                self._dropped.add(name)
            self._changed.set()

    def _send(self, message: str, descriptors: Sequence[int] = ()) -> bool:
        """Send a message; return whether it is on its way."""
        try:
            try:
                socket.send_fds(self._connected(), [message.encode()], descriptors)
            except ConnectionRefusedError:
                link = self._connected()  # systemd was executed again, with another socket
                link.connect(self._address)
                socket.send_fds(link, [message.encode()], descriptors)
        except BlockingIOError:
            return False
        except OSError as error:
            self._trouble = f" ({error.strerror})"
            return False
        self._trouble = ""
        return True

    def _connected(self) -> socket.socket:
        if self._link is None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                link.setblocking(False)
                link.connect(self._address)
            except BaseException:
                link.close()
                raise
            self._link = link
        return self._link

    async def run(self, refill: Refill) -> None:
        self._refill = refill
        while True:
            while not self._behind:
                await self._changed.wait()
                self._changed = trio.Event()
            if self._link is not None:
                with trio.move_on_after(RETRY_S), suppress(OSError):
                    await trio.lowlevel.wait_writable(self._link)
            if not self._flush():
                await trio.sleep(RETRY_S)

    def _flush(self) -> bool:
        """Send what is pending; returns whether any of it was sent."""
        before = len(self._behind)
        later: set[str] = set()
        for name, descriptors in self._refill():
            if not descriptors:
                later |= {name, _held(name) or name}
            for part, some in _parts(name, descriptors):
                if part in self._behind:
                    # systemd adds descriptors to a name that it does not have yet. Descriptors that
                    # no longer belong to the name would stay beside them.
                    if not (self._removed(part) and self._send(_message(part, some), some)):
                        return len(self._behind) < before
                    del self._behind[part]
        for name in self._behind.keys() - later:  # these need not be kept any more
            if not self._send(_message(name)):
                break
            self._dropped.discard(name)
            del self._behind[name]
        return len(self._behind) < before

    def _removed(self, name: str) -> bool:
        """Return whether the dropped descriptors of a name are gone or on their way."""
        if name in self._dropped and not self._send(_message(name)):
            return False
        self._dropped.discard(name)
        return True

    def ensure_reachable(self) -> None:
        """Do nothing: systemd's store is always there."""

    def settle(self, refill: Refill | None = None) -> None:
        """Wait until systemd has read everything: messages of a process that is gone
        would be lost.
        """
        self._refill = refill or self._refill
        self._finish()
        if self._behind:
            log.error("%s; they end with this process", self.problem)

    def end(self) -> None:
        for name in list(self._sizes):
            self.drop(name)
        self._finish()
        self.close()

    def close(self) -> None:
        """Close the connection; what is kept stays."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _finish(self) -> None:
        """Send what is pending, and wait until systemd has read everything
        (sd_notify_barrier(3)).
        """
        try:
            link = self._connected()
            link.settimeout(SETTLE_TIMEOUT_S)
            if self._behind:
                self._flush()
            reader, writer = os.pipe()
            try:
                sent = self._send("BARRIER=1", [writer])
                os.close(writer)
                if sent:
                    select.select([reader], [], [], SETTLE_TIMEOUT_S)
            finally:
                os.close(reader)
            link.setblocking(False)
        except OSError as error:
            log.warning("systemd cannot be told of what it keeps: %s", error)


def _held(name: str) -> str | None:
    """Name of a session's descriptors other than records; None if it is no session's name."""
    session, dot, _ = name.partition(".")
    return f"{session}{HELD}" if dot and session.startswith("session-") else None


def _parts(name: str, descriptors: Sequence[int]) -> list[tuple[str, Sequence[int]]]:
    """Split a name's descriptors by the names that systemd gets."""
    held = _held(name)
    if held is None:
        return [(name, descriptors)]
    sealed = [each for each in descriptors if _is_sealed(each)]
    others = [each for each in descriptors if each not in sealed]
    return [(part, some) for part, some in ((held, others), (name, sealed)) if some]


def _is_sealed(descriptor: int) -> bool:
    """Return whether a descriptor is a record: a memory file that nobody can change."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)
    except OSError:
        return False


def _message(name: str, descriptors: Sequence[int] = ()) -> str:
    """Make the message that tells systemd to keep descriptors under a name, or none.

    FDPOLL=0: otherwise it would drop a socket whose other end has hung up, together with what was
    written there last.
    """
    if descriptors:
        return f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0"
    return f"FDSTOREREMOVE=1\nFDNAME={name}"
