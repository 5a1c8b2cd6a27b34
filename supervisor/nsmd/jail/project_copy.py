"""Overlays of sessions: how a jail passes on their changes, and reasons why there is no overlay."""

from __future__ import annotations

import os

from nsm.wire.errors import BadProjectError, StartFailedError


class NoCopyError(BadProjectError):
    """A jail cannot have an overlay of the project.

    Args:
        path: path of the project.
        why: reason, a sentence without its final dot.
        hint: what to do; None for what helps with most reasons.

    Attributes:
        why: the same reason.
    """

    def __init__(self, path: str, why: str, hint: str | None = None) -> None:
        self._path = path
        self.why = why
        super().__init__(
            f"The project {path} cannot be shown copy-on-write (mode overlay) here: {why}.",
            hint=hint or "Use the mode readonly; `nsm doctor` says what overlay needs.",
        )

    def in_place_of_a_fork(self, reason: str) -> NoCopyError:
        """Add that the session should have been a fork, which could have an overlay.

        Args:
            reason: why it is no fork.
        """
        why = f"no session can be forked ({reason}), and in a jail of its own {self.why}"
        return NoCopyError(self._path, why, self.hint)


class NoWritableRootError(StartFailedError):
    """A jail cannot have an overlay of an image's files as its root directory.

    Args:
        environment: name of the environment.
        why: reason, a sentence without its final dot.
    """

    def __init__(
        self, environment: str, why: str = "only forks of a template can have one"
    ) -> None:
        self._environment = environment
        super().__init__(
            f"Sessions of {environment!r} cannot have a writable root directory here: {why}.",
            hint='Without `root = "overlay"`, its files are read-only; `nsm doctor` says what '
            "forks and overlays need.",
        )

    def in_place_of_a_fork(self, reason: str) -> NoWritableRootError:
        """Replace the reason by why the session is no fork."""
        return NoWritableRootError(self._environment, reason.removesuffix("."))


class ProjectCopy:
    """Descriptors of one session's overlay; they keep its content when the jail is gone.

    Code has made all of the content, and may change it at any time: names, links, modes. Do not
    trust, follow or execute anything in it.

    Args:
        changed: directory of the changes (overlayfs's upper layer); owned from now on.
        shown: the project as code sees it; owned from now on. None if only the jail has it.

    Attributes:
        applied: changes that were applied to the host, by path, with `st_ctime_ns` there.
    """

    __slots__ = ("applied", "changed", "shown")

    def __init__(self, changed: int, shown: int | None) -> None:
        self.changed = changed
        self.shown = shown
        self.applied: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ProjectCopy {self.changed}>"

    def duplicate(self) -> ProjectCopy:
        """Duplicate the descriptors, for a task that may outlive the jail.

        Raises:
            OSError: there are no descriptors left.
        """
        changed = os.dup(self.changed)
        try:
            return ProjectCopy(changed, None if self.shown is None else os.dup(self.shown))
        except OSError:
            os.close(changed)
            raise

    def close(self) -> None:
        """Close the descriptors; call once."""
        os.close(self.changed)
        if self.shown is not None:
            os.close(self.shown)
