"""A real supervisor in a directory of its own, for tests that go the whole way."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import nsm
from nsm.cli import main as cli
from nsm.paths import supervisor_command
from nsm.startup.spawn import detached
from rungates import of_run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

END_TIMEOUT_S = 120
_UCRED = struct.Struct("3i")
COMMAND_TIMEOUT_S = 180


class Supervisor:
    """A running supervisor and what is needed to use it.

    Attributes:
        variables: environment for programs that are to find it.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.socket = str(directory / "control.sock")
        self.log = directory / "log"
        self.variables = variables_for(directory)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kill it, as nothing it could handle does."""
        self.process.kill()
        self.process.wait()

    def client(self, scope: str = "test") -> nsm.Client:
        return nsm.Client(socket_path=self.socket, scope=scope, autostart=False)

    def async_client(self, scope: str = "test") -> nsm.AsyncClient:
        return nsm.AsyncClient(socket_path=self.socket, scope=scope, autostart=False)

    def descendants(self) -> set[int]:
        """Process ids of everything below the supervisor."""
        return descendants(self.pid)

    def run(
        self, *command: str, stdin: str = "", cwd: str | Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of nsm's programs against it, to its end."""
        return run(*command, variables=self.variables, stdin=stdin, cwd=cwd)


class _Detached(Supervisor):
    """A supervisor that is no child of this process."""

    def __init__(self, directory: Path, pid: int) -> None:
        super().__init__(cast("subprocess.Popen[bytes]", None), directory)
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid


def _configure(directory: Path, config: str) -> None:
    if config:
        (directory / "config" / "nsm").mkdir(parents=True)
        (directory / "config" / "nsm" / "config.toml").write_text(config)


@contextmanager
def detached_supervisor(directory: Path, *, config: str = "") -> Generator[Supervisor]:
    """Start one by a program that ends: other tests see to it that they leave no child."""
    directory.chmod(0o700)
    _configure(directory, config)
    reader, writer = os.pipe()
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [*detached(), *supervisor_command(), "--ready-fd", str(writer)],
            env=variables_for(directory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            cwd="/",
            start_new_session=True,
            check=True,
        )
    os.close(writer)
    with open(reader, "rb") as ready:
        assert ready.readline() == b"\n", (directory / "log").read_text()
    with nsm.Client(socket_path=str(directory / "control.sock"), autostart=False) as client:
        it = _Detached(directory, client.status().pid)
    yield it
    fds = _held(it.descendants())
    end_supervisor(it.socket)
    wait_gone(fds)


CRASHED = 1
"""Exit code of a supervisor in which a task has failed."""


def program(name: str) -> str:
    """The console script of that name in this environment."""
    return str(Path(sys.executable).parent / name)


def write_program(path: Path, code: str) -> None:
    """Write a program in Python that has nsm at hand.

    The shell runs its first lines: behind ``#!`` the path of Python must not have a space.
    """
    path.write_text(f"""#!/bin/sh
'''exec' "{sys.executable}" -P "$0" "$@"
' '''
{code}""")
    path.chmod(0o755)


IN_PROCESS = frozenset(
    "apply cp diff discard drain env events exec fork inspect interrupt jobs kill logs map net "
    "port ps reload replay restore run save secrets shutdown status tree undo".split()
)
"""Verbs that need no process of their own: they neither become another program nor ask a person."""


