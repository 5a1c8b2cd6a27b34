"""Changes of a session in a project that is copied on write, as its jail passes them on."""

from __future__ import annotations

import os

from nsm.wire.errors import BadProjectError


class NoCopyError(BadProjectError):
    """A jail cannot have a project that is copied on write.

    Args:
        path: the project's.
        why: a sentence without its end.

    Attributes:
        why: as it was given.
    """

    def __init__(self, path: str, why: str) -> None:
        self._path = path
        self.why = why
        super().__init__(
            f"The project {path} cannot be shown copy-on-write (mode overlay) here: {why}.",
            hint="Use the mode readonly; `nsm doctor` says what overlay needs.",
        )

    def in_place_of_a_fork(self, reason: str) -> NoCopyError:
        """The same where the session was to be a fork, which could have had it.

        Args:
            reason: why it is none.
        """
        return NoCopyError(
            self._path, f"no session can be forked ({reason}), and in a jail of its own {self.why}"
        )


class ProjectCopy:
    """Descriptors of one session's overlay; they are what keeps its content when the jail is gone.

    Code changes what lies there at any time, and has made all of it: names, links, modes. Nothing
    in it is to be believed, followed or executed.

    Args:
        changed: directory of what was changed (overlayfs's upper layer); owned from now on.
        shown: the project as code sees it; owned from now on. None where only the jail has it.

    Attributes:
        applied: what has been brought to the host from it, by path: `st_ctime_ns` there.
    """

    __slots__ = ("applied", "changed", "shown")

    def __init__(self, changed: int, shown: int | None) -> None:
        self.changed = changed
        self.shown = shown
        self.applied: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ProjectCopy {self.changed}>"

    def duplicate(self) -> ProjectCopy:
        """The same with descriptors of its own, for whoever may outlast the jail.

        Raises:
            OSError: there are none left.
        """
        changed = os.dup(self.changed)
        try:
            return ProjectCopy(changed, None if self.shown is None else os.dup(self.shown))
        except OSError:
            os.close(changed)
            raise

    def close(self) -> None:
        """Close the descriptors; once."""
        os.close(self.changed)
        if self.shown is not None:
            os.close(self.shown)
