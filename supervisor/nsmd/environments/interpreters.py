"""Questions to interpreters: their real place and their version."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from nsm.dataclass import dataclass, replace
from nsm.jail.failure import EXHAUSTED
from nsmd.host.paths import is_within
from nsmd.host.processes import signal_group
from nsmd.model.values import Interpreter

ASK_TIMEOUT_S = 20.0
"""Time limit: python and node answer in 50 ms, a pyenv shim in 300; a cold disk or a busy emulated
machine takes many seconds.
"""

_MAX_PACKAGES = 2000

_STORES = ("/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew")
"""Trees whose programs use libraries all over the tree; world-readable by design."""

_BASE_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_PYTHON_QUESTION = """
import json, sys
base, own = sys.base_prefix + "/", sys.prefix + "/"
others = [path for path in sys.path if path.startswith(base) and not path.startswith(own)]
print(json.dumps({
    "system": any(path.endswith("-packages") for path in others),
    "version": list(sys.version_info[:3]),
    "prefix": sys.prefix,
    "base_prefix": sys.base_prefix,
    "executable": sys.executable,
    "base_executable": getattr(sys, "_base_executable", sys.executable),
}))
"""

_FIRST_RESERVING_NODE = (23,)
RESERVED_BY_NODE_MB = 8192
"""Address space that newer versions reserve for code: 512 MiB for the program and for each of its
worker threads, mapped as if all of it would be written to. Node 20 and 22 map it so that nothing
counts it.
"""

_NODE_QUESTION = "console.log(JSON.stringify([process.execPath, process.versions.node]))"

_BASH_QUESTION = 'echo "$BASH_VERSION"'

_OTHERS_SIGNALS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))
"""Signals that come from others, such as the kernel when memory ran out."""


class InterpreterError(Exception):
    """A program is not the expected interpreter; the message says what it did."""


class SilentInterpreterError(InterpreterError):
    """A program did not answer in time; it may still work."""


class UnaskedInterpreterError(InterpreterError):
    """A program could not be asked, since something ran out or somebody killed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInterpreter:
    """An interpreter that answered.

    Attributes:
        program: absolute path of the executable.
        prefixes: directories that it needs, without those in the base system (/usr).
        packages: installed top-level modules of a Python.
    """

    program: str
    version: tuple[int, ...]
    prefixes: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(str(number) for number in self.version)


def ask_python(program: str, variables: Mapping[str, str], *, keep_venv: bool) -> FoundInterpreter:
    """Ask a Python.

    Args:
        program: path of a supposed Python: real, shim or virtual environment.
        keep_venv: a virtual environment is meant; otherwise its base interpreter is used.

    Raises:
        InterpreterError: it did not answer like a Python.
    """
    # Isolated, so that neither variables nor the working directory decide what it imports.
    answer = _ask_json([program, "-I", "-B", "-c", _PYTHON_QUESTION], variables)
    try:
        is_venv = answer["prefix"] != answer["base_prefix"]
        base = os.path.realpath(str(answer["base_executable"]))
        base_prefix = str(answer["base_prefix"])
        version = tuple(int(number) for number in answer["version"])
        executable = str(answer["executable"])
        venv = str(answer["prefix"])
    except (KeyError, TypeError, ValueError) as error:
        raise InterpreterError(f"{program} answered {answer!r:.200}") from error
    if is_venv and keep_venv:
        # By its own path: Python recognises a virtual environment by that.
        found = _found(executable, version, [venv, base_prefix, os.path.realpath(base_prefix)])
        packages = modules_of(venv, version)
        if answer.get("system"):
            packages = tuple(sorted({*packages, *modules_of(base_prefix, version)}))
        return replace(found, packages=packages)
    found = _found(base, version, [os.path.realpath(base_prefix)])
    return replace(found, packages=modules_of(base_prefix, version))


def modules_of(prefix: str, version: Sequence[int]) -> tuple[str, ...]:
    """Top-level modules below a Python's prefix, each once: read from its files, without running
    it.
    """
    library = f"lib/python{'.'.join(map(str, version[:2]))}"
    folders = [f"{prefix}/{library}/site-packages", f"{prefix}/{library}/dist-packages"]
    if prefix == "/usr":  # Debian's place
        folders += ["/usr/lib/python3/dist-packages", f"/usr/local/{library}/dist-packages"]
    found: set[str] = set()
    for folder in folders:
        with suppress(OSError):
            found.update(
                entry.partition(".")[0] for entry in os.listdir(folder) if is_module(entry)
            )
    return tuple(sorted(found)[:_MAX_PACKAGES])


