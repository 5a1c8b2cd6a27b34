"""The helper that forks a running session: a process of its own, with the jails' user.

The first message on its socket is the request, with the descriptors of the new agents' sockets and
control groups. The helper answers `attached`. Then the supervisor asks the original's agent to have
its Python fork, and the helper sends the result, with a pidfd for each fork. Whatever fails, the
original goes on, untraced. A request without `count` asks to clean up after a helper that was
killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from nsmd.sessions.forking.call_lists import CallLists
from nsmd.sessions.forking.namespaces import NewJail, Original
from nsmd.sessions.forking.original import (
    CannotForkError,
    check_alone,
    check_gpu,
    check_threads,
    descriptors_of,
    page_of,
    status_of,
)
from nsmd.sessions.forking.outfit import Found, Outfit, pass_descriptors
from nsmd.sessions.forking.ptrace import (
    CLONE_SHARED,
    RESULT,
    WALL,
    Registers,
    Traced,
    TracedEndedError,
    libc,
)
from sandbox.linux import (
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_SCOPE_SIGNAL,
    LANDLOCK_SCOPES,
    PR_SET_DUMPABLE,
    landlock_attributes,
)
from sandbox.template.kernel import (
    SetupError,
)

MESSAGE_BYTES = 256 * 1024
LIMIT_S = 60
"""Time limit of a request. Then the original goes on, and nothing is forked."""

_WITHIN_MEMORY = (0x100 | signal.SIGCHLD, 0, 0, 0, 0)
"""Arguments of clone(2) with CLONE_VM, for a process that never runs code of its own."""
_NO_CALL = (1 << 64) - 1

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def _ignore(number: int, frame: object) -> None:
    """Handle a signal that only has to wake a poll."""


class Fork:
    """One fork that is being made: its jail, and the process that becomes its worker."""

    def __init__(self, jail: NewJail) -> None:
        self.jail = jail
        self.worker: Traced | None = None
        self.inner_pid = 0


class Carrier:
    """One request to fork a session, once or several times.

    Args:
        order: the request.
        channels: sockets of the new agents.
        groups: their control groups; empty without.
        supervisor: its socket.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        channels: Sequence[int],
        groups: Sequence[int],
        supervisor: socket.socket,
    ) -> None:
        self._order = order
        self._supervisor = supervisor
        self._channels, self._groups = channels, groups
        self._agent: int = order["agent"]
        self._forks: list[Fork] = []
        self._temporary: list[Traced] = []
        self._worker: Traced | None = None
        self._site = 0
        self._registers: Registers = {}
        self._closed: Mapping[int, str] = {}

    def run(self) -> Mapping[str, Any]:
        """Make the forks; returns what to tell the supervisor.

        Raises:
            CannotForkError: it cannot be done; nothing is left of the attempt.
        """
        try:
            return self._run()
        except (OSError, TracedEndedError, SetupError) as error:
            self._clear()
            raise CannotForkError(_explained(error)) from error
        except BaseException:
            self._clear()
            raise

    def _clear(self) -> None:
        """Undo everything: end what was made, and let the original go on."""
        signal.alarm(0)
        for traced in [fork.worker for fork in self._forks] + self._temporary:
            if traced is not None:
                traced.kill()
        for fork in self._forks:
            fork.jail.take_back()
        if self._worker is not None:
            self._let_go(self._worker)

    def pidfds(self) -> list[int]:
        """Descriptors of the forks' PID 1s."""
        return [fork.jail.pidfd for fork in self._forks]

    @staticmethod
    def _let_go(worker: Traced) -> None:
        try:
            worker.detach()
        except OSError:  # it runs: only a stopped process can be detached
            with suppress(OSError, TracedEndedError):
                worker.attached = True
                worker.interrupt()
                worker.detach()

    def _run(self) -> Mapping[str, Any]:
        if libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < LANDLOCK_SCOPES:
            raise CannotForkError(
                "this kernel cannot keep a session from its forks, which takes Landlock with "
                "scopes (Linux 6.12)"
            )
        pid = _only_child(self._agent)
        original = Original(self._agent, pid, self._order["template"])
        check_gpu(pid)  # first: its memory looks like shared memory, and its driver has threads
        page_of(pid)
        self._begin_jail(original)  # first, since it takes as long as all before its `wait`
        original.hide_others()
        worker = self._worker = Traced.seize(pid)
        child = self._forked(worker)
        began_s = time.monotonic()
        check_threads(pid)
        check_alone(self._agent, {pid, child.pid})
        outfit = self._look(worker, child)
        self._forks[0].jail.wait()
        for _ in self._channels[1:]:
            self._begin_jail(original)
        for fork in self._forks[1:]:
            fork.jail.wait()
        copied = 0
        for fork in self._forks:
            copied += int(fork.jail.ask("copy"))
            fork.jail.ask("drop")
        for fork in self._forks:
            fork.jail.restore_limits()
        for fork in self._forks:
            self._carry(fork, child, outfit)
        for fork in self._forks:
            fork.jail.begin(fork.inner_pid)
        self._shut_in(worker)
        worker.detach()
        stood_s = time.monotonic() - began_s
        child.kill()
        for fork in self._forks:
            assert fork.worker is not None, "it was carried"
            self._release(fork.worker)
        return {
            "forks": [fork.jail.pid for fork in self._forks],
            "closed": sorted({*self._closed.values()})[:50],
            "copied_bytes": copied,
            "stood_s": stood_s,
        }

    def _begin_jail(self, original: Original) -> None:
        number = len(self._forks)
        group = self._groups[number] if self._groups else None
        self._forks.append(Fork(NewJail(original, self._order, self._channels[number], group)))

    # The original.

    def _forked(self, worker: Traced) -> Traced:
        """Wait until the original forks; returns the child. Both are stopped then."""
        self._supervisor.send(b'{"attached": true}')
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        try:
            while True:
                pid, status = os.waitpid(worker.pid, WALL | os.WNOHANG)
                if not pid:
                    ready = select.select([wake, self._supervisor.fileno()], [], [])[0]
                    if self._supervisor.fileno() in ready:
                        raise CannotForkError("the supervisor has given up")
                    os.read(wake, 4096)
                    continue
                stop = worker.stopped(status)
                if stop >> 8 == 1:
                    break
                worker.resume(stop)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
        child = worker.child()
        self._temporary.append(child)
        child.hold()
        worker.finish_call()
        return child

    def _look(self, worker: Traced, child: Traced) -> Outfit:
        """Look at the stopped original and its child; returns what each fork gets of them.

        Raises:
            CannotForkError: something cannot be forked.
        """
        self._registers = child.registers
        self._site = self._registers["rip"] - 2
        if child.read(self._site, 2) != b"\x0f\x05" or self._registers["orig_rax"] not in (56, 57):
            raise CannotForkError("its Python forks in a way that nsm does not know")
        if self._registers["orig_rax"] == 56 and self._registers["rdi"] & CLONE_SHARED:
            raise CannotForkError("its Python shares memory or descriptors with what it forks")
        if status_of(child.pid)["Threads"] != "1":
            raise CannotForkError("its fork has threads")
        check_gpu(child.pid)
        page = page_of(child.pid)
        private = struct.unpack("4Q", child.read(page + 16, 32))
        if not all(2 < number < 1 << 20 for number in private) or len(set(private)) < 4:
            raise CannotForkError("code has changed the memory that belongs to nsm")
        control, _, out, err = private
        descriptors = descriptors_of(child.pid, {1, 2, control, out, err})
        self._closed = descriptors.closed
        cwd = os.readlink(f"/proc/{worker.pid}/cwd")
        found = Found(page, private, descriptors, cwd)
        return Outfit(CallLists(child, self._site), found)

    def _shut_in(self, worker: Traced) -> None:
        """Have the original enter a Landlock domain, so that it cannot reach its forks."""
        attributes = landlock_attributes(LANDLOCK_SCOPE_SIGNAL)
        address = worker.write(attributes)
        worker.call_in_place(
            [
                ("landlock_create_ruleset", (address, len(attributes), 0)),
                ("landlock_restrict_self", (RESULT, 0)),
                ("close", (RESULT,)),
            ]
        )

    # The forks.

    def _carry(self, fork: Fork, child: Traced, outfit: Outfit) -> None:
        """Make the worker of a fork in its jail; it is stopped when this returns."""
        site, lists = self._site, outfit.lists
        plain = (signal.SIGCHLD, 0, 0, 0, 0)
        # A process never changes its own PID namespace, and a child of the original's would be an
        # orphan of the original's agent. So three are made, one from another. The first two never
        # run, and share the memory; only the worker gets a copy.
        entered = child.clone(_WITHIN_MEMORY, site)
        self._temporary.append(entered)
        received = pass_descriptors(lists, entered, [*fork.jail.namespaces(), *fork.jail.theirs])
        namespaces, theirs = received[:-4], received[-4:]
        calls = lists.begin(entered)
        for fd in namespaces:
            calls.add("setns", fd, 0)
            calls.add("close", fd)
        calls.run()
        inside = entered.clone(_WITHIN_MEMORY, site)
        self._temporary.append(inside)
        r = self._registers
        same = (r["rdi"], r["rsi"], r["rdx"], r["r10"], r["r8"])
        if r["orig_rax"] == 57:
            same = plain
        worker = fork.worker = inside.clone(same, site)
        fork.inner_pid = int(status_of(worker.pid)["NSpid"].split()[-1])
        outfit.equip(worker, theirs)
        lists.unmap(worker)
        # The worker is an orphan now, so its parent is PID 1 of its namespace: the new agent.
        inside.kill()
        entered.kill()
        self._temporary = [each for each in self._temporary if each not in (inside, entered)]
        self._check(fork, worker)
        if fork.jail.group is not None:
            os.lseek(fork.jail.group, 0, os.SEEK_SET)
            with suppress(OSError):
                os.write(fork.jail.group, str(worker.pid).encode())

    @staticmethod
    def _check(fork: Fork, worker: Traced) -> None:
        """Read in /proc that a worker has no privileges, is in its namespaces and can make none.

        Raises:
            CannotForkError: it is not.
        """
        status = status_of(worker.pid)
        wrong = [name for name in _CAPABILITIES if int(status[name], 16)]
        wrong += [
            name
            for name, value in (("Seccomp", "2"), ("NoNewPrivs", "1"), ("Threads", "1"))
            if status[name] != value
        ]
        for kind in ("user", "mnt", "ipc", "uts", "net", "cgroup", "pid"):
            ours = os.readlink(f"/proc/{worker.pid}/ns/{kind}")
            if ours != os.readlink(f"/proc/{fork.jail.pid}/ns/{kind}"):
                wrong.append(f"namespace {kind}")
        if fork.jail.user_namespaces != 0:
            wrong.append("limit of user namespaces")
        if wrong:
            raise CannotForkError(f"the fork is not shut in ({', '.join(wrong)})")

    def _release(self, worker: Traced) -> None:
        worker.registers = {**self._registers, "rax": 0, "orig_rax": _NO_CALL}
        worker.detach()
        worker.close()


