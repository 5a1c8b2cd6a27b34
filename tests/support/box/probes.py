"""Attempts to get out of a box: a program that runs in one, and without one.

Run as ``python3 -I -c SOURCE SETTING NAMES``: SETTING is JSON (see `box.attack`), NAMES the
probes to run, separated by commas, or nothing for all. It prints one JSON object: what each probe
got, or why it got nothing. Standard library only; nothing here knows whether there is a box around
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import shutil
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROBES: dict[str, Callable[[dict[str, Any]], object]] = {}

KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}
"""By machine; asm-generic/unistd.h and syscall_64.tbl."""
KEYCTL_SEARCH, SESSION_KEYRING = 10, -3
"""linux/keyctl.h"""
NEWUSER = 0x1000_0000

UP = tuple("/.." * depth for depth in range(6))
"""Paths that lead from a directory to what may be the host's root."""


class FoundNothingError(Exception):
    """Error of a probe that found nothing to take."""


def probe(function: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    """A probe, under its function's name: it returns what it got, or raises."""
    PROBES[function.__name__.replace("_", "-")] = function
    return function


def _taken(texts: list[str]) -> list[str]:
    if not texts:
        raise FoundNothingError
    return texts


def _read_all(paths: list[str], marker: str) -> list[str]:
    got: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            if marker in file.read():
                got.append(path)
    return _taken(got)


def _each_process(file: str) -> list[tuple[int, bytes]]:
    got: list[tuple[int, bytes]] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}", "rb") as opened:
            got.append((int(pid), opened.read()))
    return got


@probe
def secrets_in_home(setting: dict[str, Any]) -> object:
    """Keys, logins and other projects, where people have them."""
    home = setting["home"]
    return _read_all([f"{home}/{path}" for path in setting["secrets"]], setting["marker"])


@probe
def secrets_by_another_way(setting: dict[str, Any]) -> object:
    """The same files, by a path of the host that leads to HOME, too."""
    home = setting["home_on_host"]
    return _read_all([f"{home}/{path}" for path in setting["secrets"]], setting["marker"])


@probe
def secrets_by_links_in_the_project(setting: dict[str, Any]) -> object:
    """The same files, by links that lie in the working directory."""
    made: list[str] = []
    for number, path in enumerate(setting["secrets"]):
        link = f"probe-link-{number}"
        os.symlink(f"{setting['home']}/{path}", link)
        made.append(link)
    try:
        return _read_all(made, setting["marker"])
    finally:
        for link in made:
            os.unlink(link)


@probe
def secrets_by_other_processes(setting: dict[str, Any]) -> object:
    """The same files, by what other processes have as their root."""
    roots = [f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdigit()]
    paths = [f"{root}{setting['home']}/{path}" for root in roots for path in setting["secrets"]]
    return _read_all(paths, setting["marker"])


@probe
def secrets_by_open_descriptors(setting: dict[str, Any]) -> object:
    """Descriptors that the shell which started the box had open."""
    got: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            directory = os.open("..", os.O_RDONLY, dir_fd=int(descriptor))
            got += [name for name in os.listdir(directory) if name == "credentials"]
            os.close(directory)
            got += [n for n in os.listdir(int(descriptor)) if n in (".ssh", "credentials")]
    return _taken(got)


@probe
def secrets_by_descriptors_of_others(setting: dict[str, Any]) -> object:
    """Descriptors of other processes, including the parents that made the box."""
    home = setting["home"]
    held = [f"/proc/{pid}/fd" for pid in os.listdir("/proc") if pid.isdigit()]
    paths: list[str] = []
    for directory in held:
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(directory):
                way = f"{directory}/{descriptor}"
                paths += [f"{way}/credentials", *(f"{way}{up}{home}/.aws/credentials" for up in UP)]
    return _read_all(paths, setting["marker"])


@probe
def environment_of_processes(setting: dict[str, Any]) -> object:
    """Variables of any process, those of whoever started the box included."""
    marker = setting["marker"].encode()
    found = [
        entry.decode(errors="replace")
        for _, text in _each_process("environ")
        for entry in text.split(b"\0")
        if marker in entry
    ]
    return _taken(found)


@probe
def processes_of_the_host(setting: dict[str, Any]) -> object:
    """Another process, by its command line."""
    victim = setting["victim"].encode() + b"\0"
    return _taken([f"{p}" for p, text in _each_process("cmdline") if text.endswith(victim)])


@probe
def maker_of_the_box(setting: dict[str, Any]) -> object:
    """Words of whatever made the box: its name, its command line, its program."""
    named = [
        f"/proc/{pid}/{file}"
        for file in ("cmdline", "comm", "environ", "maps")
        for pid, text in _each_process(file)
        if pid != os.getpid() and (b"bwrap" in text or b"bubblewrap" in text)
    ]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if "bwrap" in os.readlink(f"/proc/{pid}/exe"):
                named.append(f"/proc/{pid}/exe")
    return _taken(named)


@probe
def signal_to_the_starters_group(setting: dict[str, Any]) -> object:
    """The end of processes of the same process group that were started beside the box."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(0, signal.SIGUSR1)
    return "sent"  # whether somebody got it is the host's to say


@probe
def sockets(setting: dict[str, Any]) -> object:
    """Agents, docker, D-Bus, display: where people have them and where variables say."""
    paths = dict(setting["sockets"])
    for name in ("SSH_AUTH_SOCK", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS"):
        if name in os.environ:
            paths[name] = os.environ[name].rpartition("=")[2].rpartition("unix://")[2]
    got: list[str] = []
    for name, path in paths.items():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            got.append(name)
    return _taken(got)


@probe
def abstract_socket(setting: dict[str, Any]) -> object:
    """A socket without a file, as X11 and some D-Bus have."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + setting["abstract"])
    return "connected"


