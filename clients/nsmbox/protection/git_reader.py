"""Configuration of a repository, as git itself reads it, in a jail that is thrown away.

The text is anybody's. So git gets it on standard input, follows no include, and runs with nothing
to write to, no network and no other process; the jail ends with it.
"""

from __future__ import annotations

import os

import nsm.git
from nsm.dataclass import dataclass
from nsmbox.protection import git_programs, git_repository

MAX_CONFIG_BYTES = 1024 * 1024

MAX_ASKED = 64
"""Largest number of different configurations that git is asked about."""


@dataclass(slots=True, kw_only=True)
class GitReader:
    """Asks git about configurations, about each text once.

    Attributes:
        bwrap: makes the jail; empty where there is none.
        git: None where there is none.
    """

    bwrap: str
    git: str | None
    _answers: dict[bytes, tuple[str, ...] | str]

    @classmethod
    def of(cls, bwrap: str, git: str | None) -> GitReader:
        """Make one that has not been asked yet."""
        return cls(bwrap=bwrap, git=git, _answers={})

    def running(self, data: bytes) -> tuple[str, ...] | str:
        """Return the entries by which git runs programs or reads other files, as `key = value`; a
        str says why nobody knows."""
        if data not in self._answers:
            if len(self._answers) >= MAX_ASKED:
                return f"git was asked about {MAX_ASKED} others, and not about this one"
            self._answers[data] = self._ask(data)
        return self._answers[data]

    def _ask(self, data: bytes) -> tuple[str, ...] | str:
        from subprocess import TimeoutExpired  # noqa: PLC0415 - where a box has left such a text

        if self.git is None or not self.bwrap:
            return "there is no git here to read it"
        jail = (
            *(self.bwrap, "--unshare-all", "--unshare-user", "--disable-userns"),
            *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--chdir", "/"),
        )
        try:
            done = nsm.git.run(
                self.git,
                ["config", "--file", "-", "--no-includes", "-z", "--list"],
                {"HOME": "/", "GIT_CONFIG_NOSYSTEM": "1"},
                timeout_s=git_repository.WAIT_S,
                before=[*jail, "--"],
                data=data,
            )
        except (OSError, ValueError, TimeoutExpired) as error:
            return f"git could not be asked: {error}"
        if done.returncode:
            return f"git cannot read it: {nsm.git.reason(done)}"
        fields = (entry.partition("\n") for entry in os.fsdecode(done.stdout).split("\0") if entry)
        return tuple(
            f"{key} = {value}" for key, _, value in fields if git_programs.runs(key, value)
        )
