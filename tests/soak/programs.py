"""The conformance cases' programs, as something to throw at sessions at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from conformance.cases import load_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.cases import Language

MAX_CODE = 100_000
"""Characters; the few cases about megabytes of code would be all that a random run does."""

SAY = {
    "python": "__import__('os').write(1, b'{}\\n')\n",
    "bash": "/usr/bin/printf '%s\\n' {}\n",
    "node": "require('fs').writeSync(1, '{}\\n');\n",
}
"""Says a token in the foreground before anything else happens, by the shortest way there is: many
of the programs replace `print`, `echo` and `console`, which then stay replaced."""


class Program(NamedTuple):
    """One step of a case.

    Attributes:
        env: where it runs.
        timeout_s: the limit that its case gives it, seconds.
    """

    case: str
    env: Language
    code: str
    timeout_s: float

    def saying(self, token: str) -> str:
        """The program, after it has told its token."""
        return SAY[self.env].format(token) + self.code


def programs(envs: Iterable[str]) -> list[Program]:
    """Every step of every case for these environments, as a program of its own."""
    wanted = set(envs)
    return [
        Program(case.id, step.language or case.language, step.code, step.timeout_s)
        for case in load_all()
        for step in case.steps
        if (step.language or case.language) in wanted
        and len(step.code) <= MAX_CODE
        and _is_text(step.code)
    ]


def _is_text(code: str) -> bool:
    """Lone surrogates cannot travel on the control socket; the cases about them test that."""
    try:
        code.encode()
    except UnicodeEncodeError:
        return False
    return True
