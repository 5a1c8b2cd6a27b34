"""Configuration files of other programs: read with a bound, faults told in a sentence."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

MAX_FILE_BYTES = 1024 * 1024

TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""Words for yes in pip's configuration; uv and npm take some of them."""


def read_text(path: str, problems: list[str], *, required: bool = False) -> str | None:
    """Read a file; None if there is none, or it cannot be read.

    Args:
        problems: gets a sentence if it cannot be read.
        required: that there is none is a problem, too.
    """
    try:
        # Somebody may have put a FIFO there, at which a plain open would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                if path != os.devnull:
                    problems.append(f"{path} is no file")
                return None
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            problems.append(f"{path} is larger than {MAX_FILE_BYTES} bytes and was not read")
            return None
        return data.decode()
    except (FileNotFoundError, NotADirectoryError):
        if required:
            problems.append(f"{path} does not exist")
    except UnicodeDecodeError:
        problems.append(f"{path} is not in UTF-8 and was not read")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name is invalid"
        problems.append(f"{path} could not be read: {why}")
    return None


def expand(path: str, home: str) -> str:
    """Replace ``~`` at the beginning of a path."""
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    return path


def config_home(environ: Mapping[str, str], home: str) -> str:
    """Return the directory of the user's configuration files."""
    return environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")


def config_directories(environ: Mapping[str, str], etc: str) -> list[str]:
    """Return the directories of the machine's configuration files."""
    said = environ.get("XDG_CONFIG_DIRS") or os.path.join(etc, "xdg")
    return [each for each in said.split(":") if os.path.isabs(each)]


def to_seconds(text: str) -> float | None:
    """Parse a number of seconds; None if it is none, or out of bounds."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None


def to_count(text: str) -> int | None:
    """Parse a small number; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
