"""History of typed code, per environment: a file of JSON texts, one a line.

Several prompts may append at once: a line is one write to a file opened for appending. Whoever
finds it twice as long as it should be writes a new one.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from prompt_toolkit.history import History

from nsm import paths

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ENTRIES = 2000
MAX_ENTRY_CHARS = 32 * 1024
"""Longer code is not kept: it was pasted, and is in a file."""

_MAX_FILE_BYTES = 16 * 1024 * 1024
"""Largest part to read; the end counts."""


def history_path(env: str) -> str:
    """Path of an environment's history."""
    # Names are checked by the supervisor; this is in case it is another one's.
    return os.path.join(paths.state_dir(), "history-" + re.sub(r"[^A-Za-z0-9_.-]", "_", env))


class FileHistory(History):
    """The history in a file of mode 0600, which is made on first use; `problem` says why it could
    not be read or written, once that has happened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.problem: str | None = None

    def load_history_strings(self) -> Iterable[str]:
        """The newest first, each but once."""
        try:
            lines = self._lines()
            if len(lines) > 2 * MAX_ENTRIES:
                # A line that another prompt appends at this moment may be lost.
                paths.replace_file(self.path, b"\n".join([*lines[-MAX_ENTRIES:], b""]))
        except OSError as error:
            self.problem = str(error)
            return []
        entries = filter(None, map(_entry, reversed(lines)))
        return list(dict.fromkeys(entries))[:MAX_ENTRIES]

    def append_string(self, string: str) -> None:
        """Keep what was typed, unless it was the last thing as well."""
        if string != next(iter(self._loaded_strings), None):
            super().append_string(string)

    def store_string(self, string: str) -> None:
        """Append to the file."""
        if len(string) > MAX_ENTRY_CHARS:
            return
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self.path, flags, 0o600)
            try:
                os.write(file, json.dumps(string).encode("ascii") + b"\n")
            finally:
                os.close(file)
        except OSError as error:
            self.problem = str(error)

    def _lines(self) -> list[bytes]:
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _MAX_FILE_BYTES))
                return file.read(_MAX_FILE_BYTES).splitlines()
        except FileNotFoundError:
            return []


def _entry(line: bytes) -> str | None:
    """Read a line; None if it is damaged."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
