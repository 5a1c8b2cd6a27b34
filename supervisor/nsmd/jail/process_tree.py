"""Processes below one of our children, found in /proc and held by descriptor.

A process id is used only while no other process can have taken it: that of our own child until we
reap it, any other through a pidfd that was opened before its position in the tree was checked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

from nsmd.host.processes import children_of, inner_pids, look_at

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
    with suppress(ProcessLookupError):
        os.killpg(root, signal.SIGSTOP)
    # All are stopped before any is killed, because children of a dead process cannot be found.
    held: dict[int, int | None] = {}
    # there is no free descriptor to look with: then only its group is killed
    with suppress(OSError):
        for _ in range(MOST_ROUNDS):
            found = [pid for pid in _descendants(root) if pid not in held]
            if not found:
                break
            for pid in found:
                held[pid] = _hold(pid, root)
        for pid, pidfd in held.items():
            # its parent is stopped, so it does not reap it
            if pidfd is None and _is_below(pid, root):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    for pidfd in held.values():
        if pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
    kill_group(root)


def kill_group(leader: int) -> None:
    """Kill the process group of a child of ours that has not been reaped."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _hold(pid: int, root: int) -> int | None:
    """Stop a process below our child. Returns its pidfd.

    Returns:
        None if it is gone, or no descriptor is left for it.
    """
    try:
        pidfd = open_descendant(pid, root)
    except OSError:
        return None
    if pidfd is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    return pidfd


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
