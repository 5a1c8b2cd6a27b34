"""Answers of a person to questions about a directory: `box-answers.json` in the state directory.

One for each directory and question: the last. As with agreements, a file that cannot be read holds
nothing, so that they are asked again.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import cast

from nsm import paths
from nsmbox.consent.agreements import read_own_file

MAX_ANSWERS = 256
"""The oldest are forgotten first."""


def path() -> str:
    """Path of the file of answers."""
    return os.path.join(paths.state_dir(), "box-answers.json")


def find(directory: str, question: str) -> bool | None:
    """The answer that was given; None if there is none."""
    return _read().get((directory, question))


def remember(directory: str, question: str, *, yes: bool) -> None:
    """Keep an answer in place of an earlier one.

    Raises:
        OSError: it cannot be kept.
    """
    paths.ensure_private_dir(paths.state_dir())
    place = os.open(paths.state_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)  # two boxes that are asked about at once
        kept = _read()
        kept.pop((directory, question), None)
        kept[directory, question] = yes
        rows = [[*key, answer] for key, answer in kept.items()][-MAX_ANSWERS:]
        paths.replace_file(path(), json.dumps({"version": 1, "answers": rows}).encode())
    finally:
        os.close(place)


def _read() -> dict[tuple[str, str], bool]:
    found: dict[tuple[str, str], bool] = {}
    try:
        rows = cast("list[list[object]]", json.loads(read_own_file(path()) or b"{}")["answers"])
        for directory, question, answer in rows:
            found[str(directory), str(question)] = answer is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found
