"""A process that has a Python worker ready, and does nothing but fork it for a runner.

Memory that a fork shares is copied page by page, when either side first writes to it. A runner
writes to hundreds of pages for each program, and this process to some dozens.
"""

from __future__ import annotations

import _socket
import os
import signal
import struct

from sandbox.limits import apply_limits
from sandbox.linux import (
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    become_helper,
    clone_beside,
    dup_high,
    enter_directory,
    go_first_without_memory,
    prctl,
)
from sandbox.processes import signal_child
from sandbox.shared_page import SharedPage
from sandbox.workers.python.worker import run_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from sandbox.workers.python.worker import PythonWorker


FORK_ANSWER_S = 5
"""Time for a fork, which takes a millisecond: code may have stopped the process."""

REQUESTS_FD = 3
GIVEN = struct.Struct("3i")
ROOM_FOR_GIVEN = _socket.CMSG_SPACE(GIVEN.size)

MAX_PATH_BYTES = 4096


class ForkServer:
    """The runner's side. Raise OSError if there can be none.

    Attributes:
        pid: its process.
        page: that of all its forks: all processes of one have ended when the next one begins.
    """

    def __init__(self, worker: PythonWorker, limits: Mapping[str, int]) -> None:
        page_fd = SharedPage.make_file()
        try:
            self.page = SharedPage(page_fd)
        finally:
            os.close(page_fd)
        self._requests, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._requests.settimeout(FORK_ANSWER_S)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(theirs.fileno(), REQUESTS_FD, inheritable=False)
                become_helper({0, 1, 2, REQUESTS_FD}, parent)
                _serve_forks(worker, self.page, limits)
            finally:
                os._exit(1)
        theirs.close()

    def fork(self, given: Sequence[int], directory: str) -> int:
        """Have a worker made, a child of the runner, in a directory; it is given its ends of its
        output pipes and its control socket. Return its process id; 0 if it is to be started in
        another way."""
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, GIVEN.pack(*given))
        try:
            self._requests.sendmsg([os.fsencode(directory)], [rights])
            return int(self._requests.recv(MAX_PATH_BYTES))
        except (OSError, ValueError):  # code has killed or stopped it
            self._requests.close()
            signal_child(self.pid, signal.SIGKILL)  # else it could still fork, when it goes on
            return 0


def use_directory(path: str) -> None:
    """Have programs of this process put temporary files there: these go with the program."""
    os.environ["PWD"] = os.environ["TMPDIR"] = path


def _serve_forks(worker: PythonWorker, page: SharedPage, limits: Mapping[str, int]) -> NoReturn:
    """Fork for each request, until the runner ends."""
    requests = _socket.socket(fileno=REQUESTS_FD)
    os.chdir("/")  # nothing is to be imported from code's directory
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    go_first_without_memory()
    apply_limits(limits)  # if these leave no room for a fork, the runner starts Python itself
    end, _unread = _socket.socketpair()  # closed in each fork
    control_fd, _, out_fd, err_fd = worker.prepare_forks(dup_high(end.fileno()), page)
    places = ((1, out_fd), (2, err_fd), (control_fd,))
    while True:
        path, parts, _, _ = requests.recvmsg(MAX_PATH_BYTES, ROOM_FOR_GIVEN)
        if not path:
            os._exit(0)
        given = GIVEN.unpack(parts[0][2])
        try:
            pid = clone_beside()
        except OSError:
            pid = 0
        else:
            if pid == 0:
                _begin_fork(given, places, path)
                run_worker(worker)
        for fd in given:
            os.close(fd)
        requests.send(b"%d" % pid)


def _begin_fork(given: Sequence[int], places: Sequence[Sequence[int]], path: bytes) -> None:
    """Begin in a fork: descriptors and directory of its own."""
    try:
        os.setsid()
        for fd, numbers in zip(given, places):
            for number in numbers:
                os.dup2(fd, number, inheritable=number < REQUESTS_FD)
        os.closerange(REQUESTS_FD, max(given) + 1)
        # Only now may others look into this process: it held the socket for requests until here.
        prctl(PR_SET_DUMPABLE, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        directory = os.fsdecode(path)
        enter_directory(directory)
        use_directory(directory)
    except BaseException as error:
        os.write(2, f"cannot start Python: {error}\n".encode())
        os._exit(127)
