"""Parts of the host that a jail shows: of its root directory, searched once; files by which names
are resolved; and git's settings of the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

import trio

from nsm import git, paths
from nsm.dataclass import dataclass
from nsm.jail import landlock
from nsm.jail.etc_files import linked_files
from nsmd.model.values import ProjectMount

HOSTNAME = "nsm"
"""Name of the host in jails."""

_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

PYTHON_DIRECTORY = "/run/nsm/bin"
"""The last directory on PATH: it has `python` where the host has only `python3`."""

BASE_PATH = ("/usr/local/bin", "/usr/bin", "/bin", PYTHON_DIRECTORY)
"""PATH in a jail, after the interpreter's own directory."""

_ETC = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "ld.so.cache",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Files below /etc that every jail shows, besides those to which links of /usr lead: links between
alternatives, the loader's cache, the font configuration, and certificates. Never a whole /etc/ssl
or /etc/pki, which also hold private keys.
"""

_KEYS = "proc/keys"
"""This file names the keys that a user has in the kernel."""

_ADDRESSES = "proc/kallsyms"
"""This file has the addresses of the kernel's functions if `kernel.kptr_restrict` and
`kernel.perf_event_paranoid` have been lowered, else zeros. The template (`sandbox_template`) does
the same for forks.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSystem:
    """The base system that every jail of this host shows.

    Attributes:
        links: (target, path) of the top-level symlinks of a merged /usr, and of `python`.
        directories: top-level directories that a host without merged /usr has beside it.
        etc: paths below /etc that exist here.
        hidden: files below /proc with facts about the host's user that no namespace hides.
    """

    links: tuple[tuple[str, str], ...]
    directories: tuple[str, ...]
    etc: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def scan_host(root: str = "/") -> HostSystem:
    """Scan a host's root directory."""
    links: list[tuple[str, str]] = []
    directories: list[str] = []
    for name in _TOP_LEVEL:
        path = os.path.join(root, name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            links.append((os.readlink(path), f"/{name}"))
        elif stat.S_ISDIR(mode):
            directories.append(f"/{name}")
    links += _python(root)
    below = os.path.join(root, "etc")
    etc = tuple(f"/etc/{name}" for name in _ETC if os.path.exists(os.path.join(below, name)))
    etc += linked_files(etc, root)
    hidden = ("/" + _KEYS,) if os.path.exists(os.path.join(root, _KEYS)) else ()
    if _tells_addresses(os.path.join(root, _ADDRESSES)):
        hidden = (*hidden, "/" + _ADDRESSES)
    return HostSystem(links=tuple(links), directories=tuple(directories), etc=etc, hidden=hidden)


def _python(root: str) -> list[tuple[str, str]]:
    """Link by which `python` is found where only `python3` is: people and models type that."""
    places = ("/usr/local/bin", "/usr/bin")
    named = {
        name: [p for p in places if os.access(f"{root}{p}/{name}", os.X_OK)]
        for name in ("python", "python3")
    }
    if named["python"] or not named["python3"]:
        return []
    return [(f"{named['python3'][0]}/python3", f"{PYTHON_DIRECTORY}/python")]


def _tells_addresses(path: str) -> bool:
    """Return whether the file shows addresses; root may see more than code does."""
    try:
        with open(path, "rb") as file:
            return any(word.strip(b"0") for word in file.readline().split()[:1])
    except OSError:
        return False


MAX_FILE_BYTES = 256 * 1024
"""Largest part of a file that is copied; longer files are cut at a line."""

_NAMES = "passwd: files\ngroup: files\nhosts: files dns\n"


def network_files() -> Sequence[tuple[str, str]]:
    """Path and present content of the files by which names are resolved as on the host."""
    hosts = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"
    return (
        ("/etc/nsswitch.conf", _NAMES),
        ("/etc/hosts", hosts + _copied("/etc/hosts")),
        ("/etc/resolv.conf", _copied("/etc/resolv.conf")),
    )


def _copied(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return ""
    if len(data) > MAX_FILE_BYTES:
        data = data[: data.rfind(b"\n", 0, MAX_FILE_BYTES) + 1]
    return data.decode(errors="replace")


def open_sockets() -> str | None:
    """Return why a session with the host's network can reach abstract sockets of host programs;
    None if it cannot.
    """
    if landlock.version() >= landlock.SCOPES_SOCKETS:
        return None
    return (
        "code can connect to abstract Unix sockets of the host's programs: this kernel cannot shut "
        "them off (Landlock's scopes, Linux 6.12)"
    )


MAX_KEPT = 256
"""Projects whose answer is kept: git takes some 6 ms."""

KEPT_S = 60.0
"""Time for which it is. Only git knows which files it has read (`include`)."""


class GitSettings:
    """Content of `GIT_SETTINGS_PATH` for jails."""

    def __init__(self, search_path: str, variables: Mapping[str, str]) -> None:
        self._search_path = search_path
        self._variables = variables
        self._known: dict[str, tuple[float, str]] = {}  # until when, and what git has said

    async def of(self, project: ProjectMount | None) -> str:
        """Settings for a project; the user may have another address for it (`includeIf`)."""
        place = "" if project is None else project.path
        until, said = self._known.get(place, (0.0, ""))
        if trio.current_time() >= until:
            said = await trio.to_thread.run_sync(self._read_settings, place)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[place] = (trio.current_time() + KEPT_S, said)
        return said

    def _read_settings(self, place: str) -> str:
        program = paths.which("git", self._search_path, *([place] if place else []))
        if program is None or "HOME" not in self._variables:
            return git.jail_settings({})
        own = os.path.join(place, ".git") if place else ""
        return git.jail_settings(git.identity(program, self._variables, own))
