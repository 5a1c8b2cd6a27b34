"""Verbs that the supervisor's program carries out by itself, without serving anyone."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def replace_us(*options: str) -> NoReturn:
    """Become `nsm-supervisor` with these options."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "nsmd", *options])  # noqa: S606
