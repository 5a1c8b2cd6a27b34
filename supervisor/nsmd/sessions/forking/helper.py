"""The helper that forks a running session: a process of its own, with the jails' user.

The first message on its socket is the request, with the descriptors of the new agents' sockets and
control groups. The helper answers `attached`. Then the supervisor asks the original's agent to have
its Python fork, and the helper sends the result, with a pidfd for each fork. Whatever fails, the
original goes on, untraced. A request without `count` asks to clean up after a helper that was
killed.

Starting a Python takes longer than a whole live fork. So `main` is a fork server: it has all
modules of a helper, and keeps one ready for a request. The supervisor executes it, so it has
nothing of the supervisor's memory; it keeps nothing of a request either. Its descriptor 0 is a
socket to the supervisor: the first message has the paths of packages, each other one the socket of
a request. It ends with the supervisor, or after a time without requests; helpers and forks go on.

Facts of the kernel that the steps follow from. The mount and PID namespaces of a session belong to
the user namespace *above* that of its worker. A process never changes its own PID namespace: the
stopped child makes a second process, which enters the namespaces, and that makes the worker, which
becomes a child of the new agent as an orphan of the new PID namespace. After `setns` into a PID
namespace, `clone` with new namespaces fails (EINVAL) until the process has forked. At
PTRACE_EVENT_FORK the parent is within its system call, and has to be stepped to its end. A process
that shares memory loses its alternate stack, its CLEARTID and its area for `rseq`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from nsm.wire.tuples import NamedTuple
from nsmd.sessions.forking.first_process import Kit
from nsmd.sessions.forking.fork_worker import WaitingShell, WorkerSetup, tell_its_pid
from nsmd.sessions.forking.new_jails import MESSAGE_BYTES, NewJail, NewJails
from nsmd.sessions.forking.traced_session import (
    REMOVED,
    Original,
    OtherPrograms,
    become_user_of,
    check_shell,
    descriptors_of,
    rehearse,
    worker_of,
)
from sandbox.interpreters.bash import first_descriptor
from sandbox.limits import Limits
from sandbox.linux import (
    LANDLOCK_CREATE_RULESET,
    LANDLOCK_SCOPE_SIGNAL,
    LANDLOCK_SCOPES,
    PR_SET_CHILD_SUBREAPER,
    landlock_attributes,
)
from sandbox.template.kernel import SetupError, libc, set_option
from sandbox.tracing.fork_checks import (
    PAGE,
    CannotForkError,
    check_filters,
    check_gpu,
    check_memory,
    check_threads,
    enter_namespaces,
    filters_of,
    fork_call,
    inner_pid,
    missing_isolation,
    page_of,
    private_descriptors,
    status_of,
)
from sandbox.tracing.ptrace import (
    CLONE_VFORK,
    CLONE_VM,
    DATA,
    NO_CALL,
    RESULT,
    WALL,
    CallLists,
    Registers,
    Traced,
    TracedEndedError,
)

LIMIT_S = 60
"""Time limit of a request. Then the original goes on, and nothing is forked."""

STOP_S = 2
"""Time for other programs in the session to stop, and then to make a system call, each."""

HEARD_S = 0.05
"""Time for the supervisor to hear of the forks, after which the original may go on as well."""

UNUSED = 3
"""Exit status of a helper that got no request."""


def _ignore(number: int, frame: object) -> None:
    """Handle a signal that only has to wake a poll."""


class Fork(NamedTuple):
    """One fork that is being made: its jail, and the process that becomes its worker."""

    jail: NewJail
    worker: Traced
    theirs: Sequence[int]


class ForkRequest:
    """One request to fork a session, once or several times."""

    def __init__(
        self, order: Mapping[str, Any], jails: NewJails, kit: Kit, supervisor: socket.socket
    ) -> None:
        self._order, self._jails, self._kit = order, jails, kit
        self._supervisor = supervisor
        self._agent: int = order["agent"]
        self._forks: list[Fork] = []
        self._temporary: list[Traced] = []
        self._worker: Traced | None = None
        self._shell: WaitingShell | None = None
        self._others: OtherPrograms | None = None
        self._site = 0
        self._how: tuple[int, ...] = ()
        self._registers: Registers = {}
        self._resumed: Registers = {}
        self._original_pid = 0
        self._closed: Mapping[int, str] = {}
        self._lost: list[str] = []

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
            traced.kill()
        self._jails.take_back()
        if self._others is not None:
            self._others.let_go()
        if self._shell is not None:
            self._shell.skip()
        if self._worker is not None:
            self._worker.let_go()

    def end(self) -> None:
        """End the processes that carried the workers; the original waits for one of them."""
        for each in self._temporary:
            each.kill()

    def descriptors(self) -> list[int]:
        """Descriptors of the forks' PID 1s, each with those of its copy of the project."""
        return [fd for fork in self._forks for fd in (fork.jail.pidfd, *fork.jail.project_copy)]

    def _run(self) -> Mapping[str, Any]:
        if libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1) < LANDLOCK_SCOPES:
            raise CannotForkError(
                "this kernel cannot keep a session from its forks, which takes Landlock with "
                "scopes (Linux 6.12)"
            )
        pid = worker_of(self._agent, self._order["interpreter"])
        if self._order["interpreter"] == "bash":
            self._wait_for_word()
            self._shell = WaitingShell(pid)
            worker = self._worker = self._shell.traced
            child = self._shell.fork()
            self._temporary.append(child)
            child.hold()
        else:
            worker = self._worker = Traced.seize(pid)
            child = self._forked(worker)
        began_s = time.monotonic()
        check_threads(pid)
        others = self._others = OtherPrograms(self._agent, {pid, child.pid})
        with _seconds(STOP_S, "a program that runs in it does not stop"):
            others.stop()
        usual = filters_of(self._agent)
        for each in (pid, child.pid, *(thread.pid for thread in others.threads)):
            check_filters(each, usual)
        self._jails.begin_to_make(self._order["count"])
        setup = self._look(worker, child)
        if self._shell is None:
            self._shut_in(worker)
        else:
            self._shell.shut_in()
            self._shell = None
        with _seconds(STOP_S, "a program that runs in it makes no system calls"):
            for thread in others.threads:
                self._shut_in(thread)
        self._jails.wait_until_made()
        jails = self._jails.all
        for jail in jails:
            jail.begin_copy()
        for jail in jails:
            self._forks.append(self._carry(jail, child, is_last=jail is jails[-1]))
        copied = 0
        for fork in self._forks:
            copied += fork.jail.wait_for_copy()
            self._finish(fork, setup)
        closed = {*self._closed.values(), *self._lost, *others.names} - {PAGE}
        worker.detach()
        others.let_go()
        stood_s = time.monotonic() - began_s
        for fork in self._forks:
            fork.worker.registers = self._resumed
            fork.worker.detach()
            fork.worker.close()
        return {
            "forks": [fork.jail.pid for fork in self._forks],
            "closed": sorted(closed)[:50],
            "copied_bytes": copied,
            "stood_s": stood_s,
        }

    # The original.

    def _wait_for_word(self) -> None:
        """Wait until the agent of a shell has promised to start nothing that reaches the fork."""
        self._supervisor.send(b'{"attached": true}')
        if not self._supervisor.recv(8):
            raise CannotForkError("the supervisor has given up")

    def _forked(self, worker: Traced) -> Traced:
        """Wait until the original forks; returns the child. Both are stopped then."""
        self._supervisor.send(b'{"attached": true}')
        # First: its memory looks like shared memory, and its driver has threads.
        check_gpu(worker.pid)
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

    def _look(self, worker: Traced, child: Traced) -> WorkerSetup:
        """Look at the stopped original and its child; returns what each fork gets of them."""
        self._registers = child.registers
        self._site, self._how = fork_call(child)
        if status_of(child.pid)["Threads"] != "1":
            raise CannotForkError("its fork has threads")
        check_gpu(child.pid)
        page, code = 0, -1
        if self._shell is not None:
            check_memory(child.pid)
            code = first_descriptor(Limits(self._order["limits"]).resources)
            check_shell(child.pid, code)
            private: Sequence[int] = (0, code + 1, code + 2, code + 3)
        else:
            page = page_of(child.pid)
            private = private_descriptors(child, page)
        control, _, out, err = private
        own = {control, code, out, err} if self._shell else {1, 2, control, out, err}
        descriptors = descriptors_of(child.pid, own)
        self._closed = descriptors.closed
        cwd = os.readlink(f"/proc/{worker.pid}/cwd")
        if cwd.endswith(REMOVED):
            self._lost = [f"working directory {cwd}"]
        self._lists = CallLists(child, self._site)
        self._resumed = {**self._registers, "rax": 0, "orig_rax": NO_CALL}
        if self._shell is not None:
            self._resumed = self._shell.resumed()
            self._original_pid = inner_pid(status_of(worker.pid))
        return WorkerSetup(
            self._lists,
            self._kit.last_capability,
            page,
            private,
            code,
            descriptors,
            cwd,
            child.rseq(),
        )

    @staticmethod
    def _shut_in(thread: Traced) -> None:
        """Have a thread of the original enter a Landlock domain, so that it reaches no fork."""
        attributes = landlock_attributes(LANDLOCK_SCOPE_SIGNAL)
        thread.call_in_place(
            attributes,
            [
                ("landlock_create_ruleset", (DATA, len(attributes), 0)),
                ("landlock_restrict_self", (RESULT, 0)),
                ("close", (RESULT,)),
            ],
        )

    # The forks.

    def _carry(self, jail: NewJail, child: Traced, *, is_last: bool) -> Fork:
        """Make the worker of a fork in its jail; it is stopped when this returns."""
        # A process never changes its own PID namespace, and a child of the original's would be an
        # orphan of the original's agent. So three are made, one from another, and only the worker
        # runs. For the last fork, the first of them is the child itself, and the worker gets its
        # memory; for the others the worker gets a copy.
        entered = child
        if not is_last:
            entered = self._lists.clone(child)
            self._temporary.append(entered)
        inside, theirs = enter_namespaces(self._lists, entered, jail.namespaces, jail.theirs)
        self._temporary.append(inside)
        flags, *rest = self._how
        if is_last:
            # CLONE_VFORK: else the kernel would take its alternate stack for signals away.
            flags |= CLONE_VM | CLONE_VFORK
        fork = Fork(jail, inside.clone_at_last((flags, *rest), self._site), theirs)
        # The worker is an orphan now, so its parent is PID 1 of its namespace: the new agent.
        inside.kill()
        self._temporary.remove(inside)
        return fork

    def _finish(self, fork: Fork, setup: WorkerSetup) -> None:
        """Make a worker the fork's own, with files that are there by now, and begin its agent."""
        worker = fork.worker
        setup.equip(worker, fork.theirs)
        self._lists.unmap(worker)
        inner_pid = self._check(fork, worker)
        if self._order["interpreter"] == "bash":
            tell_its_pid(worker, self._original_pid, inner_pid)
        if fork.jail.group is not None:
            os.lseek(fork.jail.group, 0, os.SEEK_SET)
            with suppress(OSError):
                os.write(fork.jail.group, str(worker.pid).encode())
        fork.jail.become_agent(inner_pid)

    def _check(self, fork: Fork, worker: Traced) -> int:
        """Read in /proc that a worker has no privileges, is in its namespaces and can make none.

        Returns:
            Its process id there.
        """
        wrong = missing_isolation(worker.pid, fork.jail.namespaces[1:])
        if self._jails.user_namespaces != 0:
            wrong.append("limit of user namespaces")
        if wrong:
            raise CannotForkError(f"the fork is not isolated ({', '.join(wrong)})")
        return inner_pid(status_of(worker.pid))


