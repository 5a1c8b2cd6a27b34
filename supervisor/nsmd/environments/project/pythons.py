"""The Pythons that virtual environments of projects were made with, asked in the background."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import trio

from nsm.dataclass import dataclass, field
from nsmd.host.paths import printable
from nsmd.model.values import Environment

log = logging.getLogger(__name__)

RETRY_S = 60.0
"""Time after which a Python that did not work is asked again."""

FindPython = Callable[[str, Sequence[int]], Environment]
"""Makes the environment of the Python in a directory, given its version. Blocks."""


@dataclass(slots=True, kw_only=True)
class PythonAnswer:
    """Answer of a Python.

    Attributes:
        environment: None while it is asked.
        settled: set when it has answered.
        asked_s: time of the question.
    """

    environment: Environment | None = None
    settled: trio.Event = field(default_factory=trio.Event)
    asked_s: float = -math.inf


class Pythons:
    """The Pythons of virtual environments.

    Args:
        nursery: owns the questions.
        changed: called after each answer.
    """

    def __init__(self, nursery: trio.Nursery, changed: Callable[[], None]) -> None:
        self._find: FindPython = _find_none
        self._nursery = nursery
        self._changed = changed
        self._answers: dict[tuple[str, str], PythonAnswer] = {}

    def __repr__(self) -> str:
        return f"<Pythons {len(self._answers)}>"

    def configure(self, find: FindPython) -> None:
        """Ask all of them again, in this way."""
        self._find = find
        self._answers.clear()

    def ask(self, home: str, version: str) -> PythonAnswer:
        """Return what is known of the Python in a directory; ask it if that is nothing."""
        key, now = _key(home, version), trio.current_time()
        known = self._answers.get(key)
        if known is not None:
            answer = known.environment
            if answer is None or answer.problem is None or now - known.asked_s < RETRY_S:
                return known
        known = self._answers[key] = PythonAnswer(asked_s=now)
        self._nursery.start_soon(self._ask, known, self._find, *key)
        return known

    def under_way(self, home: str, version: str) -> trio.Event | None:
        """Event of the answer; None if the Python is not asked at the moment."""
        known = self._answers.get(_key(home, version))
        return known.settled if known is not None and known.environment is None else None

    async def ready(self) -> None:
        """Wait until none is asked any more."""
        for answer in list(self._answers.values()):
            await answer.settled.wait()

    async def _ask(self, python: PythonAnswer, find: FindPython, home: str, version: str) -> None:
        numbers = [int(number) for number in version.split(".")]
        try:
            answer = await trio.to_thread.run_sync(find, home, numbers)
        except Exception:
            # The only catch-all of a question: its errors concern nobody else.
            log.exception("asking the Python in %s failed inside the supervisor", printable(home))
            why = "nsm failed to ask its Python; the supervisor's log says more"
            answer = Environment(name="python", interpreter="python", problem=why)
        python.environment = answer
        python.settled.set()
        self._changed()


def _key(home: str, version: str) -> tuple[str, str]:
    return home, ".".join(version.split(".")[:2])


def _find_none(folder: str, _version: Sequence[int]) -> Environment:
    return Environment(name="python", interpreter="python", problem=f"{folder} is not looked at")
