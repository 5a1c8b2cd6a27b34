"""Enforcement of sessions' limits with the means of this host: control groups, or a watchdog."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from nsm.shortage import SHORTAGES
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.host.processes import tree_of
from nsmd.jail.limits.confinement import Confinement, TopProcess, Watchdog
from nsmd.jail.limits.group import (
    MOST_ROUNDS,
    BoxBounds,
    Group,
    GroupLimits,
    limits_of,
    limits_of_box,
)
from nsmd.jail.limits.systemd import (
    ANCHOR_GROUP,
    STORED_NAME,
    Anchor,
    attach,
    enter_scope,
    is_delegated,
    is_main_process,
    start_anchor,
    take_up_anchor,
)
from nsmd.jail.limits.tree import (
    GroupTree,
    Leftovers,
    NoGroupsError,
    divided_around,
    find_place,
    make_own_directory,
)
from nsmd.jail.process import Jail
from nsmd.model.values import Enforcement, JailSpec, SessionLimits

log = logging.getLogger(__name__)

RUN_ONLY = Enforcement(
    memory="rlimit",
    processes="none",
    cpu="none",
    why="each execution has a jail of its own, whose processes are limited one by one",
)
"""Enforcement in sessions of `nsmd.jail.run_only`, which have no process between executions."""


class LimitEnforcer:
    """Limits of sessions and boxes: by control groups, or by a watchdog if there are none; then
    `why` is the reason for people, and `fix` what to do about it.

    The anchor holds a scope for sessions, from this supervisor or an earlier one. `enforcement` is
    the mechanism as far as known in advance.
    """

    def __init__(
        self,
        tree: GroupTree | None,
        *,
        why: str = "",
        fix: str = "",
        limits: SessionLimits,
        anchor: Anchor | None = None,
    ) -> None:
        self.tree = tree
        self.fix = fix
        self.anchor = anchor
        self._environment: Mapping[str, str] = {}
        self._store: DescriptorStore | None = None
        self._renewing = trio.Lock()
        self.watchdog = Watchdog()
        self._limits = limits
        self._leftovers = Leftovers()
        self.enforcement = enforcement_by(
            tree.controllers if tree is not None else frozenset(),
            why or ("" if tree is None else _lacking(tree.controllers)),
        )

    def __repr__(self) -> str:
        return f"<LimitEnforcer {self.tree or 'without groups'}>"

    def facts(self) -> dict[str, str]:
        """Facts for `nsm status`."""
        return self.enforcement._asdict()

    async def make_group(self, session_id: str, spec: JailSpec) -> Group | None:
        """Make a control group for a jail that will start in it. The caller removes it, or passes
        it to `confine`. None if there is none, or if `confine` should find out why.
        """
        if self.tree is None:
            return None
        limits = limits_of(spec, self._limits)
        try:
            # Not abandoned when cancelled, since nobody would remove the group.
            return await trio.to_thread.run_sync(Group.new, self.tree, session_id, limits)
        except OSError:
            return None

    async def confine(
        self, session_id: str, jail: Jail, spec: JailSpec, group: Group | None = None
    ) -> Confinement:
        """Confine a jail whose agent speaks and has run no code. There is always a confinement; it
        says which limits are missing. A group of `make_group` is owned from now on, and removed if
        this is cancelled.
        """
        limits = limits_of(spec, self._limits)
        if group is not None and jail.pid > 0:
            try:
                await trio.to_thread.run_sync(group.settle, jail.pid)
            except OSError as error:
                group.remove()
                return self._refused(session_id, jail, limits, _why(error))
            except BaseException:
                group.remove()
                raise
            return self._with_group(session_id, jail, limits, group)
        if group is not None:
            group.remove()
        if jail.pid <= 0:
            return self._confinement(jail, limits, RUN_ONLY)
        return await self._confine(session_id, jail, limits)

    async def confine_box(self, name: str, box: TopProcess, bounds: BoxBounds) -> Confinement:
        """Confine a process that is about to become a box, in a group of that name."""
        limits = limits_of_box(bounds)
        confinement = await self._confine(name, box, limits)
        confinement.begun()  # until its end
        return confinement

    async def _confine(self, session_id: str, jail: TopProcess, limits: GroupLimits) -> Confinement:
        if self.tree is None:
            return self._confinement(jail, limits, self.enforcement)
        try:
            try:
                group = await self._group(self.tree, session_id, jail.pid, limits)
            except FileNotFoundError:
                if not await self._has_renewed():
                    raise
                group = await self._group(self.tree, session_id, jail.pid, limits)
        except NoGroupsError as error:
            return self._refused(session_id, jail, limits, error.why)
        except OSError as error:
            return self._refused(session_id, jail, limits, _why(error))
        return self._with_group(session_id, jail, limits, group)

    def _refused(
        self, session_id: str, jail: TopProcess, limits: GroupLimits, why: str
    ) -> Confinement:
        log.warning("session %s has no control group: %s", session_id, why)
        return self._confinement(jail, limits, enforcement_by(frozenset(), why))

    def adopt(
        self, session_id: str, jail: Jail, spec: JailSpec, directory: str | None
    ) -> Confinement:
        """Take over the limits of a session that an earlier supervisor confined; blocks for some
        100 us. The directory is that of its group; None if it had none.
        """
        limits = limits_of(spec, self._limits)
        if jail.pid <= 0:
            return self._confinement(jail, limits, RUN_ONLY)
        return self._adopt(session_id, jail, limits, directory)

    def adopt_box(self, box: TopProcess, bounds: BoxBounds, directory: str | None) -> Confinement:
        """Take over the limits of a box that an earlier supervisor confined, as `adopt`."""
        limits = limits_of_box(bounds)
        confinement = self._adopt("of a box", box, limits, directory)
        confinement.begun()
        return confinement

    def _adopt(
        self,
        session_id: str,
        jail: TopProcess,
        limits: GroupLimits,
        directory: str | None,
    ) -> Confinement:
        if directory is None:
            why = self.enforcement.why or "it had no control group when it was started"
            return self._confinement(jail, limits, enforcement_by(frozenset(), why))
        remove = self._leftovers.remove if self.tree is None else self.tree.remove
        try:
            group = Group.existing(directory, jail.pid, limits, remove)
        except OSError as error:
            why = f"the control group that it had: {error.strerror}"
            return self._refused(session_id, jail, limits, why)
        confinement = self._with_group(session_id, jail, limits, group)
        confinement.taken_up()
        return confinement

    async def _has_renewed(self) -> bool:
        """Ask for another scope if the one for sessions is gone, because somebody has stopped it or
        ended its anchor. Returns whether there is one.
        """
        async with self._renewing:
            if self.anchor is None or self.tree is None:
                return False
            if self.tree.there:
                return True
            log.warning("%s is gone; another one is asked for", self.tree)
            anchor = None
            try:
                anchor = await start_anchor(self._environment)
                self.tree = GroupTree(anchor.directory, pid=anchor.pid, own=ANCHOR_GROUP)
            except NoGroupsError as error:
                log.warning("a session has no control group: %s", error.why)
                if anchor is not None:
                    anchor.close()
                return False
            self.let_go()
            self.anchor = anchor
            if self._store is not None:
                anchor.keep(self._store)
            return True

    def kept_by(self, store: DescriptorStore | None, environment: Mapping[str, str]) -> None:
        """Keep the descriptors of the sessions' groups in this store from now on."""
        self._store, self._environment = store, environment
        if store is not None and self.anchor is not None:
            self.anchor.keep(store)

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        if self.anchor is not None:
            yield STORED_NAME, self.anchor.descriptors()

    def let_go(self) -> None:
        """Release the sessions' groups: only their processes hold them from now on."""
        if self.anchor is not None:
            if self._store is not None:
                self._store.drop(STORED_NAME)
            self.anchor.close()

    def _with_group(
        self, session_id: str, jail: TopProcess, limits: GroupLimits, group: Group
    ) -> Confinement:
        lacking = group.lacking or _lacking(group.holds)
        if group.lacking:
            log.warning("session %s: %s", session_id, group.lacking)
        return self._confinement(jail, limits, enforcement_by(group.holds, lacking), group)

    def _confinement(
        self,
        jail: TopProcess,
        limits: GroupLimits,
        enforcement: Enforcement,
        group: Group | None = None,
    ) -> Confinement:
        watch = None if enforcement is RUN_ONLY else self.watchdog.watch
        return Confinement(jail, limits, enforcement, group, watch=watch)

    async def _group(self, tree: GroupTree, name: str, pid: int, limits: GroupLimits) -> Group:
        """Make a group with the jail in it. Raises `OSError` if it cannot be made, `NoGroupsError`
        if the jail cannot be moved.

        Moving a process waits for others that are being moved on the machine, and for a grace
        period of the kernel: milliseconds, in which others get their answers.
        """
        # Not abandoned when cancelled, since nobody would remove the group.
        group = await trio.to_thread.run_sync(Group.new, tree, name, limits)
        try:
            try:
                await trio.to_thread.run_sync(group.adopt, pid)
            except PermissionError:  # a box is started anywhere, such as in a login
                await self._attach(tree, group, pid)
        except BaseException:
            group.remove()
            raise
        return group

    async def _attach(self, tree: GroupTree, group: Group, pid: int) -> None:
        for _ in range(MOST_ROUNDS):  # it starts others meanwhile
            outside = set(tree_of(pid)) - set(group.pids())
            if not outside:
                return
            await attach(tree.directory, group.directory, outside, self._environment)
        raise NoGroupsError("systemd does not move it into a control group")


