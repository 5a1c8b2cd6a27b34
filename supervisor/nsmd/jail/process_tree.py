"""Processes below one of our children, found in /proc and held by descriptor.

A process id is used only while no other process can have taken it: that of our own child until we
reap it, any other through a pidfd that was opened before its position in the tree was checked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

from nsmd.host.processes import children_of, inner_pids, look_at, signal_group

MOST_ROUNDS = 10
"""Rounds of looking for new processes. The first one stops all that could start something. So the
second finds processes that were being started then, and the third nothing.
"""


def open_descendant(pid: int, root: int) -> int | None:
    """Open a pidfd of a process below our child `root`, which has not been reaped.

    Returns:
        None if it is gone, or is not below it.

    Raises:
        OSError: there is no descriptor left.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # The process that has that id and that position now has had it before, or is gone with it.
    if _is_below(pid, root):
        return pidfd
    os.close(pidfd)
    return None


def open_jail_below(root: int) -> tuple[int, int] | None:
    """Find PID 1 of the outermost PID namespace below our child: its process id, and a pidfd.

    Returns:
        None if there is none.

    Raises:
        OSError: there is no descriptor left.
    """
    for pid in _descendants(root):
        if _is_init(pid):
            pidfd = open_descendant(pid, root)
            if pidfd is not None:
                return pid, pidfd
    return None


def kill_tree(root: int) -> None:
    """Kill a child of ours that leads a process group, and all that it has started.

    It must not have been reaped. A process that left both its group and its tree is not found; a
    process in a PID namespace cannot leave.
    """
    signal_group(root, signal.SIGSTOP)
    # All are stopped before any is killed, because children of a dead process cannot be found; and
    # for the same reason children are killed before their parents.
    found: list[int] = []
    # there is no free descriptor to look with: then only its group is killed
    with suppress(OSError):
        for _ in range(MOST_ROUNDS):
            fresh = [pid for pid in _descendants(root) if pid not in found]
            if not fresh:
                break
            for pid in fresh:
                _signal_descendant(pid, root, signal.SIGSTOP)
            found += fresh
        for pid in reversed(found):
            _signal_descendant(pid, root, signal.SIGKILL)
    kill_group(root)


def kill_group(leader: int) -> None:
    """Kill the process group of a child of ours that has not been reaped."""
    signal_group(leader, signal.SIGKILL)


def _signal_descendant(pid: int, root: int, number: int) -> None:
    """Signal a process below our child, unless it is gone.

    Raises:
        OSError: there is no descriptor left.
    """
    pidfd = open_descendant(pid, root)
    if pidfd is not None:
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _descendants(root: int) -> Iterator[int]:
    """Process ids below a process, parents before children; processes that come and go meanwhile
    may be missed.

    Of a PID namespace only PID 1 is listed: everything in it ends with that process.
    """
    queue = [root]
    for parent in queue:
        for pid in children_of(parent):
            if not _is_init(pid):
                queue.append(pid)
            yield pid


def _is_below(pid: int, root: int) -> bool:
    while pid > 1:
        if (process := look_at(pid)) is None:
            return False
        if (pid := process.parent) == root:
            return True
    return False


def _is_init(pid: int) -> bool:
    """Return whether a process is PID 1 of a namespace below ours."""
    with suppress(FileNotFoundError, ProcessLookupError):
        numbers = inner_pids(pid)
        return len(numbers) > 1 and numbers[-1] == 1
    return False
