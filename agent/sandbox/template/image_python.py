"""Workers of a container image's Python, forked from one that has imported modules already.

A template runs on the host's Python, so its forks are agents, and the image's Python would have to
start anew in each session. Instead a process beside the template, the *keeper*, starts it once,
confined as in a session, and has it import the modules. Then it has it fork. The kernel stops that
fork before its first instruction, and the keeper lets it never run: it is the *model*. All else of
the image's code ends. For each session the keeper has the model make a copy, which is carried,
stopped, into the namespaces that the session's agent names, gets descriptors of its own, and loses
all rights. Only then does it run (docs/explanation/decisions/0042-an-images-python-is-carried.md).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import stat
import time

from sandbox.framing import FrameError, MessageReader, encode_frame
from sandbox.limits import FIXED_LIMITS, apply_limits, set_limits
from sandbox.linux import CLONE_PARENT, close_others, dup_high, go_first_without_memory
from sandbox.processes import read_processes, signal_child, signal_process
from sandbox.shared_page import SharedPage
from sandbox.template.kernel import CLONE_NEWNS, CLONE_NEWUSER, SetupError, call, libc, write_file
from sandbox.template.mounts import keep_mounts, make_root
from sandbox.template.preloading import COMMON, SINGLE_THREADED, one_line
from sandbox.template.session import drop_privileges
from sandbox.tracing.fork_checks import (
    KINDS,
    CannotForkError,
    check_filters,
    check_gpu,
    check_threads,
    enter_namespaces,
    filters_of,
    fork_call,
    give_descriptors,
    inner_pid,
    missing_isolation,
    page_of,
    private_descriptors,
    status_of,
    take_rights,
)
from sandbox.tracing.ptrace import (
    CLONE_VFORK,
    CLONE_VM,
    NO_CALL,
    WALL,
    CallLists,
    Traced,
    TracedEndedError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.template.session import TemplateFacts


def _checked_page(pid: int, filters: int) -> int:
    """Address of the page of a process that has nothing which forks would share."""
    check_filters(pid, filters)  # first: it could pretend all that is done here
    check_gpu(pid)
    check_threads(pid)
    return page_of(pid)


class ModelWorker:
    """A fork of the image's Python that never runs, of which all workers are copies.

    Raise CannotForkError or OSError if it cannot be used.

    Args:
        traced: the process, stopped before its first instruction.
        filters: number of filters of system calls that it was started with.
    """

    def __init__(self, traced: Traced, last_capability: int, filters: int) -> None:
        self._page = _checked_page(traced.pid, filters)
        self._traced = traced
        self._last_capability = last_capability
        self._registers = traced.registers
        self._site, self._how = fork_call(traced)
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


START_S = 15.0
"""Time for the image's Python to start, and to fork."""

IMPORT_S = 30.0
"""Time for one import. The supervisor waits for longer until it hears of the next."""

MAX_REQUEST = 64 * 1024
_ENDED = b'{"why": "the process that keeps it has ended"}'
MOST_DESCRIPTORS = 16

_NS_GET_USERNS = 0xB701

_START = """
import marshal, os, sys
def compiled(path):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open(path, "rb") as source, open(write, "wb") as out:
            marshal.dump(compile(source.read(), path, "exec", dont_inherit=True), out)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as made:
        code = marshal.load(made)
    os.waitpid(pid, 0)
    return code
sys.argv = sys.argv[1:]
__file__ = sys.argv[0]
exec(compiled(__file__))
"""
"""Starts the worker. A process that ends compiles it: that leaves gaps of 30 MB in its memory."""

_BEGIN = """
def nsm_begin(names):
    import importlib
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
nsm_begin({names!r})
del nsm_begin
"""
_IMPORT = """
nsm_import = __import__("importlib").import_module({name!r})
del nsm_import
"""
_END = """
def nsm_end(names):
    import gc, os, sys
    for name in names:
        del os.environ[name]
    for name in ("_clear_internal_caches", "_clear_type_cache"):
        if hasattr(sys, name):
            getattr(sys, name)()
            break
    gc.collect()
    gc.freeze()
nsm_end({names!r})
del nsm_end
"""


class NoImagePythonError(Exception):
    """The image's Python cannot be forked; the message says why, for people."""


