"""One box: its sockets are served while its first process lives."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any

import trio

from nsm import paths
from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError, StartFailedError
from nsm.wire.tuples import NamedTuple
from nsmd.fdstore import records
from nsmd.fdstore.holder import ROOM_FOR_ONE, descriptors_in
from nsmd.fdstore.records import boot_id
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.listeners import PlaceError, bound
from nsmd.jail.limits import BoxBounds, Confinement
from nsmd.model.limits import ClientLimits
from nsmd.model.values import NO_NETWORK
from nsmd.network.gateway import Gateway
from nsmd.network.listener import ListenerError, NamespaceListener
from nsmd.network.secrets.grant import Grant
from nsmd.network.session_proxy import SessionProxy

log = logging.getLogger(__name__)

MAX_HANDING = 4
"""Largest number of connections at once on which a proxy's socket may come."""

MAX_FAILURES = 8
"""Largest number of proxy sockets of one box that fail. A box that passes more does so on purpose,
and each costs a line in the log, and work for the descriptor store.
"""

HAND_OVER_S = 10.0
"""Time for a proxy's socket to come on a connection: the other side sends it at once."""


BOX = "box-"
"""Beginning of the names in the store. The name with the box's id has its process, its sockets and
the record; the one that ends with `WAY` has the socket of its proxy, which comes later.
"""

WAY = ".way"

DIRECTORY = "boxes"
"""Name in the runtime directory."""

CONTROL, PROXY = "control.sock", "proxy.sock"
"""Names of the sockets in the box (`nsmbox.model.plan`)."""

_ID = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """Facts about a box, for the next supervisor.

    Attributes:
        pid: process id of its first process, for people.
        directory: the agent's working directory.
        profile: name of its profile.
        client_limits: limits of its clients.
        project_problem: why their sessions see no project; else empty.
        created_s: start, on the system's monotonic clock.
        boot: id of the boot in which that clock runs.
        control, proxy: identities (`nsmd.fdstore.records.identity`) of its listening sockets; None
            if it has none.
        bounds: limits of its processes; None if it asked for none.
        group: directory of its control group; None if it has none.
        secrets: names of its secrets.
    """

    id: str
    pid: int
    directory: str
    profile: str
    client_limits: ClientLimits
    project_problem: str = ""
    created_s: float
    boot: str
    control: str
    proxy: str | None = None
    bounds: BoxBounds | None = None
    group: str | None = None
    secrets: tuple[str, ...] = ()


