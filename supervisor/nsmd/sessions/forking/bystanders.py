"""Programs that run beside the interpreter of the original, while it is forked.

They stay with the original. Each enters a Landlock domain of its own, so that it cannot reach the
forks. In such a domain it cannot send signals to any other program either. So the fork is refused
if a program has started others, or was started by the interpreter: they may have to send signals.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from nsmd.sessions.forking.original import children_of, has_page, is_dead
from sandbox.carrying.looking import CannotForkError, proc_text
from sandbox.carrying.ptrace import Traced, TracedEndedError

_ROUNDS = 50
"""Looks at a program that makes threads while it is being stopped, one after another."""


class Bystanders:
    """Programs that run in a session beside its interpreter, stopped.

    Args:
        agent: PID 1 of the session.
        own: processes that are forked.

    Attributes:
        threads: their threads.
    """

    def __init__(self, agent: int, own: set[int]) -> None:
        self._agent, self._own = agent, own
        self._names: dict[int, str] = {}
        self.threads: list[Traced] = []

    @property
    def names(self) -> Sequence[str]:
        """Names of the programs, without those that are checkpoints."""
        return [
            f"program {name!r}, which stays with the original"
            for pid, name in self._names.items()
            if not has_page(pid)
        ]

    def stop(self) -> None:
        """Stop all of them.

        Raises:
            CannotForkError: one cannot be kept from the forks.
        """
        for _ in range(_ROUNDS):
            known = {thread.pid for thread in self.threads}
            fresh = [thread for thread in self._look() if thread not in known]
            if not fresh:
                return
            for thread in fresh:
                with suppress(ProcessLookupError, TracedEndedError):
                    self._stop(thread)
        raise CannotForkError("a program that runs in it makes threads all the time")

    def _stop(self, thread: int) -> None:
        try:
            traced = Traced.seize(thread)
        except PermissionError:
            name = proc_text(f"/proc/{thread}/comm").strip()
            raise CannotForkError(f"a program that runs in it ({name}) cannot be traced") from None
        self.threads.append(traced)
        try:
            traced.interrupt()
        except TracedEndedError:
            self.threads.remove(traced)
            raise

    def _look(self) -> Iterator[int]:
        """Threads of all of them.

        Raises:
            CannotForkError: one has started others, or was started by the interpreter.
        """
        for pid in children_of(self._agent):
            if pid in self._own:
                parent, others = "its interpreter", children_of(pid) - self._own
            elif is_dead(pid):
                continue
            else:
                with suppress(FileNotFoundError):
                    self._names[pid] = proc_text(f"/proc/{pid}/comm").strip()
                    yield from map(int, os.listdir(f"/proc/{pid}/task"))
                parent, others = self._names.get(pid, "a program"), children_of(pid)
            others = {each for each in others if not is_dead(each)}
            if others:
                names = sorted({proc_text(f"/proc/{each}/comm").strip() for each in others})
                raise CannotForkError(
                    f"{parent} has started other programs ({', '.join(names)[:200]}), which cannot "
                    "be kept from the fork without keeping them from each other"
                )

    def let_go(self) -> None:
        """Let all of them run."""
        for thread in self.threads:
            thread.let_go()
