"""First process of a box: it starts the command.

Run as a file of its own by whatever Python there is (`python -I -S inside.py`), so it imports the
standard library only and nothing of nsm::

    inside.py [--stderr N] [--descriptors N] [--proxy SOCKET PORT] -- COMMAND [ARGUMENT...]

As process 1 it stays, reaps whoever is left to it, and ends as the command does: bwrap in its place
would show in the box what has made the box. Nobody in the box can look into it or read its command
line. Elsewhere (macOS) it becomes the command.

It gives the command the signals that the launcher has set aside (bwrap's own process must not die
of Ctrl-C, nor of SIGTERM before the command has) and, with `--proxy`, has the supervisor serve a
proxy in the box: a socket that listens on the box's own loopback is sent over the Unix socket
SOCKET, and serves whoever is in the box from then on, without any process here. With
`--descriptors` it sets a limit that is too small for bwrap, which makes the box. With `--stderr`
the descriptor N becomes stderr, which is bwrap's own until then.

Exit codes: of the command; 127 where there is none of that name, 126 where it cannot be started,
2 for wrong arguments, 1 where there is no proxy.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    import socket

PROXY_TIMEOUT_S = 30.0
"""Time limit for the supervisor's answer: it only has to take the socket, and a restart takes a
second.
"""

MAX_ANSWER_BYTES = 4096

TAKEN = b"ok\n"
"""The supervisor's answer once it serves; anything else is why it does not."""

_BACKLOG = 1024
"""Connections that wait without a slot of the proxy. Beyond that, the kernel has clients try again,
each time after twice as long.
"""

_NAME = b"nsm-box"
"""Text in the place of the command line of process 1."""

_PR_SET_DUMPABLE = 4  # linux/prctl.h

_SET_ASIDE = ("SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ")
"""By the launcher the first two, by Python itself the others."""

_USAGE = (
    "usage: inside.py [--stderr N] [--descriptors N] [--proxy SOCKET PORT] -- COMMAND [ARGUMENT...]"
)


def main(arguments: list[str]) -> int:
    """Prepare the box, then start the command."""
    if len(arguments) >= 2 and arguments[0] == "--stderr" and arguments[1].isdecimal():
        os.dup2(int(arguments[1]), 2)
        os.close(int(arguments[1]))
        arguments = arguments[2:]
    descriptors = 0
    if len(arguments) >= 2 and arguments[0] == "--descriptors" and arguments[1].isdecimal():
        descriptors = int(arguments[1])
        arguments = arguments[2:]
    place: tuple[str, int] | None = None
    if len(arguments) >= 3 and arguments[0] == "--proxy" and arguments[2].isdecimal():
        place = arguments[1], int(arguments[2])
        arguments = arguments[3:]
    if len(arguments) < 2 or arguments[0] != "--":
        return _failed(_USAGE, 2)
    is_first = os.getpid() == 1
    if is_first:
        hide()
    if place is not None:
        try:
            offer_proxy(*place)
        except OSError as error:
            return _failed(
                f"the box's proxy cannot be reached: {error}. `nsm doctor` says whether the "
                "supervisor runs, and where its log is.",
                1,
            )
    if is_first:
        if command := os.fork():
            os._exit(wait(command))  # without the time that Python takes to end
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what process 1 alone holds
    if descriptors:
        limit_descriptors(descriptors)
    give_back_signals()
    return become(arguments[1:])


def hide() -> None:
    """Keep others of the same user out of this process, and its command line from all."""
    import ctypes  # noqa: PLC0415  # as process 1 alone

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        # proc_pid_stat(5): the name may have anything in it; arg_start and arg_end are 48 and 49.
        start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, _NAME, min(len(_NAME), end - start - 1))


def wait(command: int) -> int:
    """Reap children until the command has ended; its exit code, as a shell has it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def give_back_signals() -> None:
    """Set signals to what a program expects at its start."""
    for name in _SET_ASIDE:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Blocked for bwrap's sake (`nsmbox.start.relay`). Whoever ignores them (nohup) goes on to.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})


def limit_descriptors(most: int) -> None:
    """Limit the descriptors of this process, and of the command."""
    import resource  # noqa: PLC0415  # most have no use for it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), min(hard, most)))


def offer_proxy(path: str, port: int) -> None:
    """Have a proxy served on this port of the box's own loopback.

    Raises:
        OSError: the port is taken, there is no loopback, or nobody takes the socket; says which.
    """
    import socket  # noqa: PLC0415  # most have no use for it

    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as supervisor,
    ):
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise OSError(f"port {port} of the loopback: {error.strerror}") from error
        supervisor.settimeout(PROXY_TIMEOUT_S)
        try:
            supervisor.connect(path)
            socket.send_fds(supervisor, [b"\n"], [listener.fileno()])
            answer = _line(supervisor)
        except TimeoutError:
            raise OSError(f"no answer on {path} for {PROXY_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise OSError(f"{path}: {error.strerror or error}") from error
    if answer != TAKEN:
        why = answer.decode(errors="replace").strip()
        raise OSError(why or f"the connection to {path} was closed without an answer")


def _line(connection: socket.socket) -> bytes:
    """All up to the first end of line, or to the end of what comes."""
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < MAX_ANSWER_BYTES:
        data = connection.recv(MAX_ANSWER_BYTES)
        if not data:
            break
        answer += data
    return answer


def become(command: list[str]) -> int:
    """Replace this process by a command; returns an exit code only where that fails."""
    try:
        os.execvp(command[0], command)  # noqa: S606 - that is what this is for
    except FileNotFoundError:
        return _failed(f"{command[0]}: no such program in the box, or what it starts with", 127)
    except OSError as error:
        import shutil  # noqa: PLC0415  # takes a third of the start

        if "/" not in command[0] and shutil.which(command[0]) is None:
            # execvp(3) tells of a directory of PATH that may not be read, not of no program.
            return _failed(f"{command[0]}: no such program in the box", 127)
        return _failed(f"{command[0]} cannot be started in the box: {error.strerror}", 126)


def _failed(message: str, exit_code: int) -> int:
    sys.stderr.write(f"nsm box: {message}\n")
    return exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
