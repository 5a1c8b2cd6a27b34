"""Our programs for jails in the fastest form for a jail's Python: one file, and compiled.

`sandbox.bundle` puts the modules of a program into one file. Compiling the agent takes a Python 50
ms, which is half of a jail's start. Bytecode belongs to one version of Python. A Python of the
supervisor's version gets what the supervisor has compiled; one of another version compiles it once.
"""

from __future__ import annotations

import importlib.util
import logging
import marshal
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from types import CodeType

import trio

from nsmd.host.paths import is_within
from nsmd.jail.interpreters import in_base_system
from nsmd.model.values import ReadOnlyBind
from sandbox.bundle import __file__ as bundler
from sandbox.bundle import bundle, files_of

log = logging.getLogger(__name__)

AGENT, TEMPLATE = "sandbox_agent", "sandbox_template"
"""Main modules of the programs. The supervisor runs neither, and so does not import them."""

COMPILE_TIMEOUT_S = 20.0
"""Time to compile, which takes 0.1 s."""

_TELL_MAGIC = """
import sys
from importlib.util import MAGIC_NUMBER
sys.stdout.buffer.write(MAGIC_NUMBER)
"""

_COMPILE = """
import importlib.util, marshal, sys
code = compile(sys.stdin.buffer.read(), sys.argv[1], "exec", dont_inherit=True)
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""

_HEADER = importlib.util.MAGIC_NUMBER + bytes(12)
"""Head of a .pyc file (PEP 552): flags, and a time and size that nobody compares for a main
program.
"""


class ProgramCode:
    """An installed program, for any Python."""

    def __init__(self, program: str, path: str) -> None:
        self._program = program
        self._path = path
        self._compiled: dict[str, bytes] = {}
        self._compiling = trio.Lock()

    async def for_python(self, path: str, binds: Sequence[ReadOnlyBind] = ()) -> bytes:
        """Return the program for the Python at a path in a jail with these binds, which takes 0.1 s
        the first time: the content of a .pyc file, or the source if compiling fails, or if the
        Python is a package's own: nobody runs such a one outside of a jail.
        """
        if (python := _on_host(path, binds)) is None:
            return source_of(self._program)
        async with self._compiling:
            if python not in self._compiled:
                try:
                    self._compiled[python] = await trio.to_thread.run_sync(
                        _compile, python, self._program, self._path
                    )
                except (OSError, subprocess.SubprocessError) as error:
                    # If the problem lasts, the jail will have it, too, and say why.
                    log.warning("%s does not compile %s: %s", python, self._program, error)
                    return source_of(self._program)
            return self._compiled[python]


def source_of(program: str) -> bytes:
    """Return the source of the installed program with all its modules."""
    return _bundled(_file_of(program))[0]


@cache
def _bundled(file: str) -> tuple[bytes, Mapping[str, float]]:
    """Return a program's source, and the facts by which a loader sees whether it has changed since.

    Both are read at one moment: after an upgrade, old code must not count as that of the new files.
    """
    changed_s = sum(os.stat(each).st_mtime for each in (*files_of(file), bundler))
    text = bundle(file).encode()
    # The import system keeps the text's size with the code, and compares it with this one.
    return text, {"mtime": changed_s, "size": len(text)}


def _file_of(program: str) -> str:
    found = importlib.util.find_spec(program)
    assert found is not None
    assert found.origin is not None
    return found.origin


def _on_host(path: str, binds: Sequence[ReadOnlyBind]) -> str | None:
    """Path of a Python of the host by its path in a jail; None for one that a bind brings from
    elsewhere. An environment of packages has a link to the host's Python.

    Code of a package may have made that link. So it counts only if it leads to a Python of the base
    system, or to the supervisor's own.
    """
    for bind in binds:
        if bind.source != bind.target and is_within(path, bind.target):
            found = os.path.realpath(bind.source + path.removeprefix(bind.target))
            is_python = os.path.basename(found).startswith("python") and in_base_system(found)
            return found if is_python or found == os.path.realpath(sys.executable) else None
    return path


def _compile(python: str, program: str, path: str) -> bytes:
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return _our_own(program, path)
    # Asking takes a tenth of the time of compiling, and most Pythons of a host are one version.
    if _told_by(python, _TELL_MAGIC) == importlib.util.MAGIC_NUMBER:
        return _our_own(program, path)
    return _told_by(python, _COMPILE, path, given=source_of(program))


def _told_by(python: str, program: str, *arguments: str, given: bytes = b"") -> bytes:
    """Run a program in another Python, and return its output."""
    return subprocess.run(
        [python, "-I", "-S", "-B", "-c", program, *arguments],
        input=given,
        capture_output=True,
        env={},
        cwd="/",
        timeout=COMPILE_TIMEOUT_S,
        check=True,
    ).stdout


class _BundleLoader(SourceFileLoader):
    """Loader that caches the code of a bundle like that of a module, while it is valid."""

    def __init__(self, program: str) -> None:
        self._entry = _file_of(program)
        # There is no such file.
        super().__init__(program, f"{self._entry.removesuffix('.py')}_bundle.py")

    def path_stats(self, path: str) -> Mapping[str, float]:
        del path
        return _bundled(self._entry)[1]

    def get_data(self, path: str) -> bytes:
        return _bundled(self._entry)[0] if path == self.path else super().get_data(path)


def _our_own(program: str, path: str) -> bytes:
    """Return the code that the import system has already, with its path in a jail."""
    code = _BundleLoader(program).get_code(program)
    assert code is not None
    return _HEADER + marshal.dumps(_renamed(code, path))


def _renamed(code: CodeType, path: str) -> CodeType:
    """Return a code object without the host's path in it."""
    constants = tuple(_renamed(c, path) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=path, co_consts=constants)