@probe
def loopback(setting: dict[str, Any]) -> object:
    """A server on the host's loopback."""
    with socket.create_connection(("127.0.0.1", setting["port"]), timeout=5):
        return "connected"


@probe
def key_of_the_starter(setting: dict[str, Any]) -> object:
    """A key in the kernel's keyring of whoever started the box: file systems, Kerberos."""
    number = ctypes.c_long(KEYCTL_NUMBERS[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    name = setting["key"].encode()
    key = libc.syscall(number, KEYCTL_SEARCH, SESSION_KEYRING, b"user", name, 0)
    if key < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return key


@probe
def user_namespace(setting: dict[str, Any]) -> object:
    """A namespace of its own, in which it would be root towards the kernel."""
    child = os.fork()
    if child == 0:
        failed = ctypes.CDLL(None).unshare(NEWUSER)
        os._exit(1 if failed else 0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise FoundNothingError
    return "made"


@probe
def more_privileges(setting: dict[str, Any]) -> object:
    """Programs with a set-user-ID bit take effect."""
    with open("/proc/self/status") as file:
        given_up = [line.split()[1] for line in file if line.startswith("NoNewPrivs:")]
    if given_up != ["0"]:
        raise FoundNothingError
    return "not given up"


@probe
def memory_of_the_host(setting: dict[str, Any]) -> object:
    """A file in /dev/shm."""
    return _read_all([setting["shared_memory"]], setting["marker"])


@probe
def writing_outside(setting: dict[str, Any]) -> object:
    """Files that run when Ada logs in, and others; the host says which came to be."""
    return _write_all([f"{setting['home']}/{p}" for p in setting["outside"]], setting["mark"])


@probe
def writing_outside_by_links(setting: dict[str, Any]) -> object:
    """The same, by links in the working directory."""
    got: list[str] = []
    for number, path in enumerate(setting["outside"]):
        link = f"probe-out-{number}"
        os.symlink(f"{setting['home']}/{path}", link)
        got += _written([link], setting["mark"])
        os.unlink(link)
    return _taken(got)


@probe
def writing_to_guarded(setting: dict[str, Any]) -> object:
    """Files of the project that run on the host later: hooks, configuration of editors and MCP."""
    return _write_all(setting["guarded"], setting["mark"])


@probe
def replacing_guarded(setting: dict[str, Any]) -> object:
    """The same, by putting others in their places: what is there is moved away or removed."""
    got: list[str] = []
    for path in setting["guarded"]:
        parts = path.split("/")
        places = ["/".join(parts[:depth]) for depth in range(len(parts), 0, -1)]
        if any(map(_moved_away, places)):
            got += _written([path], setting["mark"])
    return _taken(got)


@probe
def making_absent(setting: dict[str, Any]) -> object:
    """Such files that are not there when the box starts: agents, editors, shells, hooks."""
    return _write_all(setting["absent"], setting["mark"])


@probe
def making_absent_in_other_ways(setting: dict[str, Any]) -> object:
    """The same, by renames of files and directories above them, and by links of both kinds."""
    got: list[str] = []
    for path in setting["absent"]:
        first = path.split("/")[0]
        with contextlib.suppress(OSError):
            shutil.rmtree(first)
        with contextlib.suppress(OSError):
            os.unlink(first)
        aside = f"aside/{path}"
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        with open(aside, "w") as file:
            file.write(setting["mark"])
        for way in (os.rename, os.symlink, os.link):
            with contextlib.suppress(OSError):
                way(os.path.abspath(f"aside/{first}"), first)
        with contextlib.suppress(OSError), open(path) as file:
            if file.read() == setting["mark"]:
                got.append(path)
    return _taken(got)


@probe
def room_in_memory(setting: dict[str, Any]) -> object:
    """More room for files than a box has by default; those in memory take it from all programs."""
    got: list[str] = []
    for path in (setting["home"], "/tmp", "/var/tmp", "/dev/shm", "/dev", "/run", "/"):
        with contextlib.suppress(OSError):
            found = os.statvfs(path)
            if os.access(path, os.W_OK) and found.f_blocks * found.f_frsize > setting["room"]:
                got.append(path)
    return _taken(got)


@probe
def inotify_of_the_user(setting: dict[str, Any]) -> object:
    """More than half of the inotify instances that the user has."""
    libc = ctypes.CDLL(None)
    held: list[int] = []
    try:
        while len(held) <= setting["inotify"] and (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
            held.append(fd)
    finally:
        for fd in held:
            os.close(fd)
    if len(held) <= setting["inotify"]:
        raise FoundNothingError
    return len(held)


@probe
def processes_without_end(setting: dict[str, Any]) -> object:
    """More processes than a box has by default."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if most != resource.RLIM_INFINITY and most <= setting["processes"]:
        raise FoundNothingError
    return most


def _moved_away(path: str) -> bool:
    try:
        os.rename(path, f"{path}-away")
    except OSError:
        return False
    return True


def _written(paths: list[str], mark: str) -> list[str]:
    got: list[str] = []
    for path in paths:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "a") as file:
                file.write(mark)
            got.append(path)
    return got


def _write_all(paths: list[str], mark: str) -> list[str]:
    return _taken(_written(paths, mark))


def main() -> None:
    """Run the probes that were asked for, and say what each got."""
    setting = json.loads(sys.argv[1])
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(PROBES)
    told: dict[str, dict[str, object]] = {}
    for name in names:
        try:
            told[name] = {"got": PROBES[name](setting)}
        except FoundNothingError:
            told[name] = {"failed": "nothing there"}
        except OSError as error:
            told[name] = {"failed": errno.errorcode.get(error.errno or 0, str(error))}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
