"""The interpreters that a session can have: the agent's side of each.

A new one is a class beside the others, which derives from `Interpreter` or, if its process speaks
in frames, from `FramedInterpreter`, and a place in `INTERPRETERS`. What runs in its process belongs
into `sandbox.workers`.

- `base`: the life of a process tree, its output, and what it displays.
- `framed`: interpreters whose control socket carries frames.
- `python`: a fork of the agent, or another Python that runs the agent's worker.
- `image_worker`: requests for forks of an image's Python.
- `bash`: one long-lived shell, driven by lines on its control socket.
- `bash_driver`: parts of the lines that it is driven by.
- `code_file`: the memory file from which it reads code.
- `node`: Node, with a program of ours that runs what it is sent.
"""

from __future__ import annotations

from sandbox.fields import RequestError
from sandbox.interpreters.base import Interpreter
from sandbox.interpreters.bash import BashInterpreter
from sandbox.interpreters.node import NodeInterpreter
from sandbox.interpreters.python import PythonInterpreter

INTERPRETERS = {kind.name: kind for kind in (PythonInterpreter, BashInterpreter, NodeInterpreter)}


class Interpreters(dict[str, Interpreter]):
    """The interpreters of a session, by their names."""

    def named(self, name: object) -> Interpreter:
        """
        Raises:
            RequestError: there is none of this name.
        """
        found = self.get(name) if isinstance(name, str) else None
        if found is None:
            have = ", ".join(sorted(self))
            raise RequestError(f"interpreter {name!r:.50} is not in this session, which has {have}")
        return found
