"""The interpreters that a session can have."""

from __future__ import annotations

from sandbox.interpreters.bash import BashInterpreter
from sandbox.interpreters.node import NodeInterpreter
from sandbox.interpreters.python import PythonInterpreter

INTERPRETERS = {kind.name: kind for kind in (PythonInterpreter, BashInterpreter, NodeInterpreter)}
