"""Locks: exact versions and hashes of an environment's packages.

A lock of Python packages is a requirements file. It begins with comments that say who wrote it, and
for which packages. pip and uv can install from it, too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.model.packages import normal_name
from nsmd.packages.text_files import TextFileError, read_text

OF_POETRY = (
    "nsm reads no locks of Poetry; `poetry export --with dev -o requirements.txt` writes the same "
    "versions and hashes as requirements"
)

MAX_LOCK_BYTES = 8 * 1024 * 1024
"""Largest lock to read, in some seconds. A `uv.lock` of 800 packages has 3 MiB."""

L = TypeVar("L")

_WANTED = "# wanted: "
_PIN = (
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[^\]\s]*\])?"
    r"==(?P<version>[A-Za-z0-9._+!-]+) ?(?:; ?(?P<marker>[^#]*))?"
)
_HASH = r"sha256:([0-9a-f]{64})"


class LockError(Exception):
    """A lock cannot be used; the message is a clause that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package: its normalized name, extras in brackets, a condition on the platform or Python,
    both perhaps empty, and hashes (SHA-256 in hexadecimal, sorted).
    """

    name: str
    version: str
    extras: str = ""
    marker: str = ""
    hashes: tuple[str, ...]

    @property
    def text(self) -> str:
        """Lines of this requirement in a lock."""
        marker = f" ; {self.marker}" if self.marker else ""
        head = f"{self.name}{self.extras}=={self.version}{marker}"
        return " \\\n    ".join([head, *(f"--hash=sha256:{each}" for each in self.hashes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Exact versions, with the hash of what was wanted; empty if the file does not say it."""

    pins: tuple[Pin, ...]
    wanted_hash: str = ""

    @property
    def body(self) -> str:
        """All pins, without comments."""
        return "".join(f"{pin.text}\n" for pin in self.pins)

    @property
    def digest(self) -> str:
        """Hash of the pins."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    def text(self, name: str) -> str:
        """Make the file for an environment of that name."""
        return (
            f'# Exact versions of the packages of nsm\'s environment "{name}".\n'
            "# nsm wrote this file, and installs what it says. Keep it beside config.toml, and\n"
            "# another machine gets the same versions. To look for newer ones:\n"
            f"# nsm env update {name}\n"
            f"{_WANTED}{self.wanted_hash}\n{self.body}"
        )


def parse(text: str) -> Lock:
    """Read a lock, or what a resolver printed in that format.

    Raises LockError if a line is not pinned, or has no hash.
    """
    pins: dict[tuple[str, str, str], Pin] = {}
    wanted_hash = ""
    for line in _logical_lines(text):
        if line.startswith("#"):
            if line.startswith(_WANTED):
                wanted_hash = line.removeprefix(_WANTED).strip()
            continue
        # In linear time: code of packages may have written it, and searches hold Python's lock.
        named, _, rest = " ".join(line.split()).partition(" --hash=")
        match = re.fullmatch(_PIN, named)
        hashes = [re.fullmatch(_HASH, each) for each in rest.split(" --hash=")]
        if match is None or not all(hashes):
            raise LockError(f"{line.strip()!r:.100} is not NAME==VERSION with --hash=sha256:")
        pin = Pin(
            name=normal_name(match["name"]),
            version=match["version"],
            extras=match["extras"] or "",
            marker=match["marker"] or "",
            hashes=tuple(sorted({each[1] for each in hashes if each is not None})),
        )
        pins[pin.name, pin.version, pin.marker] = pin
    return Lock(pins=tuple(pins[key] for key in sorted(pins)), wanted_hash=wanted_hash)


def read(path: str, parse: Callable[[str], L], *, follow: bool = False) -> L | None:
    """Read a lock file by a function for its text, or raise LockError; None if there is none.
    Blocks.

    `follow` is as of `read_text`.
    """
    try:
        return parse(read_text(path, MAX_LOCK_BYTES, follow=follow))
    except TextFileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise LockError(str(error)) from error


def write(path: str, text: str) -> None:
    """Write a lock file; if it cannot be written, the old one is unchanged. Blocks."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    paths.replace_file(path, text.encode())


def hash_of_wanted(parts: Mapping[str, object]) -> str:
    """Hash what somebody wants: plain values by name."""
    text = "\n".join(f"{key}={parts[key]!r}" for key in sorted(parts))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _logical_lines(text: str) -> Iterator[str]:
    """Lines that are not empty; those that a backslash continues are one."""
    yield from filter(str.strip, re.sub(r"\\\n[ \t]*", " ", text).splitlines())
