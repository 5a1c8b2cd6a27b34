"""`claudebox`: Claude Code in a box. All arguments but three are claude's."""

from __future__ import annotations

import gc
import os
import sys

_EXIT_INTERRUPTED = 130

_OWN = {"--yes": "yes", "--dry-run": "dry_run", "--check": "check"}
"""Taken wherever they stand before a `--`; claude has no options of these names."""


def main(argv: list[str] | None = None) -> int:
    """The console script. Returns the exit code, where it does not become claude."""
    gc.disable()  # a seventh of the time until this process is another program
    try:
        from nsmbox.cli import common  # noqa: PLC0415

        own, others = split(sys.argv[1:] if argv is None else argv)
        return common.guarded("claudebox", lambda: common.of_claude(own, others, os.environ))
    except KeyboardInterrupt:  # while modules are loaded
        return _EXIT_INTERRUPTED
    finally:
        gc.enable()


def split(arguments: list[str]) -> tuple[set[str], list[str]]:
    """Split claudebox's own arguments, by the names of `run.Way`, from claude's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = {_OWN[word] for word in arguments[:end] if word in _OWN}
    others = [word for place, word in enumerate(arguments) if place >= end or word not in _OWN]
    return own, others