def run(
    *command: str, variables: Mapping[str, str], stdin: str = "", cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of ours with nothing of our own environment but what is given."""
    done = run_bytes(*command, variables=variables, stdin=stdin.encode(), cwd=cwd)
    texts = (data.decode().replace("\r\n", "\n") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, *texts)


def run_bytes(
    *command: str, variables: Mapping[str, str], stdin: bytes = b"", cwd: str | Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program of ours.

    Where nothing else runs in this process, verbs of `nsm` are called in it, which takes a tenth
    of the time.
    """
    if command[0] == "nsm" and command[1] in IN_PROCESS and threading.active_count() == 1:
        return _in_process(command, variables, stdin, cwd)
    return subprocess.run(
        [program(command[0]), *command[1:]],
        env=dict(variables),
        cwd=cwd,
        capture_output=True,
        input=stdin,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def _in_process(
    command: Sequence[str], variables: Mapping[str, str], stdin: bytes, cwd: str | Path | None
) -> subprocess.CompletedProcess[bytes]:
    """Call `nsm` with descriptors, an environment and a directory as a process of its own has."""
    before, here = dict(os.environ), os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    temporary = tempfile.tempdir
    streams = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        for stream in streams[1:]:
            stream.flush()
        kept = [os.dup(number) for number in range(3)]
        try:
            for number, file in enumerate(files):
                os.dup2(file.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = (
                stack.enter_context(open(number, mode, closefd=False))
                for number, mode in enumerate(("r", "w", "w"))
            )
            os.environ.clear()
            os.environ.update(variables)
            tempfile.tempdir = None
            if cwd is not None:
                os.chdir(cwd)
            try:
                code: object = cli.main(list(command[1:]))
            except SystemExit as end:
                code = end.code
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
            tempfile.tempdir = temporary
            for number, descriptor in enumerate(kept):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(before)
            os.fchdir(here)
            os.close(here)
        for file in files[1:]:
            file.seek(0)
        out, err = (file.read() for file in files[1:])
    return subprocess.CompletedProcess(command, code if isinstance(code, int) else 1, out, err)


def variables_for(directory: Path) -> dict[str, str]:
    """An environment in which everything of nsm's is in that directory."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "NSM_SOCKET": str(directory / "control.sock"),
        "XDG_STATE_HOME": str(directory / "state"),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "LANG": "C.UTF-8",
        **of_run(),
    }


@contextmanager
def supervisor(
    directory: Path | None = None,
    *,
    config: str = "",
    variables: Mapping[str, str] | None = None,
    limits: str = "",
    within: Sequence[str] = (),
    keep: bool = False,
) -> Generator[Supervisor]:
    """Start one, wait until it answers, and see that it leaves nothing behind.

    Args:
        directory: private and with a short name (a socket's path has at most 107 bytes); None for
            one that goes with it.
        config: text of its `config.toml`.
        variables: on top of `variables_for`.
        limits: arguments of the shell's `ulimit` for it.
        within: a command that becomes what follows it, as `restricted_mounts.command`.
        keep: what it leaves when it is killed or fails is for another one, in a block around
            this one.
    """
    if directory is None:
        with (
            tempfile.TemporaryDirectory(prefix="nsm-") as path,
            supervisor(
                Path(path), config=config, variables=variables, limits=limits, within=within
            ) as it,
        ):
            yield it
        return
    directory.chmod(0o700)
    _configure(directory, config)
    reader, writer = os.pipe()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(["/bin/sh", "-c", f'ulimit {limits} && exec "$@"', "sh"] if limits else []),
                *within,
                *(*supervisor_command(), "--ready-fd", str(writer)),
            ],
            env=variables_for(directory) | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            cwd="/",
            start_new_session=True,
        )
    os.close(writer)
    with open(reader, "rb") as ready:
        line = ready.readline()
    it = Supervisor(process, directory)
    try:
        assert line == b"\n", (line, it.log.read_text())
        yield it
    finally:
        remaining = it.descendants()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # at once; SIGTERM lets what runs finish
        code = process.wait(END_TIMEOUT_S)
        dropped = code in (-signal.SIGKILL, CRASHED)
        keep = keep and dropped
        kept = not keep and end_holder(directory)
        if keep:
            remaining = set[int]()
        elif dropped:
            # Everything ends by end-of-file, a moment later.
            wait_gone(_held(remaining))
        else:
            assert not kept, "the holder of sessions was left behind"
        left = {pid for pid in remaining if _alive(pid)}
        assert not left, f"left behind: {left}"


def holder_pid(link: socket.socket, directory: Path) -> int:
    """Connect to what holds the sessions of a supervisor, and return its process id.

    Args:
        directory: of the supervisor's socket.

    Raises:
        FileNotFoundError, ConnectionError: there is none.
    """
    link.connect(str(directory / "keeper.sock"))
    peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(peer)[0])


def end_holder(directory: Path) -> bool:
    """End what holds sessions for the supervisor after one that was killed.

    Args:
        directory: of the socket.

    Returns:
        Whether there was any.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            fds = _held([holder_pid(link, directory)])
            link.send(b"supervise")
            link.send(b"end")
            # Closed with its answer unread, the connection would lose what was not read there yet.
            link.settimeout(END_TIMEOUT_S)
            with suppress(ConnectionError):
                while link.recv(4096):
                    pass
        except (FileNotFoundError, ConnectionError):
            return False
    wait_gone(fds)
    return True


def end_supervisor(socket_path: str) -> None:
    """End whatever supervisor listens there, and wait until it has ended."""
    try:
        with nsm.Client(socket_path=socket_path, autostart=False) as client:
            fd = os.pidfd_open(client.status().pid)
            client.shutdown()
    except nsm.NotRunningError:
        return
    wait_gone([fd])


def descendants(root: int) -> set[int]:
    """Process ids of everything below a process, on the host."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
    found: set[int] = set()
    grown = True
    while grown:
        new = {p for p, parent in parents.items() if parent in found | {root}} - found
        grown = bool(new)
        found |= new
    return found


def wait_gone(fds: list[int]) -> None:
    """Wait until all these processes have ended, and close their descriptors.

    Args:
        fds: from `os.pidfd_open`.
    """
    try:
        for fd in fds:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(END_TIMEOUT_S * 1000), "a process is left"
    finally:
        for fd in fds:
            os.close(fd)


def _held(pids: Iterable[int]) -> list[int]:
    """Descriptors of those processes that are there."""
    held: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError):
            held.append(os.pidfd_open(pid))
    return held


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"
