"""The interpreters that a session can have: the agent's side of each.

A new one is a class beside the others, which derives from `Interpreter` or, if its process speaks
in frames, from `FramedInterpreter`, and a place in `INTERPRETERS`. What runs in its process belongs
into `sandbox.workers`.

- `base`: the life of a process tree, its output, and what it displays.
- `framed`: Python and Node, whose control sockets carry frames.
- `fork_server`: the process that forks Python for programs of a runner.
- `bash`: one long-lived shell, driven by lines on its control socket.
"""

from __future__ import annotations

from sandbox.interpreters.bash import BashInterpreter
from sandbox.interpreters.framed import NodeInterpreter, PythonInterpreter

INTERPRETERS = {kind.name: kind for kind in (PythonInterpreter, BashInterpreter, NodeInterpreter)}