def _explained(error: Exception) -> str:
    """An error in words for people."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == 1 and "ptrace" in text:
        return (
            "this machine forbids tracing (kernel.yama.ptrace_scope is 3, or a container's rules)"
        )
    if "landlock_restrict_self" in text:
        return (
            "a process of it is in 16 Landlock domains, and the kernel allows no more. Each fork "
            "puts its original into one more, for good. Fork one of its first forks, or `nsm save` "
            "it and `nsm restore` the file"
        )
    if "dup3" in text:
        return "its limit of open files (`ulimit -n`) is too low for a fork"
    if "setns" in text and isinstance(error, OSError) and error.errno == 1:
        return "its filter of system calls is of an older nsm, or of an artifact of one"
    return text or type(error).__name__


def serve(control: socket.socket, kit: Kit, keep_s: float) -> NoReturn:
    """Wait for a request and carry it out, in a process of its own.

    Args:
        keep_s: time without a request after which it ends with `UNUSED`.
    """
    jails = NewJails(kit)
    rehearse()
    if not select.select([control], [], [], keep_s)[0]:
        os._exit(UNUSED)
    _, channels, _, _ = socket.recv_fds(control, 1, 1)
    if not channels:
        os._exit(UNUSED)
    control.close()
    supervisor = socket.socket(fileno=channels[0])
    try:
        signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(LIMIT_S)
        message, fds, _, _ = socket.recv_fds(supervisor, MESSAGE_BYTES, 64)
        order = json.loads(message)
        if "count" in order:
            jails.begin(message, order["count"], [supervisor.fileno(), *fds])
        become_user_of(order["agent"])
        if "count" not in order:
            Original(order["agent"], order["agent"], order["template"]).restore_limits()
            os._exit(0)
        request = ForkRequest(order, jails, kit, supervisor)
        told = request.run()
        socket.send_fds(supervisor, [json.dumps(told).encode()], request.descriptors())
        # Those who answer go first: the ends of processes take a while.
        select.select([supervisor], [], [], HEARD_S)
        request.end()
    except BaseException as error:  # noqa: BLE001  # the supervisor tells it
        with suppress(OSError):
            supervisor.send(json.dumps({"failed": str(error)[:4000]}).encode())
    finally:
        os._exit(0)


@contextmanager
def _seconds(limit_s: int, words: str) -> Generator[None]:
    """Refuse the fork if the block takes longer."""
    signal.alarm(limit_s)
    try:
        yield
    except TooSlowError:
        raise CannotForkError(words) from None
    finally:
        signal.alarm(LIMIT_S)


class TooSlowError(CannotForkError):
    """The time limit is over."""


def _too_slow(_number: int, _frame: object) -> None:
    raise TooSlowError(f"it took longer than {LIMIT_S} s")


KEEP_S = 900.0
"""Time without a request after which the fork server ends."""


def main() -> None:
    """Have one helper ready at a time."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    # The PID 1s of forks are its children.
    set_option("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
    kit = Kit.make()
    gc.collect()
    gc.freeze()
    while True:
        try:
            helper = os.fork()
        except OSError:  # no process is left: the end of the socket says that
            return
        if helper == 0:
            serve(control, kit, KEEP_S)
        pid = status = 0
        while pid != helper:
            pid, status = os.wait()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == UNUSED:
            return
