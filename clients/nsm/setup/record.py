"""Record of the changes that `nsm setup` made, so that `--undo` takes back exactly that.

It is written before the files are: where a crash comes between, `--undo` finds less to take back.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from typing import TYPE_CHECKING

from nsm import paths
from nsm.setup.agents import TITLES
from nsm.setup.settings_file import SettingsFileError, read
from nsm.wire.decode import DecodeError, decode
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Splice(NamedTuple):
    """One change of a text.

    Attributes:
        start: place of both texts, in characters; None where somebody else has changed the file
            between this change and nsm's next.
    """

    start: int | None
    removed: str
    inserted: str


class ChangedFile(NamedTuple):
    """A file that was changed. No field has a default: a row that lacks its splices, as of an nsm
    before these, must not count as a file that is nsm's alone, and may be removed.

    Attributes:
        created: there was none before.
        digest: SHA-256 of what was written last.
        splices: the changes in order; none of a file that is nsm's alone.
        directories: that were made for it.
    """

    path: str
    created: bool
    digest: str
    splices: tuple[Splice, ...]
    directories: tuple[str, ...]


class _Record(NamedTuple):
    files: tuple[ChangedFile, ...]


def load(name: str) -> dict[str, ChangedFile]:
    """The files that were changed for an agent, by path.

    Raises:
        SettingsFileError: the record is damaged.
    """
    content = read(_path(name))
    if content is None:
        return {}
    try:
        return {file.path: file for file in decode(_Record, json.loads(content)).files}
    except (ValueError, RecursionError, DecodeError):
        raise SettingsFileError(
            f"the record {_path(name)} is damaged, or of another nsm: what it changed is unknown",
            hint="Remove what names nsm from the agent's files by hand, then that record.",
        ) from None


def save(name: str, files: dict[str, ChangedFile]) -> None:
    """Keep the record of an agent; remove it if there is nothing in it."""
    if not files:
        with suppress(FileNotFoundError):
            os.unlink(_path(name))
        return
    rows = [
        {**file._asdict(), "splices": [each._asdict() for each in file.splices]}
        for file in files.values()
    ]
    text = json.dumps({"files": rows}, indent=1)
    paths.replace_file(_path(name), text.encode("utf-8", "surrogatepass"), sync=True)


def of_others(name: str, path: str) -> dict[str, ChangedFile]:
    """A file of nsm's in the records of other agents, by their titles."""
    records = {title: load(other) for other, title in TITLES.items() if other != name}
    return {title: files[path] for title, files in records.items() if path in files}


@contextmanager
def locked(wait: Callable[[], None]) -> Generator[None]:
    """Let one `nsm setup` at a time do what is inside; `wait` is called if another is at it."""
    os.makedirs(paths.state_dir(), mode=0o700, exist_ok=True)  # private, as all want it later
    paths.ensure_private_dir(_directory())
    fd = os.open(f"{_directory()}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            wait()
            flock(fd, LOCK_EX)
        yield
    finally:
        os.close(fd)


def _directory() -> str:
    return os.path.join(paths.state_dir(), "setup")


def _path(name: str) -> str:
    return os.path.join(_directory(), f"{name}.json")
