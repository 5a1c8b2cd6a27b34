"""Process that stays outside of a box: it passes signals on to the box's command, and ends as the
box does.

bwrap passes nothing on: it dies of SIGTERM, and all that is in the box with it, before anybody
there has heard of it. So the process that was started waits beside bwrap, in the same process
group; stops, when bwrap is stopped; and ends as bwrap ends. bwrap itself has the signals of `ENDS`
blocked, and so do its children, up to whoever gives the command its signals back
(`planning`, `inside`).

The ladder: a first SIGTERM or SIGHUP goes to the command, which has `GRACE_S` to tidy up; then, or
with the next SIGTERM, the box is ended. If there is no command yet, or none any more, the box is
ended after `SETTLE_S`. A terminal that closes sends SIGHUP several times (its
shell, and the kernel), so that only SIGTERM hurries.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a box; those that the caller has ignored (nohup) stay ignored."""

GRACE_S = 5.0
"""Time that the command has to end after the first signal: agents write their history and end what
they have started. It is less than what a shutdown or a service manager waits for.
"""

SETTLE_S = 0.1
"""Between a first signal and its being passed on. Shells, terminals and timeout(1) signal the whole
process group, the last after this process alone: the command then has it already, and many a
program takes a second one for being in a hurry."""

_GONE_S = 2.0
"""Time limit for the kernel to end all processes of a box; they may be in the middle of a write."""

_OURS = frozenset({signal.SIGCHLD, signal.SIGCONT})
"""Signals that tell the process outside of what its child does."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_STATUS_BYTES = 8192


def prepare() -> frozenset[signal.Signals]:
    """Block the signals that end a box, and those that tell of its process; before `fork`. The
    caller has no threads.

    Returns:
        Those that end the box.
    """
    heard = {number for number in ENDS if signal.getsignal(number) != signal.SIG_IGN}
    # An ignored one is inherited, too, and would have the kernel reap the child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, *_OURS})
    # Process 1 of the box outlives bwrap's own for a moment, and would be somebody else's then.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return frozenset(heard)


def fork() -> int:
    """Fork: returns 0 in the child, which is to become bwrap, with the signals of `ENDS` blocked.
    The parent is then to `follow` it, or to reap it and to `fork` another one."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
        _die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return 0
    # bwrap asks for the same of whoever has started it: no box outlives that.
    _die_with_parent(signal.SIGHUP)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return child


def follow(
    child: int,
    heard: Collection[signal.Signals],
    afterwards: Callable[[], None] | None = None,
    *,
    keep: Collection[int] = (),
    watch: Callable[[], None] | None = None,
) -> NoReturn:
    """Pass signals on to the box, and end as its process has ended.

    Args:
        afterwards: done when the child has ended; what goes wrong there has no effect on the exit
            code.
        watch: done in a thread of this process; it may take as long as the box.
    """
    _close_all(keep)
    if watch is not None:
        threading.Thread(target=watch, daemon=True).start()
    asked, code = _wait(child, heard)
    if afterwards is not None:
        _await_all()
        with suppress(Exception):  # whatever it is, the command's own end is what counts
            afterwards()
    if asked is not None and code in (None, 128 + asked):  # bwrap's, for a command that died of it
        _die_of(asked)
    os._exit(128 if code is None else code)


def _wait(child: int, heard: Iterable[signal.Signals]) -> tuple[signal.Signals | None, int | None]:
    """Wait until the child has ended.

    Returns:
        The signal that asked for the end, if any; the exit code, None if the box was ended.
    """
    asked: signal.Signals | None = None
    passed = False
    deadline = 0.0
    awaited = {signal.SIGCHLD, signal.SIGCONT, *heard}
    while True:
        if asked is None:
            got = signal.sigwaitinfo(awaited)
        else:
            info = signal.sigtimedwait(awaited, max(0.0, deadline - time.monotonic()))
            if info is None and not passed:
                passed = True
                told = _has_pending(child, asked) or _tell_command(child, asked)
                # Without a command the box may be ending, with an exit code.
                deadline = time.monotonic() + (GRACE_S if told else SETTLE_S)
                continue
            if info is None:
                _end(child)
                return asked, None
            got = info
        if got.si_signo == signal.SIGCHLD:
            code = _follow(child)
            if code is not None:
                return asked, code
        elif got.si_signo == signal.SIGCONT:
            os.kill(child, signal.SIGCONT)
        elif asked is None:
            asked = signal.Signals(got.si_signo)
            deadline = time.monotonic() + SETTLE_S
        elif passed and got.si_signo == signal.SIGTERM:
            _end(child)
            return asked, None


def _follow(child: int) -> int | None:
    """Stop as the child has; an exit code if it has ended."""
    pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        return None  # it goes on after a stop
    if os.WIFSTOPPED(status):
        # By its terminal we are stopped ourselves; by the command's `kill 0` it alone. If both were
        # stopped and we go on already, nobody would wake us again: stops discard a pending SIGCONT.
        if signal.SIGCONT not in signal.sigpending():
            os.kill(os.getpid(), signal.SIGSTOP)
        return None  # SIGCONT is pending, and has the child go on
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end(child: int) -> None:
    """End all that is in the box."""
    first = _first_child(child)
    if first is not None:
        fd = _held(first, child)
        if fd is not None:
            # Once this one is gone the kernel has ended all others of its namespace.
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            waits = select.poll()
            waits.register(fd, select.POLLIN)
            waits.poll(_GONE_S * 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _die_of(number: signal.Signals) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _tell_command(child: int, number: signal.Signals) -> bool:
    """Send a signal to the box's command; False where there is none yet, or none any more."""
    first = _first_child(child)
    command = None if first is None else _first_child(first)
    if first is None or command is None:
        return False
    fd = _held(command, first)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _held(pid: int, parent: int) -> int | None:
    """A descriptor of a process that is still this one's first child, whose number is not another
    process's by now."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if _first_child(parent) == pid:
        return fd
    os.close(fd)
    return None


def _first_child(pid: int) -> int | None:
    """Find the first child of bwrap, which is process 1 in the box; of that one, the command:
    adopted processes come later."""
    return min(_children(pid), default=(0, None))[1]


def _children(pid: int) -> Iterator[tuple[int, int]]:
    """Start times and numbers of the children of a process (proc_pid_stat(5)). Not every kernel has
    the shorter way, proc_pid_task(5); this one is used once in a box's life.
    """
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == pid:
            yield int(fields[19]), int(name)


def _has_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a process that blocks this signal was sent it: then the whole group was."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            text = file.read(_STATUS_BYTES)
    except OSError:
        return False
    _, _, rest = text.partition("\nShdPnd:")
    return bool(rest) and bool(int(rest.split(None, 1)[0], 16) >> (number - 1) & 1)


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _await_all() -> None:
    """Wait until nothing of the box runs any more, and can change what is looked at then.

    When process 1 of the box can be waited for, the kernel has ended all others in it.
    """
    deadline = time.monotonic() + _GONE_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                signal.sigtimedwait({signal.SIGCHLD}, max(0.0, deadline - time.monotonic()))


def _close_all(keep: Collection[int]) -> None:
    """All but the three, and `keep`: what else is open here is the box's alone."""
    for number in range(3, max(keep, default=2)):
        if number not in keep:
            with suppress(OSError):
                os.close(number)
    os.closerange(max(keep, default=2) + 1, os.sysconf("SC_OPEN_MAX"))