def _only_child(agent: int) -> int:
    """Process id of the worker of a session.

    Raises:
        CannotForkError: other programs run in it, or no Python does.
    """
    with open(f"/proc/{agent}/task/{agent}/children", encoding="utf-8") as file:
        children = [int(pid) for pid in file.read().split()]
    if len(children) != 1:
        check_alone(agent, set(children[:1]))
        raise CannotForkError("no Python waits for code in it")
    return children[0]


def _explained(error: Exception) -> str:
    """An error in words for people."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == 1 and "ptrace" in text:
        return (
            "this machine forbids tracing (kernel.yama.ptrace_scope is 3, or a container's rules)"
        )
    if "landlock_restrict_self" in text:
        return (
            "it is a fork of forks, or was forked 15 times: the kernel takes no more rules for it"
        )
    if "setns" in text and isinstance(error, OSError) and error.errno == 1:
        return "its filter of system calls is of an older nsm, or of an artifact of one"
    return text or type(error).__name__


def serve(supervisor: socket.socket) -> NoReturn:
    """Do what one request asks for, in a process of its own.

    Args:
        supervisor: the request's socket.
    """
    try:
        signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(LIMIT_S)
        message, fds, _, _ = socket.recv_fds(supervisor, MESSAGE_BYTES, 64)
        order = json.loads(message)
        agent = order["agent"]
        _become_user_of(agent)
        if "count" not in order:
            Original(agent, agent, order["template"]).restore_limits()
            os._exit(0)
        count = order["count"]
        for fd in fds:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        carrier = Carrier(order, fds[:count], fds[count:], supervisor)
        told = carrier.run()
        socket.send_fds(supervisor, [json.dumps(told).encode()], carrier.pidfds())
    except BaseException as error:  # noqa: BLE001  # the supervisor tells it
        with suppress(OSError):
            supervisor.send(json.dumps({"failed": str(error)[:4000]}).encode())
    finally:
        os._exit(0)


def _become_user_of(agent: int) -> None:
    """Become the jails' user, if this is root."""
    if os.geteuid() == 0:
        uid = int(status_of(agent)["Uid"].split()[0])
        gid = int(status_of(agent)["Gid"].split()[0])
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        # Its children write to their /proc/self.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def _too_slow(_number: int, _frame: object) -> None:
    raise CannotForkError(f"it took longer than {LIMIT_S} s")