class BoxDirectory:
    """Directory of one box's sockets, below the supervisor's own."""

    def __init__(self, box_id: str) -> None:
        self.directory = os.path.join(paths.runtime_dir(), DIRECTORY, box_id)

    def make(self) -> None:
        """Make the directory; an `NsmError` says why it cannot be made."""
        try:
            paths.ensure_runtime_dir()  # parents of what is made below would be open to others
            paths.ensure_private_dir(os.path.dirname(self.directory))
            os.mkdir(self.directory, 0o700)
        except (paths.PathError, OSError) as error:
            raise _impossible(str(error)) from error

    def listen(self, name: str) -> socket.socket:
        """Make a listening socket in it, which only this user can reach; or an `NsmError`."""
        path = os.path.join(self.directory, name)
        try:
            paths.check_socket_path(path)
            return bound(path)
        except (paths.PathError, PlaceError) as error:
            raise _impossible(str(error)) from error

    def remove(self) -> None:
        """Remove it with its content; may be repeated."""
        try:
            shutil.rmtree(self.directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s cannot be removed: %s", self.directory, error)


def remove_others(known: Collection[str]) -> None:
    """Remove the directories of all boxes but these, given by id: the others have ended."""
    directory = os.path.join(paths.runtime_dir(), DIRECTORY)
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        if _ID.fullmatch(name) and name not in known:
            BoxDirectory(name).remove()


ServeConnection = Callable[[trio.SocketStream], Awaitable[None]]
"""Server of one connection to a box's control socket, until the client is gone; raises only
cancellation.
"""


class BoxProcess(NamedTuple):
    """Process that becomes a box, and is its top."""

    pid: int
    pidfd: int


class Box:
    """Sockets of one box, served for as long as its first process lives.

    It owns the pidfd of that process and two listening sockets: one for clients, and one on which
    the box passes the socket of its proxy. `listener` is that socket if an earlier supervisor had
    received it.
    """

    def __init__(
        self,
        record: BoxRecord,
        *,
        pidfd: int,
        control: socket.socket,
        proxy: socket.socket | None,
        gateway: Gateway,
        store: DescriptorStore,
        listener: NamespaceListener | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        self.record = record
        self._confinement = confinement
        self._pidfd = pidfd
        self._control = control
        self._proxy = proxy
        self._listener = listener
        self._store = store
        rule = record.client_limits.network or NO_NETWORK
        self.proxy = SessionProxy(f"box {record.id}", rule, record.id, gateway=gateway)
        self._handing = trio.Semaphore(MAX_HANDING)
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Box {self.record.id} of process {self.record.pid}>"

    @property
    def sockets_directory(self) -> str:
        """Directory of its sockets on the host."""
        return BoxDirectory(self.record.id).directory

    @property
    def grant(self) -> Grant | None:
        """Secrets and rules for requests; None without any."""
        return self.proxy.grant

    async def run(self, serve: ServeConnection) -> None:
        """Serve until the box has ended. Its sockets stay open."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, self._control, serve, nursery)
            if self._proxy is not None:
                nursery.start_soon(_accept, self._proxy, self._take_proxy, nursery)
            if self._listener is not None:
                nursery.start_soon(self._serve_proxy)
            await trio.lowlevel.wait_readable(self._pidfd)
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """End the box and remove its directory."""
        self._control.close()
        if self._proxy is not None:
            self._proxy.close()
        if self._listener is not None:
            self._listener.close()
        if self._confinement is not None:
            self._confinement.close()
        os.close(self._pidfd)
        BoxDirectory(self.record.id).remove()

    def everything(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield names and descriptors to store, as `nsmd.fdstore.store.Refill`."""
        sockets = [self._control.fileno()]
        sockets += [self._proxy.fileno()] if self._proxy is not None else []
        yield from records.kept_entry(BOX + self.record.id, self.record, self._pidfd, *sockets)
        if self._listener is not None:
            yield BOX + self.record.id + WAY, [self._listener.descriptor]

    def names(self) -> Sequence[str]:
        """Names under which it may be stored."""
        return [BOX + self.record.id, BOX + self.record.id + WAY]

    def facts(self) -> dict[str, Any]:
        """Facts for people."""
        record, project = self.record, self.record.client_limits.project
        age_s = time.monotonic() - record.created_s if record.boot == boot_id() else 0.0
        return {
            "id": record.id,
            "pid": record.pid,
            "profile": record.profile,
            "directory": record.directory,
            "scope": record.client_limits.scope,
            "project": None if project is None else project.path,
            "project_problem": record.project_problem or None,
            "age_s": max(0.0, age_s),
            "network": self.proxy.facts(),
            "programs": list(record.client_limits.programs),
            "limits": self._limits(),
            "secrets": list(record.secrets),
        }

    def _limits(self) -> dict[str, Any] | None:
        bounds = self.record.bounds
        if self._confinement is None or bounds is None:
            return None
        return {
            **self._confinement.usage(),
            "memory_limit_bytes": bounds.memory_mb << 20,
            "process_limit": bounds.processes,
        }

    # The proxy.

    async def _take_proxy(self, connection: trio.SocketStream) -> None:
        if self._handing.value == 0:
            await connection.aclose()
            return
        async with self._handing:
            taken = await self._receive_proxy(connection)
        if taken:
            await self._serve_proxy()

    async def _receive_proxy(self, connection: trio.SocketStream) -> bool:
        """Receive the proxy socket and serve it; False if none came."""
        taken = False
        try:
            async with connection:
                listener = await _receive_listener(connection)
                if listener is None:
                    return False
                refused = b"The box has a proxy already.\n" if self._listener is not None else b""
                if self._failures >= MAX_FAILURES:
                    refused = refused or b"The box's proxy has failed too often.\n"
                if refused:
                    listener.close()
                    await connection.send_all(refused)
                    return False
                self._listener, taken = listener, True
                self._store.keep(BOX + self.record.id + WAY, [listener.descriptor])
                await connection.send_all(b"ok\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # sockets that it passed before are still served
        return taken

    async def _serve_proxy(self) -> None:
        listener = self._listener
        assert listener is not None, "it was taken before"
        try:
            await self.proxy.accept(listener)
        except ListenerError as error:
            log.warning("box %s has no proxy any more: its socket %s", self.record.id, error)
            self._listener = None
            self._failures += 1
            listener.close()
            self._store.drop(BOX + self.record.id + WAY)


async def _receive_listener(connection: trio.SocketStream) -> NamespaceListener | None:
    """Receive a proxy's listening socket; None if none came, and the other side gets an error.

    The first program in the box makes the socket in the box's own network, and passes it out before
    it becomes the agent, so that none of our processes has to stay there. Any program in the box
    may connect, too, at any time; what it can pass is served with the same list.
    """
    with trio.move_on_after(HAND_OVER_S):
        try:
            # One may come; room for more would let a box fill our table.
            _, ancillary, _, _ = await connection.socket.recvmsg(
                1, ROOM_FOR_ONE, socket.MSG_CMSG_CLOEXEC
            )
            for descriptor in descriptors_in(ancillary):
                return NamespaceListener(descriptor)
            await connection.send_all(b"The socket did not come with the answer.\n")
        except ListenerError as error:
            await connection.send_all(f"The socket {error}.\n".encode())
        except OSError as error:
            raise trio.BrokenResourceError from error
    return None


async def _accept(listening: socket.socket, handle: ServeConnection, nursery: trio.Nursery) -> None:
    # Serving closes its socket, and a box may be left to the next supervisor.
    taken = trio.socket.from_stdlib_socket(listening.dup())
    await trio.serve_listeners(handle, [trio.SocketListener(taken)], handler_nursery=nursery)


def _impossible(why: str) -> NsmError:
    return StartFailedError(
        f"The box's socket cannot be made: {why}",
        hint="`nsm doctor` checks the supervisor's directories.",
    )
