"""Cost of forked jails to the kernel alone: no agent, no frames, no checks.

Runs inside a bubblewrap jail, as a template would. Commands on standard input, one a line, each
answered by a line on standard output:

    time KIND                    milliseconds from the fork to its word
    rate KIND WINDOW SECONDS     forks a second with WINDOW of them in flight
    hold N                       N times two processes that have run a statement; "held" when they
                                 have, and then they wait for our end

KIND is "fork", a fork alone, or "session", a fork with the namespaces and mounts of a session.
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

# Numbers of the kernel's headers: linux/sched.h, linux/mount.h, linux/prctl.h.
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
EVERY_NAMESPACE = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
NOSUID_NODEV_NOEXEC = 2 | 4 | 8
RECURSIVE_PRIVATE = (1 << 14) | (1 << 18)
PR_SET_CHILD_SUBREAPER = 36

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise the errno of a C call that failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def put(path: str, text: str) -> None:
    """Write a file of /proc."""
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def mount(kind: str, target: str) -> None:
    """A new file system."""
    name, path = kind.encode(), target.encode()
    flags = ctypes.c_ulong(NOSUID_NODEV_NOEXEC)
    checked(libc.mount(name, path, name, flags, None), f"mount {target}")


def be_session() -> None:
    """In a forked child: go on as the first process of namespaces like a session's."""
    uid, gid = os.getuid(), os.getgid()
    checked(libc.unshare(EVERY_NAMESPACE), "unshare")
    put("/proc/self/setgroups", "deny")
    put("/proc/self/uid_map", f"{uid} {uid} 1")
    put("/proc/self/gid_map", f"{gid} {gid} 1")
    if os.fork():
        os._exit(0)
    flags = ctypes.c_ulong(RECURSIVE_PRIVATE)
    checked(libc.mount(None, b"/", None, flags, None), "mount /")
    for target in ("/workspace", "/tmp", "/dev/shm"):  # the jail's
        mount("tmpfs", target)
    mount("proc", "/proc")


def start(kind: str, said: int) -> None:
    """Fork one, which says "." when it is there and ends, or "!" with its reason on stderr."""
    if os.fork():
        return
    word = b"!"
    try:
        if kind == "session":
            be_session()
        word = b"."
    except OSError as error:
        os.write(2, f"fork_floor: {error}\n".encode())
    finally:
        os.write(said, word)
        os._exit(0)


def reap() -> None:
    """Collect those that have ended, those of theirs that came to us included."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def hear(heard: int) -> int:
    """Wait for words; how many came."""
    words = os.read(heard, 64)
    if b"!" in words:
        sys.exit(1)
    return len(words)


def time_one(kind: str, heard: int, said: int) -> float:
    """Fork one jail and return the seconds that it took."""
    started_s = time.perf_counter()
    start(kind, said)
    hear(heard)
    took_s = time.perf_counter() - started_s
    reap()
    return took_s * 1000


def rate(kind: str, window: int, seconds: float, heard: int, said: int) -> float:
    """Fork jails for some seconds, several at a time, and return how many started per second."""
    started_s = time.perf_counter()
    begun = done = 0
    while time.perf_counter() - started_s < seconds:
        while begun - done < window:
            start(kind, said)
            begun += 1
        done += hear(heard)
        reap()
    took_s = time.perf_counter() - started_s
    whole = done
    while done < begun:
        done += hear(heard)
    reap()
    return whole / took_s


def hold(number: int, heard: int, said: int) -> None:
    """Fork jails and keep them all."""
    waiting, alive = os.pipe()
    for _ in range(number):
        if os.fork() == 0:
            os.close(alive)
            os.fork()
            exec(compile("kept = 1", "<floor>", "exec"), {"__name__": "__main__"})
            os.write(said, b".")
            os.read(waiting, 1)  # end-of-file when the first process is gone
            os._exit(0)
    done = 0
    while done < 2 * number:
        done += hear(heard)


def main() -> int:
    """Answer commands until the end of the input."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    heard, said = os.pipe()
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "time":
            answer = str(time_one(arguments[0], heard, said))
        elif command == "rate":
            kind, window, seconds = arguments
            answer = str(rate(kind, int(window), float(seconds), heard, said))
        else:
            hold(int(arguments[0]), heard, said)
            answer = "held"
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
