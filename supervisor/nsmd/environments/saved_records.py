"""Records that outlive the supervisor, in a small JSON file.

The file is replaced as a whole, so it is always the old one or the new one. A file that cannot be
read is set aside rather than overwritten, and the supervisor continues without. All functions
block.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from nsm.paths import replace_file
from nsm.wire.decode import DecodeError, decode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

VERSION = 1

MAX_FILE_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


def load(path: str, row_type: type[T], key: str, *, cure: str) -> list[T]:
    """Read a file; nothing if it is missing or broken."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("%s cannot be read (%s): what it records is forgotten", path, error)
        return []
    try:
        rows = _parse(data, key)
    except (ValueError, RecursionError) as error:
        aside = f"{path}.broken"
        log.warning("%s is broken (%s) and set aside as %s: %s", path, error, aside, cure)
        with suppress(OSError):
            os.replace(path, aside)
        return []
    found: list[T] = []
    for row in rows:
        try:
            found.append(decode(row_type, row))
        except DecodeError as error:
            log.warning("a record in %s is left out: %s", path, error)
    return found


def save(path: str, key: str, rows: Sequence[DataclassInstance]) -> None:
    """Replace a file, which is the user's alone.

    Raises:
        OSError: it cannot be written; the old one is unchanged.
    """
    data = {"version": VERSION, key: [asdict(row) for row in rows]}
    replace_file(path, json.dumps(data, indent=1).encode(), sync=True)


def _parse(data: bytes, key: str) -> list[Any]:
    """Parse a file. Raises ValueError if it is none."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
    saved = decode(dict[str, Any], json.loads(data))
    version = decode(int, saved.get("version"))
    if version > VERSION:
        raise ValueError(f"version {version}, from a newer nsm")
    return decode(list[Any], saved.get(key))
