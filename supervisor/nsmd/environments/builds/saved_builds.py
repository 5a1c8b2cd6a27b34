"""Record of built environments, which outlives the supervisor: a small JSON file.

The file is replaced as a whole, so it is always the old one or the new one. A file that cannot be
read is set aside rather than overwritten, and the supervisor continues without: `nsm env add` makes
everything again, quickly, since Nix's store still has the builds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

from nsm.dataclass import dataclass
from nsm.paths import replace_file
from nsm.wire.decode import Constraint, DecodeError, decode

log = logging.getLogger(__name__)

VERSION = 1

MAX_FILE_BYTES = 4 * 1024 * 1024


def _is_file_name(name: str) -> bool:
    return "/" not in name


def _is_key(key: str) -> bool:
    return key != "" and _is_file_name(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One environment.

    Attributes:
        key: names its files.
        reference: reference to its flake, as given.
        added: added by `nsm env add`; otherwise a variable or a file names it.
        given_name: name from the user; empty for its own.
        name: last known name.
        path: path in Nix's store; empty before it was built.
        link: file name of the garbage-collector root.
        built_s: Unix time of the build; 0 before.
        building: a build was running when this was written.
        interruptions: number of supervisors in a row that ended during a build.
        error: why the last build failed; else empty.
        used_s: Unix time when it was last wanted.
    """

    key: Annotated[str, Constraint(_is_key, "a file name")]
    reference: str
    added: bool = False
    given_name: str = ""
    name: str = ""
    path: str = ""
    link: Annotated[str, Constraint(_is_file_name, "a file name")] = ""
    built_s: float = 0.0
    building: bool = False
    interruptions: int = 0
    error: str = ""
    used_s: float = 0.0


class _Saved(NamedTuple):
    """The file."""

    version: int
    environments: list[Any]


def load(path: str) -> tuple[Remembered, ...]:
    """Read the file; nothing if it is missing or broken. Blocks."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        log.warning("%s cannot be read (%s): built environments are forgotten", path, error)
        return ()
    try:
        return _parse(data)
    except (ValueError, RecursionError) as error:
        aside = f"{path}.broken"
        log.warning(
            "%s is broken (%s) and set aside as %s: `nsm env add` makes its environments again",
            *(path, error, aside),
        )
        with suppress(OSError):
            os.replace(path, aside)
        return ()


def save(path: str, rows: Sequence[Remembered]) -> None:
    """Replace the file. Blocks.

    Raises:
        OSError: it cannot be written; the old one is unchanged.
    """
    data = {"version": VERSION, "environments": [asdict(row) for row in rows]}
    replace_file(path, json.dumps(data, indent=1).encode(), sync=True)


def _parse(data: bytes) -> tuple[Remembered, ...]:
    """Parse the file. Raises ValueError if it is none."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
    saved = decode(_Saved, json.loads(data))
    if saved.version > VERSION:
        raise ValueError(f"version {saved.version}, from a newer nsm")
    found: dict[str, Remembered] = {}
    for row in saved.environments:
        try:
            remembered = decode(Remembered, row)
        except DecodeError as error:
            log.warning("one of the built environments is not remembered: %s", error)
        else:
            found[remembered.key] = remembered
    return tuple(found.values())
