"""The agent's program as a jail's Python can start it fastest: compiled.

Compiling it takes a Python 50 ms, which is half of a jail's start. Bytecode belongs to one version
of Python, so another one than ours is asked once to compile it.
"""

from __future__ import annotations

import importlib.util
import logging
import marshal
import os
import subprocess
import sys
from importlib.abc import InspectLoader
from types import CodeType

import trio

import sandbox_agent
from nsmd.jail.arguments import AGENT_PATH

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 20.0
"""It takes 0.1 s."""

_COMPILE = """
import importlib.util, marshal, sys
code = compile(sys.stdin.buffer.read(), sys.argv[1], "exec", dont_inherit=True)
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""

_HEADER = importlib.util.MAGIC_NUMBER + bytes(12)
"""Of a .pyc file (PEP 552): flags, and a time and size that nobody compares for a main program."""


class AgentCode:
    """The installed agent, for any Python."""

    def __init__(self) -> None:
        self._compiled: dict[str, bytes] = {}
        self._compiling = trio.Lock()

    async def for_python(self, python: str) -> bytes:
        """What that Python runs; takes 0.1 s for the first time.

        Args:
            python: absolute path of an interpreter, in jails and on the host.

        Returns:
            The content of a .pyc file, or the source where compiling fails.

        Cancellation: leaves nothing behind.
        """
        async with self._compiling:
            if python not in self._compiled:
                self._compiled[python] = await trio.to_thread.run_sync(_compile, python)
            return self._compiled[python]


def source() -> bytes:
    """The installed agent's source."""
    path = sandbox_agent.__file__
    assert path is not None
    with open(path, "rb") as file:
        return file.read()


def _compile(python: str) -> bytes:
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return _our_own()
    text = source()
    try:
        return subprocess.run(
            [python, "-I", "-B", "-c", _COMPILE, AGENT_PATH],
            input=text,
            capture_output=True,
            env={},
            cwd="/",
            timeout=COMPILE_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        # The jail will tell its reason, if it has one too.
        log.warning("%s does not compile the agent: %s", python, error)
        return text


def _our_own() -> bytes:
    """What the import system has for us already, under the name that it has in a jail."""
    spec = sandbox_agent.__spec__
    loader = spec.loader if spec else None
    code = loader.get_code("sandbox_agent") if isinstance(loader, InspectLoader) else None
    if code is None:
        code = compile(source(), AGENT_PATH, "exec", dont_inherit=True)
    return _HEADER + marshal.dumps(_renamed(code))


def _renamed(code: CodeType) -> CodeType:
    """A code object without the host's path in it."""
    constants = tuple(_renamed(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=AGENT_PATH, co_consts=constants)