def is_module(entry: str) -> bool:
    """Return whether an entry of a directory is a module that code can import."""
    name, dot, end = entry.partition(".")
    return (
        name.isidentifier() and not name.startswith("_") and (not dot or end.endswith(("py", "so")))
    )


def reserved_mb(interpreter: Interpreter, version: Sequence[int] | None) -> int:
    """MiB that an interpreter reserves without filling them.

    Args:
        version: None if unknown.
    """
    reserves = version is None or tuple(version) >= _FIRST_RESERVING_NODE
    return RESERVED_BY_NODE_MB if interpreter == "node" and reserves else 0


def ask_node(program: str, variables: Mapping[str, str]) -> FoundInterpreter:
    """Ask a Node; see `ask_python`."""
    real = os.path.realpath(program)
    if in_base_system(real) and _is_binary(real):
        # If it is no shim, its engine need not start: 8 ms instead of 80.
        return _found(real, _numbers(program, _ask([program, "--version"], variables)), [])
    answer = _ask_json([program, "-e", _NODE_QUESTION], variables)
    try:
        path, version = answer
    except (TypeError, ValueError) as error:
        raise InterpreterError(f"{program} answered {answer!r:.200}") from error
    return _found(os.path.realpath(str(path)), _numbers(program, str(version)), [])


def ask_bash(program: str, variables: Mapping[str, str]) -> FoundInterpreter:
    """Ask a Bash; see `ask_python`."""
    answer = _ask([program, "--norc", "--noprofile", "-c", _BASH_QUESTION], variables)
    return _found(os.path.realpath(program), _numbers(program, answer), [])


def own_python() -> FoundInterpreter:
    """The Python that the supervisor runs on, without its virtual environment."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    return _found(os.path.realpath(base), tuple(sys.version_info[:3]), [prefix])


def in_base_system(path: str) -> bool:
    """Return whether every jail shows that path anyway."""
    return any(is_within(path, directory) for directory in _BASE_SYSTEM)


def _numbers(program: str, answer: str) -> tuple[int, ...]:
    """The version in `v20.1.0` or `5.2.15(1)-release`."""
    version = re.match(r"v?(\d+(?:\.\d+)*)", answer)
    if version is None:
        raise InterpreterError(f"{program} answered {answer!r:.200}")
    return tuple(int(number) for number in version[1].split("."))


def _is_binary(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _found(program: str, version: tuple[int, ...], prefixes: Sequence[str]) -> FoundInterpreter:
    if not any(is_within(program, prefix) for prefix in prefixes):
        prefixes = (*prefixes, _prefix_of(program))
    # In this order, each once.
    needed = dict.fromkeys(_whole_store(prefix) for prefix in prefixes)
    outside = tuple(prefix for prefix in needed if not in_base_system(prefix))
    return FoundInterpreter(program=program, version=version, prefixes=outside)


def _prefix_of(program: str) -> str:
    """`/opt/x` for `/opt/x/bin/node`; the directory itself if it is no `bin`."""
    folder = os.path.dirname(program)
    if in_base_system(folder):
        return folder  # /bin, not /
    return os.path.dirname(folder) if os.path.basename(folder) == "bin" else folder


def _whole_store(prefix: str) -> str:
    return next((store for store in _STORES if is_within(prefix, store)), prefix)


def _ask_json(command: Sequence[str], variables: Mapping[str, str]) -> Any:
    answer = _ask(command, variables)
    try:
        # The last line: start-up files of a shim may print before.
        return json.loads(answer.strip().rpartition("\n")[2])
    except ValueError as error:
        raise InterpreterError(f"{command[0]} answered {answer!r:.200}") from error


def _ask(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run a program to its end and return what it prints."""
    name = command[0]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=dict(variables),
            text=True,
            errors="replace",
            # A shim is a script with children: all of them end at the time limit.
            start_new_session=True,
        )
    except OSError as error:
        kind = UnaskedInterpreterError if error.errno in EXHAUSTED else InterpreterError
        raise kind(f"{name} cannot be executed: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=ASK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)
            raise SilentInterpreterError(f"{name} did not answer in {ASK_TIMEOUT_S:g} s") from None
    if -process.returncode in _OTHERS_SIGNALS:
        how = signal.Signals(-process.returncode).name
        raise UnaskedInterpreterError(f"{name} was ended by {how} while nsm asked it")
    if process.returncode != 0:
        words = " ".join(errors.split())[:300] or f"exit code {process.returncode}"
        raise InterpreterError(f"{name} does not work: {words}")
    return output
