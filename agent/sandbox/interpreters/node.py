"""Node, with a program of ours that runs what it is sent."""

from __future__ import annotations

import json
import os
import time

from sandbox.interpreters.framed import FramedInterpreter
from sandbox.linux import restore_signals
from sandbox.resources import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


RUNNER = (
    text_of("workers/node/globals.js"),
    text_of("workers/node/questions.js"),
    text_of("workers/node/rewriting.js"),
    text_of("workers/node/types.js"),
    text_of("workers/node/writer.js"),
    text_of("workers/node/listener.js"),
    text_of("workers/node/inspector.js"),
    text_of("workers/node/output.js"),
    text_of("workers/node/input.js"),
    text_of("workers/node/modules.js"),
    text_of("workers/node/signals.js"),
    text_of("workers/node/errors.js"),
    text_of("workers/node/values.js"),
    text_of("workers/node/execution.js"),
    text_of("workers/node/completion.js"),
    text_of("workers/node/main.js"),
)
"""The program that Node runs, in one scope: each part may use the ones before it at once."""


def node_program() -> str:
    """Put the parts of the runner together, so that nothing of them is global."""
    return "'use strict';\n(() => {\n" + "\n".join(RUNNER) + "})();\n"


CONTROL_END_S = 1.0
"""Time limit for Node's process to end after its control socket; normally it ends at once."""


class NodeInterpreter(FramedInterpreter):
    """Node with `RUNNER`. It can't put descriptors back, so 1 and 2 must stay in place."""

    name = "node"
    CONTROL_FD = 3
    # Code that is interrupted in a timer or immediate leaves Node's book-keeping of asynchronous
    # contexts a level too deep; with the checks on, Node would abort over that.
    OPTIONS = ("--no-force-async-hooks-checks",)
    answers = ("check", "complete")
    reads_variables_at_start = True  # NODE_USE_ENV_PROXY, for one

    def become_program(self, control_fd: int) -> NoReturn:
        restore_signals()
        # Node marks what it inherits as close-on-exec, as far as descriptors are contiguous.
        os.dup2(control_fd, self.CONTROL_FD)
        os.execv(self.program, [self.program, *self.OPTIONS, "-e", node_program()])

    def on_begun(self) -> None:
        self.expect_private({1: self.pipes["stdout"].identity, 2: self.pipes["stderr"].identity})

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return f"void Object.assign(process.env, {json.dumps(dict(variables))})"

    def send_interrupt(self, number: int) -> None:
        self.send({"type": "interrupt", "id": number})

    def on_control_end(self) -> None:
        # The thread that owned it is gone. Either the process ends now, and will have an exit
        # status, or nobody is left to tell when code ends.
        pid = self.pid

        def give_up() -> None:
            if self.pid == pid:
                self.end("lost the thread that reports results")

        self.session.poller.at("control end", time.monotonic() + CONTROL_END_S, give_up)
