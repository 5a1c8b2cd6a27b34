"""Garbage-collector roots: links to what was built, which keep it in Nix's store.

`nix build --out-link` makes them, and registers each under its own name, so one is never renamed:
every build has a link of its own. An older one is removed when nothing of it is used any more.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection
from contextlib import suppress

log = logging.getLogger(__name__)

_LINK = re.compile(r"([0-9a-f]+)-(\d+)(?:-[A-Za-z0-9_+.-]+)?")
"""The last part is that of a further output, for which nix makes links too."""


class Roots:
    """The links in one directory. Its methods block for a moment.

    Args:
        directory: absolute; is made.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path(self, link: str) -> str:
        """Where a link is."""
        return os.path.join(self._directory, link)

    def fresh(self, key: str) -> str:
        """A name that no link of an environment has yet."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        numbers = [
            int(m[2]) for name in self._listed() if (m := _LINK.fullmatch(name)) and m[1] == key
        ]
        return f"{key}-{max(numbers, default=0) + 1}"

    def names(self) -> list[str]:
        """The links that there are."""
        return [name for name in self._listed() if _LINK.fullmatch(name)]

    def remove(self, links: Collection[str]) -> None:
        """Remove some links, and nothing that is none."""
        for name in links:
            path = self.path(name)
            with suppress(OSError):
                if os.path.islink(path):
                    os.unlink(path)
                    log.info("%s is no longer a garbage-collector root", path)

    def _listed(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except OSError:
            return []