class _ImportingPython:
    """The image's Python while it imports, and the number of filters of system calls with which it
    starts. Raise CannotForkError if the kernel does not tell what it takes to check it."""

    def __init__(self, image: Mapping[str, Any], template: TemplateFacts) -> None:
        self.filters = filters_of(os.getpid()) + 1
        self._control, theirs = socket.socketpair()
        page_fd = SharedPage.make_file()
        self._output = os.memfd_create("output", os.MFD_CLOEXEC)
        self._reader = MessageReader()
        self._number = 0
        self.added = [name for name in SINGLE_THREADED if name not in os.environ]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(image, template, theirs.fileno(), page_fd)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(127)
        theirs.close()
        os.close(page_fd)

    def _become(
        self, image: Mapping[str, Any], template: TemplateFacts, control_fd: int, page_fd: int
    ) -> NoReturn:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(self._output, 1)
        os.dup2(self._output, 2)
        numbers = dup_high(control_fd), dup_high(page_fd)
        close_others({0, 1, 2, *numbers})
        for fd in numbers:
            os.set_inheritable(fd, True)
        go_first_without_memory()
        if image["root"] is not None:
            call("unshare", libc.unshare(CLONE_NEWNS))
            keep_mounts()
            for fd in make_root(**image["root"]):
                os.close(fd)
        os.chdir("/workspace")
        os.environ.update(dict.fromkeys(self.added, "1"))
        os.environ["PWD"] = "/workspace"  # noqa: S105
        drop_privileges(template.last_capability, template.system_calls)
        words = ["-I", "-c", _START, template.agent.__file__, "--worker", *map(str, numbers)]
        os.execv(image["program"], [image["program"], *words])

    def run(self, code: str, limit_s: float) -> str:
        """Have it run code; returns why that failed, or an empty text. Raise NoImagePythonError if
        it has ended, or does not answer."""
        self._number += 1
        token = os.urandom(16).hex()
        os.ftruncate(self._output, 0)
        os.lseek(self._output, 0, os.SEEK_SET)
        self.send({"type": "run", "id": self._number, "token": token, "code": code})
        end_s = time.monotonic() + limit_s
        while True:
            try:
                while (message := self._reader.next_message()) is not None:
                    if message.get("type") == "done" and message.get("token") == token:
                        return "" if message.get("exit_code") == 0 else self._last_line()
                left_s = max(0.0, end_s - time.monotonic())
                if not select.select([self._control], [], [], left_s)[0]:
                    raise NoImagePythonError(f"it takes longer than {limit_s:g} s")
                data = self._control.recv(64 * 1024)
            except (OSError, FrameError) as error:
                raise NoImagePythonError(one_line(str(error)) or "it does not answer") from error
            if not data:
                why = self._last_line()
                raise NoImagePythonError(f"it has ended{': ' if why else ''}{why}")
            self._reader.receive_data(data)

    def _last_line(self) -> str:
        size = os.fstat(self._output).st_size
        text = os.pread(self._output, 4096, max(0, size - 4096)).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return one_line(lines[-1]) if lines else "it failed"

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # its next answer is missing
            self._control.sendall(encode_frame(message))

    def why_unforkable(self) -> str:
        """Return why it cannot be forked as it is now; empty if it can."""
        try:
            _checked_page(self.pid, self.filters)
        except CannotForkError as error:
            return str(error)
        return ""

    def fork(self) -> Traced:
        """Have it fork; returns the child, which is stopped."""
        signal.signal(signal.SIGALRM, _too_slow_to_fork)
        signal.alarm(int(START_S))
        try:
            parent = Traced.seize(self.pid)
            self.send({"type": "fork", "id": 0})
            while (stop := parent.wait()) >> 8 != 1:
                parent.resume(stop)
            child = parent.child()
            child.hold()
            parent.close()
            return child
        finally:
            signal.alarm(0)

    def end(self) -> None:
        """End it, and reap it. May be repeated."""
        signal_child(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.WIFSTOPPED(os.waitpid(self.pid, WALL)[1]):
                pass

    def close(self) -> None:
        self.end()
        self._control.close()
        os.close(self._output)


class _Keeper:
    """The process beside a template that has the model. It tells which module is imported next; an
    empty text for other steps."""

    def __init__(
        self,
        image: Mapping[str, Any],
        template: TemplateFacts,
        wanted: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self._image = image
        self._template = template
        self._wanted = wanted
        self._tell = tell
        self.failed: dict[str, str] = {}
        self.imported: dict[str, float] = {}

    def make_model(self) -> ModelWorker:
        """Start the image's Python, have it import, and fork it. Raise NoImagePythonError if that
        does not work."""
        python: _ImportingPython | None = None
        try:
            while python is None:  # again without the module that was at fault
                python = self._imported()
            self._tell("")
            traced = python.fork()
            python.end()
            self._end_others(traced.pid)
            return ModelWorker(traced, self._template.last_capability, python.filters)
        except (OSError, SetupError, CannotForkError, TracedEndedError) as error:
            raise NoImagePythonError(one_line(str(error))) from error
        finally:
            if python is not None:
                python.close()

    def _imported(self) -> _ImportingPython | None:
        """A Python with all modules but those that failed; None if one more is to be left out."""
        self._tell("")
        python = _ImportingPython(self._image, self._template)
        self.imported = {}
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(python.close)
            python.run(_BEGIN.format(names=COMMON.split()), START_S)
            if why := python.why_unforkable():
                raise NoImagePythonError(why)
            for name in self._wanted:
                if name in self.failed:
                    continue
                self._tell(name)
                began_s = time.monotonic()
                try:
                    why = python.run(_IMPORT.format(name=name), IMPORT_S)
                except NoImagePythonError as error:  # this import hangs, or ends it
                    self.failed[name] = str(error)
                    return None
                if why:
                    self.failed[name] = why
                else:
                    self.imported[name] = round(time.monotonic() - began_s, 3)
                if why := python.why_unforkable():
                    self.failed[name] = why
                    return None
            self._tell("")
            python.run(_END.format(names=python.added), START_S)
            unfinished.pop_all()
            return python
        return None

    @staticmethod
    def _end_others(model: int) -> None:
        """End all other processes that the imports have left: they could reach sessions."""
        kept = {1, os.getpid(), os.getppid(), model}
        for _ in range(1000):
            table = read_processes()
            others = [row for row in table.values() if row.alive and row.pid not in kept]
            if not others:
                return
            for row in others:
                signal_process(row, signal.SIGKILL)
            time.sleep(0.002)
        raise CannotForkError("its imports have started programs that do not end")

    @staticmethod
    def serve(model: ModelWorker, requests: socket.socket) -> None:
        """Make workers for agents, until nobody can ask any more."""
        while True:
            message, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, MOST_DESCRIPTORS)
            if not message:
                return
            try:
                _answer(model, json.loads(message), fds)
            except (OSError, ValueError, LookupError):
                pass  # the agent has ended, and with it the socket for the answer
            finally:
                for fd in fds:
                    os.close(fd)
            model.prepare()


def _answer(model: ModelWorker, asked: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Carry out one request of an agent (`sandbox.interpreters.framed`)."""
    count = len(KINDS) + 1
    namespaces, given, group = fds[1 : count + 1], fds[count + 1 : count + 5], fds[count + 5 :]
    owner = -1
    with socket.socket(fileno=os.dup(fds[0])) as agent:
        try:
            # What owns the other namespaces; the agent, in one below it, may not ask for it.
            owner = fcntl.ioctl(namespaces[0], _NS_GET_USERNS)
            worker, number = model.copy([owner, *namespaces], given, asked["limits"])
        except (OSError, CannotForkError, TracedEndedError) as error:
            agent.send(json.dumps({"error": one_line(str(error))}).encode())
            return
        finally:
            if owner >= 0:
                os.close(owner)
        for fd in group:
            with contextlib.suppress(OSError):
                os.write(fd, str(worker.pid).encode())
        try:
            agent.send(json.dumps({"pid": number}).encode())
            model.release(worker)
        except BaseException:
            worker.kill()
            raise


def _too_slow_to_fork(_number: int, _frame: object) -> None:
    raise CannotForkError(f"it does not fork within {START_S:g} s")


def enter_own_user_namespace() -> None:
    """Have rights over what this process starts, which nothing of the image's code will have.

    Else that code, of the same user and without rights like the template, could trace it. Raises
    `SetupError`.
    """
    uid, gid = os.getuid(), os.getgid()
    call("unshare", libc.unshare(CLONE_NEWUSER))
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{uid} {uid} 1")
    write_file("/proc/self/gid_map", f"{gid} {gid} 1")


def keep_image_python(
    image: Mapping[str, Any],
    template: TemplateFacts,
    wanted: Sequence[str],
    control: socket.socket,
) -> tuple[Mapping[str, str], Mapping[str, float]]:
    """Have a process keep the image's Python, and wait until that has imported.

    If it can be forked, the template gets the socket for requests of agents.

    Args:
        image: `program`, its path, and `root`, arguments of `make_root`; null if the image is the
            root directory already.
        control: the template's socket, which that process closes; hears of each import.

    Returns:
        As `preload`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            control.close()
            ours.close()

            def tell(name: str) -> None:
                theirs.send(json.dumps({"importing": name}).encode())

            keeper = _Keeper(image, template, wanted, tell)
            try:
                model = keeper.make_model()
            except NoImagePythonError as error:
                theirs.send(json.dumps({"why": str(error)}).encode())
                os._exit(0)
            made = {"failed": keeper.failed, "imported": keeper.imported}
            theirs.send(json.dumps(made).encode())
            keeper.serve(model, theirs)
        finally:
            os._exit(0)
    theirs.close()
    while "importing" in (told := json.loads(ours.recv(MAX_REQUEST) or _ENDED)):
        with contextlib.suppress(OSError):  # nobody waits for this template any more
            control.send(json.dumps(told).encode())
    if why := told.get("why"):
        ours.close()
        return dict.fromkeys(wanted, f"the image's Python cannot be forked: {why}"), {}
    template.requests = ours
    return told["failed"], told["imported"]
