"""The model: a process of an image's Python that never runs, of which workers are copies."""

from __future__ import annotations

import os
import signal
import stat

from sandbox.limits import FIXED_LIMITS, apply_limits, set_limits
from sandbox.tracing.fork_checks import (
    CannotForkError,
    check_filters,
    check_gpu,
    check_threads,
    enter_namespaces,
    fork_call,
    give_descriptors,
    inner_pid,
    missing_isolation,
    page_of,
    private_descriptors,
    status_of,
    take_rights,
)
from sandbox.tracing.ptrace import CLONE_PARENT, CLONE_VFORK, CLONE_VM, NO_CALL, CallLists, Traced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ModelWorker:
    """A fork of the image's Python that never runs, of which all workers are copies.

    Raise CannotForkError or OSError if it cannot be used.

    Args:
        traced: the process, stopped before its first instruction.
        filters: number of filters of system calls that it was started with.
    """

    def __init__(self, traced: Traced, last_capability: int, filters: int) -> None:
        check_filters(traced.pid, filters)  # first: it could pretend all that is done here
        self._traced = traced
        self._last_capability = last_capability
        self._registers = traced.registers
        self._site, self._how = fork_call(traced)
        check_gpu(traced.pid)
        check_threads(traced.pid)
        self._page = page_of(traced.pid)
        self._private = private_descriptors(traced, self._page)
        self._rseq = traced.rseq()
        self._lists = CallLists(traced, self._site)
        self._close_others()
        self._check_descriptors()
        self._next = self._entering()
        self._used: Traced | None = None

    def _close_others(self) -> None:
        """Close all that the imports have left open, which all sessions would share."""
        calls = self._lists.begin(self._traced)
        first = 3
        for fd in sorted(self._private):
            if first < fd:
                calls.add("close_range", first, fd - 1, 0)
            first = fd + 1
        calls.add("close_range", first, 0xFFFF_FFFF, 0)
        calls.run()

    def _check_descriptors(self) -> None:
        """Raise CannotForkError if its sessions would share a descriptor.

        Each worker gets descriptors of its own in place of those that are left, except for standard
        input and its copy. These two stay, so they must be /dev/null.
        """
        own = {0, 1, 2, *self._private}
        if {int(fd) for fd in os.listdir(f"/proc/{self._traced.pid}/fd")} != own:
            raise CannotForkError("its descriptors are not those that nsm has given it")
        empty = os.stat("/dev/null").st_rdev
        for fd in (0, self._private[1]):
            found = os.stat(f"/proc/{self._traced.pid}/fd/{fd}")
            if not stat.S_ISCHR(found.st_mode) or found.st_rdev != empty:
                raise CannotForkError("its imports have replaced its standard input")

    def copy(
        self, namespaces: Sequence[int], given: Sequence[int], limits: Mapping[str, int]
    ) -> tuple[Traced, int]:
        """Make a worker in the namespaces of a session; returns it, stopped, and its number there.

        Args:
            namespaces: of the session: what owns the others, `KINDS`, and its user's.
            given: the worker's ends of its output pipes and its control socket, and its page.

        Raises:
            CannotForkError, OSError, TracedEndedError: it cannot be made; nothing is left of it.
        """
        made: list[Traced] = []
        try:
            # A process never changes its own PID namespace, and an orphan goes to PID 1 of that
            # of its parent. So one enters, a second one is inside, and its child is the worker.
            # All three have the memory of the first, which only the worker uses.
            self._used = self._next
            inside, numbers = enter_namespaces(self._lists, self._used, namespaces, given)
            made.append(inside)
            flags, *rest = self._how
            # CLONE_VFORK: else the kernel would take its alternate stack for signals away.
            worker = inside.clone_at_last((flags | CLONE_VM | CLONE_VFORK, *rest), self._site)
            made.append(worker)
            inside.kill()
            made.remove(inside)
            self._equip(worker, numbers)
            self._lists.unmap(worker)
            set_limits(FIXED_LIMITS, worker.pid)
            apply_limits(limits, worker.pid)
            number = self._check(worker, namespaces, given)
        except BaseException:
            for each in made:
                each.kill()
            raise
        return worker, number

    def prepare(self) -> None:
        """Get ready for the next copy, once the one that was made runs."""
        if self._used is not None:
            self._used.kill()
            self._used = None
            self._next = self._entering()

    def _entering(self) -> Traced:
        """Make a process that will enter a session's namespaces, with a copy of the memory.

        It is a sibling of the model, which would never reap it.
        """
        calls = self._lists.begin(self._traced)
        calls.add("clone", CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        calls.run()
        (made,) = calls.made
        return made

    def _equip(self, worker: Traced, numbers: Sequence[int]) -> None:
        """Give a worker descriptors and a page of its own, and take its rights away."""
        out, err, control, page = numbers
        at, _, saved_out, saved_err = self._private
        moved = {out: (1, saved_out), err: (2, saved_err), control: (at,)}
        calls = self._lists.begin(worker)
        give_descriptors(calls, moved, (self._page, page), self._rseq)
        calls.add("chdir", calls.data(b"/workspace\0"))
        take_rights(calls, self._last_capability)
        calls.run()

    def _check(self, worker: Traced, namespaces: Sequence[int], given: Sequence[int]) -> int:
        """Check in /proc that a worker has no rights, is in its namespaces and shares nothing.
        Return its number in its namespace. Raise CannotForkError if it is not isolated."""
        wrong = missing_isolation(worker.pid, namespaces[1:])
        out, err, control, page = map(os.fstat, given)
        at, _, saved_out, saved_err = self._private
        own = {1: out, saved_out: out, 2: err, saved_err: err, at: control}
        for fd, expected in own.items():
            if not os.path.samestat(os.stat(f"/proc/{worker.pid}/fd/{fd}"), expected):
                wrong.append(f"descriptor {fd}")
        if page_of(worker.pid, page.st_ino) != self._page:
            wrong.append("page")
        if wrong:
            raise CannotForkError(f"the worker is not isolated ({', '.join(wrong)})")
        return inner_pid(status_of(worker.pid))

    def release(self, worker: Traced) -> None:
        """Let a worker run, as the child that its fork has just returned in."""
        worker.registers = {**self._registers, "rax": 0, "orig_rax": NO_CALL}
        worker.detach()
        worker.close()