def _why(error: OSError) -> str:
    return f"its control group: {error.strerror or error}"


def enforcement_by(controllers: frozenset[str], why: str) -> Enforcement:
    """Make the enforcement if only these controllers' limits hold."""
    return Enforcement(
        memory="cgroup" if "memory" in controllers else "watchdog",
        processes="cgroup" if "pids" in controllers else "rlimit",
        cpu="cgroup" if "cpu" in controllers else "none",
        why=why,
    )


def _lacking(controllers: frozenset[str]) -> str:
    missing = [name for name in ("memory", "pids", "cpu") if name not in controllers]
    return f"not delegated: {', '.join(missing)}" if missing else ""


PAUSES_S = (0.1, 0.4)
"""Pauses before control groups are asked for again; the starter of a supervisor waits 10 s."""


async def find_enforcer(
    limits: SessionLimits,
    environment: Mapping[str, str],
    *,
    root: str = "/",
    kept: Kept | None = None,
    again: bool = False,
) -> LimitEnforcer:
    """Choose the mechanism that this host allows; takes some 50 ms if systemd is asked.

    Call it before anything is started: started processes are in the group where this process is.
    Descriptors of an earlier supervisor that are for this are taken. `again` says that this process
    was a supervisor before it became this program.
    """
    anchor = take_up_anchor(kept or {})
    pauses_s = iter(PAUSES_S)
    while True:
        try:
            found = await _find_tree(environment, root, anchor, again=again)
            if isinstance(found, Anchor):
                anchor = found
                found = GroupTree(anchor.directory, pid=anchor.pid or None, own=ANCHOR_GROUP)
        except NoGroupsError as error:
            soon = getattr(error.__cause__, "errno", 0) in SHORTAGES | {errno.EBUSY, errno.EINTR}
            if not soon or (pause_s := next(pauses_s, None)) is None:
                log.info("sessions have no control groups: %s", error.why)
                whys = {"why": error.why, "fix": error.fix}
                return LimitEnforcer(None, **whys, limits=limits, anchor=anchor)
            await trio.sleep(pause_s)
            continue
        return LimitEnforcer(found, limits=limits, anchor=anchor)


