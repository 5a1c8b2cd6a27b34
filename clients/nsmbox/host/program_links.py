"""The system's programs by name, but those that no box runs: a directory of links, kept.

A box whose PATH had `/usr/bin` in it would have `ssh` on it, masked though it is. So PATH has a
directory of the box's own with a link to each of the other programs. Some two thousand are more
than bwrap takes arguments for: they are made once in the user's cache, and shown read-only. They
are made again when a directory of programs has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator

from nsm import paths
from nsm.dataclass import dataclass
from nsmbox.model.plan import BoxError

KEYS = (
    *("gpg*", "ssh*", "scp", "sftp", "slogin", "dirmngr*", "pinentry*", "kbxutil", "keyboxd"),
    *("age", "age-*", "agenix", "rage", "rage-*", "tailscale*"),
)
"""Programs that hold keys, or are a way to other machines."""

USERS = ("sudo*", "su", "runuser", "pkexec", "doas", "visudo", "newgrp", "sg")
"""Ways to other users, where they are setuid: outside of the Nix store."""

CONTAINERS = (
    *("docker*", "podman*", "nerdctl", "containerd*", "ctr", "crictl", "buildah", "skopeo"),
)
"""Ways to other root directories."""


_ALL = frozenset((*KEYS, *USERS, *CONTAINERS))


def _beginnings(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:-1] for name in names if name.endswith("*"))


_BEGINNINGS = _beginnings(_ALL)
_BEGINNINGS_OF_KEYS = _beginnings(KEYS)


def is_forbidden(name: str) -> bool:
    """Return whether no box runs programs of this name."""
    # Of two thousand names in /usr/bin: fnmatch would take longer than all the rest.
    return name in _ALL or name.startswith(_BEGINNINGS)


def holds_keys(name: str) -> bool:
    """Return whether a program of this name must not be shown just for lying beside others on
    PATH."""
    return name in KEYS or name.startswith(_BEGINNINGS_OF_KEYS)


UNUSED_S = 30 * 24 * 3600
"""Time without any use by a box after which links are removed, when others are made."""

_BEGUN = ".begun-"
"""Suffix of a directory that is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """A directory of links.

    Attributes:
        directories: whose programs they lead to; of two of one name, to the first.
    """

    directories: tuple[str, ...]
    path: str


def look(directories: tuple[str, ...]) -> Links:
    """Find the place of the links to the programs of these directories, whether they are made or
    not.
    """
    known = hashlib.sha256(repr((KEYS, USERS, CONTAINERS)).encode())
    for directory in directories:
        try:
            status = os.stat(directory)
        except OSError as error:
            raise BoxError(f"{directory} cannot be looked at: {error.strerror}") from error
        known.update(os.fsencode(directory) + b"\0")
        known.update(f"{status.st_dev} {status.st_ino} {status.st_mtime_ns}\n".encode())
    path = os.path.join(paths.cache_dir(), "box-tools", known.hexdigest()[:32])
    return Links(directories=directories, path=path)


def make(links: Links) -> None:
    """Make them where they are not there, and note that they are used."""
    parent = os.path.dirname(links.path)
    try:
        paths.ensure_private_dir(parent)
        try:
            os.utime(links.path)
        except FileNotFoundError:
            _make(links, parent)
            _remove_unused(parent)
    except OSError as error:
        reason = error.strerror or str(error).partition(". ")[0]  # what it says of sockets goes
        raise BoxError(
            f"the links to programs that boxes have cannot be kept in {parent}: {reason}",
            hint="Make that directory writable for you, or set XDG_CACHE_HOME to another one.",
        ) from error


def _make(links: Links, parent: str) -> None:
    """Make the links in a temporary directory, then rename it: other boxes find all or none."""
    begun = os.path.join(parent, f"{_BEGUN}{os.getpid()}-{os.urandom(6).hex()}")
    os.mkdir(begun, 0o700)
    try:
        for name, target in _programs(links.directories):
            os.symlink(target, os.path.join(begun, name))
        os.rename(begun, links.path)
    except BaseException as error:
        _remove(begun)
        if isinstance(error, OSError) and os.path.isdir(links.path):
            return  # by somebody else, meanwhile
        raise


def _programs(directories: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for directory in directories:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.name in seen or is_forbidden(entry.name):
                continue
            # By another name it would be the same program.
            if entry.is_symlink() and is_forbidden(os.path.basename(os.path.realpath(entry.path))):
                continue
            seen.add(entry.name)
            yield entry.name, entry.path


def _remove_unused(parent: str) -> None:
    """Remove what no box has used for long, and what a box that was killed had begun."""
    oldest = time.time() - UNUSED_S
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        # Another box that starts now may have renamed or removed its own since it was listed.
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_mtime < oldest:
                _remove(path)


def _remove(directory: str) -> None:
    import shutil  # noqa: PLC0415  # once in a month

    # What another box removes at the same time is gone all the same.
    shutil.rmtree(directory, ignore_errors=True)
