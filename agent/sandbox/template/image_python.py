"""Workers of a container image's Python, forked from one that has imported modules already.

A template runs on the host's Python, so its forks are agents, and the image's Python would have to
start anew in each session. Instead a process beside the template, the *keeper*, starts it once,
confined as in a session, and has it import the modules. Then it has it fork. The kernel stops that
fork before its first instruction, and the keeper lets it never run: it is the *model*. All else of
the image's code ends. For each session the keeper has the model make a copy, which is carried,
stopped, into the namespaces that the session's agent names, gets descriptors of its own, and loses
all rights. Only then does it run (docs/explanation/decisions/0042).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time

from sandbox.framing import FrameError, MessageReader, encode_frame
from sandbox.linux import close_others, dup_high, go_first_without_memory
from sandbox.processes import read_processes, signal_child, signal_process
from sandbox.shared_page import SharedPage
from sandbox.template.kernel import CLONE_NEWNS, CLONE_NEWUSER, SetupError, call, libc, write_file
from sandbox.template.model_worker import ModelWorker
from sandbox.template.mounts import keep_mounts, make_root
from sandbox.template.preloading import COMMON, SINGLE_THREADED, one_line
from sandbox.template.session import drop_privileges
from sandbox.tracing.fork_checks import (
    KINDS,
    CannotForkError,
    check_filters,
    check_gpu,
    check_threads,
    filters_of,
    page_of,
)
from sandbox.tracing.ptrace import WALL, Traced, TracedEndedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.template.session import TemplateFacts


START_S = 15.0
"""Time for the image's Python to start, and to fork."""

IMPORT_S = 30.0
"""Time for one import. The supervisor waits for longer until it hears of the next."""

MAX_REQUEST = 64 * 1024
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
        self._added = [name for name in SINGLE_THREADED if name not in os.environ]
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
        os.environ.update(dict.fromkeys(self._added, "1"))
        os.environ["PWD"] = "/workspace"  # noqa: S105
        drop_privileges(template.last_capability, template.system_calls)
        words = ["-I", "-c", _START, template.agent.__file__, "--worker", *map(str, numbers)]
        os.execv(image["program"], [image["program"], *words])

    def begin(self) -> None:
        """Have it import what every template has."""
        self.run(_BEGIN.format(names=COMMON.split()), START_S)

    def import_module(self, name: str) -> str:
        """Have it import a module; returns why that failed, or an empty text."""
        return self.run(_IMPORT.format(name=name), IMPORT_S)

    def finish(self) -> None:
        """Have it do what is to be done before the first fork."""
        self.run(_END.format(names=self._added), START_S)

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
            check_gpu(self.pid)
            check_threads(self.pid)
            check_filters(self.pid, self.filters)
            page_of(self.pid)
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
                python.end()
                python.close()

    def _imported(self) -> _ImportingPython | None:
        """A Python with all modules but those that failed; None if one more is to be left out."""
        self._tell("")
        python = _ImportingPython(self._image, self._template)
        self.imported = {}
        done = False
        try:
            python.begin()
            if why := python.why_unforkable():
                raise NoImagePythonError(why)
            for name in self._wanted:
                if name in self.failed:
                    continue
                self._tell(name)
                began_s = time.monotonic()
                try:
                    why = python.import_module(name)
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
            python.finish()
            done = True
            return python
        finally:
            if not done:
                python.end()
                python.close()

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


def _heard(requests: socket.socket) -> Mapping[str, Any]:
    data = requests.recv(MAX_REQUEST)
    return json.loads(data) if data else {"why": "the process that keeps it has ended"}


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
    while "importing" in (told := _heard(ours)):
        with contextlib.suppress(OSError):  # nobody waits for this template any more
            control.send(json.dumps(told).encode())
    if why := told.get("why"):
        ours.close()
        return dict.fromkeys(wanted, f"the image's Python cannot be forked: {why}"), {}
    template.requests = ours
    return told["failed"], told["imported"]
