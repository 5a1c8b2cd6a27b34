"""Record of the changes that `nsm setup` made, so that `--undo` takes back exactly that.

A record names files, places in them, and what stood there before. It is written before the files
are: where a crash comes between, `--undo` finds less to take back.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, Literal

from nsm import paths
from nsm.dataclass import dataclass, field
from nsm.setup.agents import TITLES
from nsm.setup.files import SettingsFileError, read, record_dir

Did = Literal["set", "item", "file"]


@dataclass(slots=True, kw_only=True)
class Edit:
    """A change of one place in a file.

    Attributes:
        did: a value was set, an item was added, or the whole file is nsm's.
        keys: the place.
        value: what was put there.
        old: what stood there; None for nothing.
        made: how many of the keys, from outside, were there before.
    """

    did: Did
    keys: list[str]
    value: Any
    old: Any = None
    made: int = 0


@dataclass(slots=True, kw_only=True)
class ChangedFile:
    """A file that was changed.

    Attributes:
        path: of the file.
        created: there was none before.
        digest: SHA-256 of what was written.
        splice: place, removed and inserted text of all changes together; None where somebody else
            has changed the file between two of them.
        edits: the changes one by one.
        directories: that were made for it.
    """

    path: str
    created: bool
    digest: str
    splice: list[Any] | None
    edits: list[Edit]
    directories: list[str] = field(default_factory=list[str])


def load(name: str) -> dict[str, ChangedFile]:
    """The files that were changed for an agent, by path.

    Raises:
        SettingsFileError: the record is damaged.
    """
    content = read(_path(name))
    if content is None:
        return {}
    try:
        rows: list[dict[str, Any]] = json.loads(content)["files"]
        files = [
            ChangedFile(
                path=row["path"],
                created=row["created"],
                digest=row["digest"],
                splice=row["splice"],
                edits=[Edit(**edit) for edit in row["edits"]],
                directories=row["directories"],
            )
            for row in rows
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SettingsFileError(
            f"the record {_path(name)} is damaged, so nsm does not know what it has changed",
            hint="Remove what names nsm from the agent's files by hand, then that record.",
        ) from None
    return {file.path: file for file in files}


def save(name: str, files: dict[str, ChangedFile]) -> None:
    """Keep the record of an agent; remove it if there is nothing in it."""
    if not files:
        with suppress(FileNotFoundError):
            os.unlink(_path(name))
        return
    rows = [
        {
            "path": file.path,
            "created": file.created,
            "digest": file.digest,
            "splice": file.splice,
            "edits": [
                {key: getattr(edit, key) for key in ("did", "keys", "value", "old", "made")}
                for edit in file.edits
            ],
            "directories": file.directories,
        }
        for file in files.values()
    ]
    text = json.dumps({"version": 1, "files": rows}, indent=1)
    paths.replace_file(_path(name), text.encode("utf-8", "surrogatepass"), sync=True)


def of_others(name: str, path: str) -> dict[str, ChangedFile]:
    """A file of nsm's in the records of other agents, by their titles."""
    records = {title: load(other) for other, title in TITLES.items() if other != name}
    return {title: files[path] for title, files in records.items() if path in files}


def _path(name: str) -> str:
    return os.path.join(record_dir(), f"{name}.json")
