"""Questions for a session and their right answers: pure, so that they can be tested themselves.

A session counts its executions in a variable, and writes each into a file of its own: the answer
says the number, the file says at the end what has really been run. So a lost answer, a doubled
execution, another's answer and a session that was quietly replaced are all told apart.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Literal

from soak.programs import SAY

TOKEN = re.compile(r"turn-[0-9a-f]{16}")
LEDGER = "/tmp/ledger"  # a jail's own

_COUNT = {
    "python": """
import time
n = globals().get("n", 0) + 1
with open("/tmp/ledger", "a") as ledger:
    print("{token}", n, file=ledger)
for step in range({steps}):
    print("{token}", "step", step, flush=True)
    time.sleep({pause_s})
print("{token}", n)
""",
    "bash": """
n=$((${{n:-0}} + 1))
echo "{token} $n" >>/tmp/ledger
for ((step = 0; step < {steps}; step++)); do
    echo "{token} step $step"
    sleep {pause_s}
done
echo "{token} $n"
""",
    "node": """
globalThis.n = (globalThis.n || 0) + 1;
require('fs').appendFileSync('/tmp/ledger', `{token} ${{n}}\\n`);
for (let step = 0; step < {steps}; step++) {{
    console.log('{token} step', step);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, {pause_s} * 1000);
}}
console.log('{token}', n);
""",
}

READ = {
    "python": "print(open('/tmp/ledger').read(), end='')",
    "bash": "cat /tmp/ledger",
    "node": "process.stdout.write(require('fs').readFileSync('/tmp/ledger', 'utf8'))",
}

Kind = Literal["ran", "ended", "refused", "unknown"]
"""ran: it was run; ended: its session has ended; refused: it certainly was not run; unknown: nobody
can say.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, whichever client got it.

    Attributes:
        text: standard output, or what the error says.
        streamed: what was told while the code ran.
        created: the session is new; `replaced`: what became of the one before, if that is said.
        restarted: why there is a new interpreter; empty where there is none.
    """

    kind: Kind
    text: str
    streamed: str = ""
    created: bool = False
    replaced: str | None = None
    restarted: str = ""
    failed: bool = False


class Wrong(AssertionError):  # noqa: N818  # reads better where it is raised
    """An answer or a ledger that must not be."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session or its interpreter has gone with what it knew, as somebody was told."""

    what: Literal["session", "interpreter"]
    told: str


@dataclass(slots=True)
class Life:
    """One session, as its owner knows it.

    Attributes:
        begun: it has answered once.
        n: what it counted last; None where an execution was cut short, and may have counted.
    """

    env: str
    name: str
    begun: bool = False
    n: int = 0
    unsure: int = 0
    asked: dict[str, str] = field(default_factory=dict[str, str])
    answered: dict[str, int] = field(default_factory=dict[str, int])

    def ask(self, *, steps: int = 0, pause_s: float = 0.0) -> tuple[str, str]:
        """Code for the next turn, and the token that its answer has to carry."""
        token = f"turn-{secrets.token_hex(8)}"
        self.asked[token] = "asked"
        return token, _COUNT[self.env].format(token=token, steps=steps, pause_s=f"{pause_s:.2f}")

    def take(self, token: str, reply: Reply) -> Lost | None:
        """Check an answer.

        Returns:
            What was lost, as the answer tells it; None if nothing was.

        Raises:
            Wrong: it is not the answer to this question.
        """
        others = set(TOKEN.findall(f"{reply.text}\n{reply.streamed}")) - {token}
        if others:
            raise Wrong(f"another's output in the answer to {token}: {reply}")
        if reply.kind == "unknown":
            self.asked[token] = "unknown"
            self.unsure += 1
            return None
        if reply.kind == "refused":
            self.asked[token] = "refused"
            return None
        if reply.kind == "ended":
            self._forget()
            return Lost("session", reply.text)
        return self._ran(token, reply)

    def _ran(self, token: str, reply: Reply) -> Lost | None:
        lost: Lost | None = None
        if reply.created and self.begun:
            state = self.asked[token]
            self._forget()
            self.asked[token] = state
            lost = Lost("session", reply.replaced or "")
        elif reply.restarted:
            lost = Lost("interpreter", reply.restarted)
            self.n = self.unsure = 0
        self.begun = True
        lines = [line for line in reply.text.splitlines() if line.startswith(token)]
        if reply.failed or not lines or " step " in lines[-1]:
            if not reply.restarted:
                raise Wrong(f"no whole answer to {token}: {reply}")
            self.asked[token] = "unknown"
            self.n = self.unsure = 0  # the next one's interpreter starts from nothing
            return lost
        if len(lines) != len(set(lines)) or len(set(reply.streamed.splitlines())) != len(
            reply.streamed.splitlines()
        ):
            raise Wrong(f"doubled output in the answer to {token}: {reply}")
        n = int(lines[-1].split()[1])
        if not self.n < n <= self.n + 1 + self.unsure:
            raise Wrong(f"{token} is number {n}, {self._expected()}: {reply}")
        self.n, self.unsure = n, 0
        self.asked[token] = "answered"
        self.answered[token] = n
        return lost

    def _expected(self) -> str:
        most = self.n + 1 + self.unsure
        return f"not {self.n + 1}" + (f" to {most}" if self.unsure else "")

    def _forget(self) -> None:
        """Another session under the same name comes next."""
        self.begun = False
        self.n = self.unsure = 0
        self.asked.clear()
        self.answered.clear()

    def audit(self, text: str) -> None:
        """Compare the session's own file with what was answered.

        Raises:
            Wrong: something was run twice, or though it was refused, or was not run though it was
                answered, or not in order.
        """
        rows = [(line.split()[0], int(line.split()[1])) for line in text.splitlines()]
        tokens = [token for token, _ in rows]
        for token in tokens:
            if tokens.count(token) > 1:
                raise Wrong(f"{self.name}: {token} was run {tokens.count(token)} times")
            if token not in self.asked:
                raise Wrong(f"{self.name}: nobody asked for {token}")
            if self.asked[token] == "refused":
                raise Wrong(f"{self.name}: {token} was refused, and was run")
        numbers = dict(rows)
        for token, n in self.answered.items():
            if numbers.get(token) != n:
                raise Wrong(f"{self.name}: {token} said {n}, its ledger {numbers.get(token)}")
        order = [token for token in self.asked if token in numbers]
        if order != tokens:
            raise Wrong(f"{self.name}: run in the order {tokens}, asked in {order}")


def one_shot(env: str, token: str) -> str:
    """Code that says its token."""
    return SAY[env].format(token)
