"""All boxes that have sockets here."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import trio

from nsm.wire.errors import BadProjectError, BadRequestError, OverloadedError
from nsmd.boxes.box import (
    BOX,
    CONTROL,
    PROXY,
    Box,
    BoxDirectory,
    BoxProcess,
    BoxRecord,
    ServeConnection,
    remove_others,
)
from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries, RecordError, UnreadableRecordError, boot_id
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.descriptors import MAX_BOXES
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail.limits import BoxBounds, Confinement, LimitEnforcer
from nsmd.model import names
from nsmd.model.events import Events
from nsmd.model.limits import ClientLimits
from nsmd.model.values import NetworkRule, ProjectMount
from nsmd.network.gateway import Gateway
from nsmd.network.listener import ListenerError, NamespaceListener

log = logging.getLogger(__name__)

MAX_TEXT = 4096
"""Characters of a directory (PATH_MAX)."""

Check = Callable[[str], ProjectMount]
"""Returns the mount of a directory for sessions; raises BadProjectError if there can be none."""

Server = Callable[[ClientLimits], ServeConnection]
"""Makes the server of a box's control socket."""


class BoxManager:
    """All boxes that have sockets here, at most `most` at once. `check` checks working directories.
    Without an enforcer, nothing limits boxes.
    """

    def __init__(
        self,
        check: Check,
        *,
        gateway: Gateway,
        store: DescriptorStore,
        events: Events,
        most: int = MAX_BOXES,
        enforcer: LimitEnforcer | None = None,
    ) -> None:
        self._check = check
        self._gateway = gateway
        self._store = store
        self._events = events
        self._most = most
        self._enforcer = enforcer
        self._boxes: dict[str, Box] = {}
        self._opening = 0
        self._nursery: trio.Nursery | None = None
        self._server: Server | None = None
        self._leaving = False

    def __repr__(self) -> str:
        return f"<BoxManager {', '.join(self._boxes)}>"

    def take_up(self, entries: KeptEntries) -> None:
        """Take over the boxes that an earlier supervisor has left; call before `serve`."""
        unread: list[str] = []

        def unusable(name: str, descriptors: Sequence[int], error: RecordError) -> str | None:
            pidfds = [each for each in descriptors if pid_of(each) is not None]
            if not isinstance(error, UnreadableRecordError) or any(map(has_ended, pidfds)):
                return None
            unread.append(name.removeprefix(BOX))
            return unread[-1]

        entries.take_over(BOX, BoxRecord, self._take_over, unusable=unusable)
        remove_others({*self._boxes, *unread})

    def _take_over(self, record: BoxRecord, descriptors: list[int]) -> Collection[int]:
        """Take over a box, unless it has ended.

        Raises:
            RecordError: something is missing.
        """
        sockets = [record.control] if record.proxy is None else [record.control, record.proxy]
        found = records.matched(descriptors, *sockets)
        pidfd = found[0]
        if has_ended(pidfd):
            return ()
        others = (each for each in descriptors if each not in found)
        ways = [each for each in others if records.read_file(each) is None]
        listener: NamespaceListener | None = None
        if ways:
            try:
                listener = NamespaceListener(ways[0])
            except ListenerError as error:
                log.warning("box %s has no proxy any more: its socket %s", record.id, error)
        confinement: Confinement | None = None
        if self._enforcer is not None and record.bounds is not None:
            process = BoxProcess(record.pid, pidfd)
            confinement = self._enforcer.adopt_box(process, record.bounds, record.group)
        control, *proxies = map(_listening, found[1:])
        self._boxes[record.id] = Box(
            record,
            pidfd=pidfd,
            control=control,
            proxy=proxies[0] if proxies else None,
            listener=listener,
            gateway=self._gateway,
            store=self._store,
            confinement=confinement,
        )
        return found if listener is None else [*found, ways[0]]

    async def serve(
        self, server: Server, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve all boxes until cancelled. Then they end, unless `leave` was called."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery, self._server = nursery, server
                for box in self._boxes.values():
                    nursery.start_soon(self._run, box)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            if not self._leaving:
                for box in list(self._boxes.values()):
                    self._end(box)

    def leave(self) -> None:
        """Leave all boxes to the next supervisor."""
        self._leaving = True

    async def open(
        self,
        pid: int,
        *,
        directory: str,
        profile: str,
        digest: str,
        network: NetworkRule,
        shows_project: bool,
        programs: Sequence[str] = (),
        secrets: Sequence[str] = (),
        writable: Sequence[str] = (),
        bounds: BoxBounds | None = None,
    ) -> Box:
        """Make sockets for a box that the process with this id, here, becomes.

        Directory and writable paths are absolute. Boxes of the same plan, by its digest, share
        sessions, which may see the working directory if it `shows_project`. Programs of the bridge
        and secrets are given by name.
        """
        if self._nursery is None or self._server is None:
            raise OverloadedError("The supervisor is ending.", hint="Try again in a moment.")
        if len(self._boxes) + self._opening >= self._most:
            raise OverloadedError(
                f"There are {self._most} boxes already.", hint="End some of their agents."
            )
        if not directory.startswith("/") or "\0" in directory or len(directory) > MAX_TEXT:
            raise BadRequestError(f"{directory!r:.200} is not an absolute path of a directory.")
        project, problem = self._project(directory) if shows_project else (None, _HIDES)
        client_limits = ClientLimits(
            scope=_scope(directory, digest),
            directory=directory,
            project=project,
            network=network,
            programs=tuple(programs),
            writable=tuple(dict.fromkeys((directory, *writable))) if programs else (),
        )
        self._opening += 1
        try:
            box = await self._make(
                pid,
                directory,
                profile,
                client_limits,
                network,
                secrets,
                problem=problem,
                bounds=bounds,
            )
        finally:
            self._opening -= 1
        self._boxes[box.record.id] = box
        records.keep(self._store, box.everything())
        self._nursery.start_soon(self._run, box)
        log.info("box %s of process %d in %s", box.record.id, pid, directory)
        self._events.publish("box_opened", **_event_facts(box))
        return box

    async def _make(
        self,
        pid: int,
        directory: str,
        profile: str,
        client_limits: ClientLimits,
        network: NetworkRule,
        secrets: Sequence[str],
        *,
        problem: str,
        bounds: BoxBounds | None,
    ) -> Box:
        """Open a process, make its sockets, and give it its secrets; or nothing."""
        box_id = names.fresh_id(self._boxes)
        with ExitStack() as made:
            pidfd = _pidfd(pid)
            made.callback(os.close, pidfd)
            box_directory = BoxDirectory(box_id)
            made.callback(box_directory.remove)
            box_directory.make()
            control = made.enter_context(box_directory.listen(CONTROL))
            proxy = None
            if network.mode == "allow":
                proxy = made.enter_context(box_directory.listen(PROXY))
            confinement: Confinement | None = None
            if self._enforcer is not None and bounds is not None:
                confinement = await self._enforcer.confine_box(
                    f"box-{box_id}", BoxProcess(pid, pidfd), bounds
                )
                made.callback(confinement.close)
            if self._gateway.secrets is not None and (secrets or network.reads_requests):
                await self._gateway.secrets.grant(box_id, secrets, network)
            record = BoxRecord(
                id=box_id,
                pid=pid,
                directory=directory,
                profile=profile,
                client_limits=client_limits,
                project_problem=problem,
                created_s=time.monotonic(),
                boot=boot_id(),
                control=records.identity(control.fileno()),
                proxy=None if proxy is None else records.identity(proxy.fileno()),
                bounds=bounds,
                group=None if confinement is None else confinement.directory,
                secrets=tuple(secrets),
            )
            box = Box(
                record,
                pidfd=pidfd,
                control=control,
                proxy=proxy,
                gateway=self._gateway,
                store=self._store,
                confinement=confinement,
            )
            made.pop_all()
        return box

    def rows(self) -> Sequence[dict[str, Any]]:
        """List the boxes for people; the oldest first."""
        return [box.facts() for box in self._boxes.values()]

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        for box in list(self._boxes.values()):
            yield from box.everything()

    async def _run(self, box: Box) -> None:
        assert self._server is not None, "it is served"
        try:
            await box.run(self._server(box.record.client_limits))
        except Exception:  # a bug of ours costs this box its sockets
            log.exception("box %s failed", box.record.id)
        log.info("box %s has ended", box.record.id)
        self._events.publish("box_ended", **_event_facts(box))
        self._end(box)

    def _end(self, box: Box) -> None:
        if self._boxes.pop(box.record.id, None) is not None:
            for name in box.names():
                self._store.drop(name)
            if self._gateway.secrets is not None:
                self._gateway.secrets.end(box.record.id)
            box.close()

    def _project(self, directory: str) -> tuple[ProjectMount | None, str]:
        try:
            mount = self._check(directory)
        except BadProjectError as error:
            return None, error.message
        if mount.path != directory:  # a box in an outer directory may have put a link there
            return None, f"{directory} leads elsewhere"
        return mount, ""


_HIDES = "the box hides parts of its working directory, which sessions would show"


def _event_facts(box: Box) -> dict[str, Any]:
    record = box.record
    return {
        "box": record.id,
        "pid": record.pid,
        "profile": record.profile,
        "directory": record.directory,
        "scope": record.client_limits.scope,
        "network": box.proxy.mode,
        "secrets": list(record.secrets),
    }


def _scope(directory: str, digest: str) -> str:
    """Scope of a box's sessions: boxes with the same plan share it."""
    shown = "".join(c if c.isprintable() else "?" for c in directory)
    return f"box:{shown[-150:]}#{digest[:8]}"


def _pidfd(pid: int) -> int:
    """Open a pidfd of a process; a `BadRequestError` if there is none here."""
    try:
        return os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise BadRequestError(
            f"The process that asks for a box cannot be seen from here ({error}).",
            hint="Start the supervisor where the box is started, outside of other containers.",
        ) from None


def _listening(descriptor: int) -> socket.socket:
    listening = socket.socket(fileno=descriptor)
    listening.setblocking(False)
    return listening