async def _find_tree(
    environment: Mapping[str, str], root: str, anchor: Anchor | None, *, again: bool
) -> GroupTree | Anchor:
    """Find a tree to divide, or raise NoGroupsError."""
    place = find_place(root)
    # A process started by a supervisor, or by a test that divides, is in its group, too.
    if again and (around := divided_around(place)):
        return GroupTree(around, pid=None)
    if anchor is not None:
        return anchor
    if place.managed and place.unit.endswith(".service") and is_main_process(environment):
        try:
            return await start_anchor(environment)
        except NoGroupsError:
            # If the service's own group is the only possible one, the next start may fail because
            # of the sessions in it, unless systemd has `DelegateSubgroup=` (254 and newer).
            if not (place.ours or await is_delegated(place, environment)):
                raise
    if place.ours:
        return GroupTree(place.directory)
    if place.managed:
        if place.alone and place.writable and await is_delegated(place, environment):
            return GroupTree(place.directory)
        await enter_scope(place, environment)
        return GroupTree(find_place(root).directory)
    if os.geteuid() == 0:
        return GroupTree(make_own_directory(place))
    raise NoGroupsError(
        "nothing here gives an ordinary user control groups of its own",
        "Run it below a service manager that delegates some, such as `systemd --user`.",
    )


@asynccontextmanager
async def open_enforcer(
    limits: SessionLimits,
    environment: Mapping[str, str],
    *,
    store: DescriptorStore | None = None,
    kept: Kept | None = None,
    again: bool = False,
) -> AsyncGenerator[LimitEnforcer]:
    """Confine all sessions of a supervisor; leaving the block stops the tasks, not the limits.

    The store keeps the holder of the sessions' groups; for the others see `find_enforcer`.
    """
    enforcer = await find_enforcer(limits, environment, kept=kept, again=again)
    enforcer.kept_by(store, environment)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enforcer.watchdog.run)
            yield enforcer
            nursery.cancel_scope.cancel()
    finally:
        enforcer.let_go()
