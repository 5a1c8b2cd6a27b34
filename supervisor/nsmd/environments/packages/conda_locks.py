"""Locks of conda packages: their URLs and hashes, one a line.

conda, mamba and micromamba install from such a file, too (`create --file`). It is for one platform,
since their packages are.
"""

from __future__ import annotations

import hashlib
import platform
import re

from nsm.dataclass import dataclass
from nsmd.environments.packages.locks import LockError

PLATFORM = {"x86_64": "linux-64"}.get(platform.machine(), f"linux-{platform.machine()}")
"""This machine's platform, as conda calls it."""

FILE_NAME = r"(?P<name>[a-z0-9_][a-z0-9_.+-]*)-(?P<version>[^-/\s]+)-[^-/\s]+\.(?:conda|tar\.bz2)"
_URL = re.compile(
    rf"(?P<channel>https?://[^\s#?]+)/(?P<subdir>[a-z0-9]+(?:-[a-z0-9_]+)?)/(?P<file>{FILE_NAME})"
)
_PIN = re.compile(r"(?P<url>[^\s#]+)#sha256:(?P<sha256>[0-9a-f]{64})")
_WANTED = "# wanted: "
_HEAD = "@EXPLICIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPin:
    """One package.

    Attributes:
        channel: URL of its channel, without a slash at the end.
        place: its directory and file there.
    """

    channel: str
    place: str
    sha256: str

    @property
    def url(self) -> str:
        """URL of its file."""
        return f"{self.channel}/{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaLock:
    """Exact packages for one platform.

    Attributes:
        wanted_hash: hash of what was wanted; empty if the file does not say it.
        left_out: what a project's own lock has besides, and is not installed.
    """

    pins: tuple[CondaPin, ...]
    wanted_hash: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def body(self) -> str:
        """All pins, without comments."""
        return "".join(f"{pin.url}#sha256:{pin.sha256}\n" for pin in self.pins)

    @property
    def digest(self) -> str:
        """Hash of the pins."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    def text(self, name: str) -> str:
        """Make the file for an environment of that name."""
        return (
            f'# Exact packages of conda in nsm\'s environment "{name}", for {PLATFORM}.\n'
            "# nsm wrote this file, and installs what it says. To look for newer ones:\n"
            f"# nsm env update {name}\n"
            f"{_WANTED}{self.wanted_hash}\n{_HEAD}\n{self.body}"
        )


def parse(text: str) -> CondaLock:
    """Read a lock.

    Raises:
        LockError: a line is not a URL with a hash.
    """
    pins: list[CondaPin] = []
    wanted_hash = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(_WANTED):
            wanted_hash = line.removeprefix(_WANTED).strip()
        if line.startswith("#") or line == _HEAD:
            continue
        match = _PIN.fullmatch(line)
        if match is None:
            raise LockError(f"{line!r:.100} is not the URL of a package with #sha256:")
        pins.append(pin(match["url"], match["sha256"]))
    return lock(pins, wanted_hash)


def pin(url: str, sha256: str) -> CondaPin:
    """Make the pin of a package, checked.

    Raises:
        LockError: it is not the URL of one for this platform, or there is no hash.
    """
    match = _URL.fullmatch(url)
    if match is None or not url.isascii() or ".." in url:
        raise LockError(f"{url!r:.200} is not the URL of a package of conda")
    if match["subdir"] not in (PLATFORM, "noarch"):
        raise LockError(f"it has packages for {match['subdir']}, and this machine is {PLATFORM}")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise LockError(f"it has no hash (sha256) for {match['name']}")
    place = f"{match['subdir']}/{match['file']}"
    return CondaPin(channel=match["channel"], place=place, sha256=sha256)


def lock(pins: list[CondaPin], wanted_hash: str = "", left_out: tuple[str, ...] = ()) -> CondaLock:
    """Make a lock; the same packages in another order are the same lock."""
    ordered = tuple(sorted(set(pins), key=lambda each: each.url))
    return CondaLock(pins=ordered, wanted_hash=wanted_hash, left_out=left_out)
