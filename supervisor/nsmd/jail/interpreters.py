"""Interpreters of this host that jails can show: searched, and asked for their place and version.

To find an interpreter, nsm has to ask it: a `python3` on PATH may be a shim, a symlink or a virtual
environment, and only the program itself knows its real place. Asking runs a program, so it must not
be one that somebody else could have put there. All functions block, for some 50 ms.
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nsm.dataclass import dataclass, replace
from nsm.jail.failure import EXHAUSTED
from nsmd.host.package_manager import install_command
from nsmd.host.paths import is_within, printable, why_not_run, why_private
from nsmd.host.processes import signal_group
from nsmd.model.settings import Preset
from nsmd.model.values import Interpreter

MINIMUM_PYTHON = (3, 9)
"""Oldest version for the agent, which runs on the environment's own Python if there is one."""
MINIMUM_NODE = (18,)
MINIMUM_BASH = (4, 4)

SYSTEM_PYTHON = "/usr/bin/python3"
"""Runs the agent of environments without a Python of their own: every jail shows it anyway."""

_INSTALLED = (
    ".asdf/installs/python/*/bin",
    ".local/share/mise/installs/python/*/bin",
    ".local/share/uv/python/*/bin",
    ".pyenv/versions/*/bin",
)
"""Directories below HOME in which tools put Pythons for the user."""

Unreadable = Callable[[str], str | None]
"""Returns why jails could not read a host path; None if they can."""

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
    """A program is not the expected interpreter, or cannot be used; the message, a clause, says
    why.
    """


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


# Search.


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterKind:
    """Search for a preset's interpreter."""

    programs: tuple[str, ...]
    title: str
    package: str
    minimum: tuple[int, ...]


INTERPRETERS: Mapping[Preset, InterpreterKind] = {
    "python": InterpreterKind(
        programs=("python3", "python"), title="Python", package="python3", minimum=MINIMUM_PYTHON
    ),
    "bash": InterpreterKind(programs=("bash",), title="Bash", package="bash", minimum=MINIMUM_BASH),
    "node": InterpreterKind(
        programs=("node", "nodejs"), title="Node.js", package="nodejs", minimum=MINIMUM_NODE
    ),
}


def find_python(
    program: str | None, search_path: str, *, home: str, unreadable: Unreadable
) -> FoundInterpreter | str:
    """Find the Python of an environment made from packages, or the reason why there is none.

    Args:
        program: absolute path; of a virtual environment, its base is taken. None for the first one
            on PATH.
        home: HOME of the user; jails show only an interpreter's prefix of it.
        unreadable: returns why the jails' user cannot read a path; such interpreters are skipped.
    """
    finder = InterpreterFinder(search_path, os.path.realpath(home), unreadable, keep_venv=False)
    return finder.find("python", program)


def find_node(
    program: str | None, search_path: str, *, home: str, unreadable: Unreadable
) -> tuple[FoundInterpreter, FoundInterpreter] | str:
    """Find the Node of an environment made from packages, and a Python for its agent; or the
    reason why one is missing.

    Args:
        program: absolute path; None for the first one on PATH.
        search_path, home, unreadable: as for `find_python`.
    """
    finder = InterpreterFinder(search_path, os.path.realpath(home), unreadable)
    node = finder.find("node", program)
    if isinstance(node, str):
        return node
    agent = find_agent_python(finder, [])
    return why_no_agent() if agent is None else (node, agent)


class InterpreterFinder:
    """Search for interpreters; its methods may run in several threads."""

    def __init__(
        self, search_path: str, home: str, unreadable: Unreadable, *, keep_venv: bool = True
    ) -> None:
        self._keep_venv = keep_venv
        self._folders = [f for f in search_path.split(os.pathsep) if os.path.isabs(f)]
        self._home = home
        self._unreadable = unreadable
        # Variables that shims need. A foreign program gets nothing else of our environment.
        self._variables = {"PATH": search_path, "HOME": home, "LANG": "C.UTF-8"}

    def find(self, preset: Preset, configured: str | None) -> FoundInterpreter | str:
        """Find the interpreter of a preset, or the reason why there is none."""
        kind = INTERPRETERS[preset]
        if configured is not None:
            try:
                return self._check(preset, configured, configured=True)
            except InterpreterError as error:
                return f"the configured interpreter {error}"
        refused: dict[str, None] = {}
        unasked = False
        for candidate in self._candidates(kind.programs):
            try:
                return self._check(preset, candidate, configured=False)
            except InterpreterError as error:
                refused[str(error)] = None
                if isinstance(error, UnaskedInterpreterError):
                    unasked = True
                    break  # the next one may be quite another version
                unasked = unasked or isinstance(error, SilentInterpreterError)
        if unasked:
            return f"{'; '.join(refused)}. The next call asks again"
        why = "; ".join(refused) or f"no {kind.programs[0]} on PATH ({':'.join(self._folders)})"
        return f"{why}. To get one: {install_command(kind.package)}"

    def find_in(
        self, folder: str, real: str, version: Sequence[int], configured: Sequence[str]
    ) -> FoundInterpreter | str:
        """Find the Python in one directory, or the reason why it is not used.

        Args:
            real: path of `folder` without links.
        """
        wanted = ".".join(str(number) for number in version[:2])
        named = {os.path.dirname(os.path.realpath(each)) for each in configured}
        known = [*self._folders, *named]
        for pattern in _INSTALLED:
            known += glob.glob(os.path.join(glob.escape(self._home), pattern))
        if real not in {os.path.realpath(each) for each in known} and not self._leads_to(real):
            return (
                f"it was made with the Python in {printable(folder)}, which is not on PATH, so nsm "
                f"does not run it. Make it again with a python{wanted} that is, or name that "
                "Python as the `interpreter` of an environment in config.toml"
            )
        if not in_base_system(folder) and why_private(os.path.dirname(folder), self._home):
            return f"it was made with the Python in {printable(folder)}, which no jail shows"
        for name in (f"python{wanted}", "python3", "python"):
            program = os.path.join(real, name)
            if os.path.isfile(program):
                break
        else:
            return f"it was made with the Python in {printable(folder)}, which is not there now"
        try:
            found = self._check("python", program, configured=real in named)
        except InterpreterError as error:
            return str(error)
        if found.version[: len(version[:2])] != tuple(version[:2]):
            return (
                f"it was made for Python {wanted}, and {program} is {found.version_text} now: "
                "make it again"
            )
        prefix = os.path.dirname(real)
        if not in_base_system(real) and not any(is_within(prefix, p) for p in found.prefixes):
            return f"the Python in {printable(folder)} is {found.program}: make it again with that"
        return found

    def _leads_to(self, folder: str) -> bool:
        """Return whether the Python on PATH, which may be a shim, is really in a directory."""
        found = self.find("python", None)
        return isinstance(found, FoundInterpreter) and os.path.dirname(found.program) == folder

    def acceptable(self, found: FoundInterpreter) -> str | None:
        """Return why a jail could not show what that interpreter needs; None if it could."""
        for path in (found.program, *found.prefixes):
            if reason := self._unreadable(path):
                return f"{found.program}: {reason}"
        for prefix in found.prefixes:
            if reason := why_private(prefix, self._home):
                return f"{found.program} needs {prefix}, which {reason}"
        return None

    def _candidates(self, programs: Sequence[str]) -> Iterator[str]:
        """Executables of those names on PATH, each file once."""
        seen: set[str] = set()
        for program in programs:
            for folder in self._folders:
                path = os.path.join(folder, program)
                real = os.path.realpath(path)
                if real not in seen and os.path.isfile(real) and os.access(real, os.X_OK):
                    seen.add(real)
                    yield path

    def _check(self, preset: Preset, program: str, *, configured: bool) -> FoundInterpreter:
        """Ask one program."""
        if reason := why_not_run(program, configured=configured):
            raise InterpreterError(f"{program} is not run: {reason}")
        found = self._ask(preset, program, configured=configured)
        # A shim may have led elsewhere.
        if reason := why_not_run(found.program, configured=configured):
            raise InterpreterError(f"{found.program} is not run: {reason}")
        kind = INTERPRETERS[preset]
        if found.version < kind.minimum:
            needed = ".".join(str(number) for number in kind.minimum)
            raise InterpreterError(
                f"{found.program} is {kind.title} {found.version_text}, {needed} is needed"
            )
        if reason := self.acceptable(found):
            raise InterpreterError(reason)
        return found

    def _ask(self, preset: Preset, program: str, *, configured: bool) -> FoundInterpreter:
        if preset == "python":
            return ask_python(program, self._variables, keep_venv=configured and self._keep_venv)
        if preset == "node":
            return ask_node(program, self._variables)
        return ask_bash(program, self._variables)


def find_agent_python(
    finder: InterpreterFinder, pythons: Sequence[FoundInterpreter | str]
) -> FoundInterpreter | None:
    """Choose the Python that runs the agent of environments without their own.

    The best is one that every jail shows anyway, then another environment's, then the supervisor's.
    """
    usable = [python for python in pythons if isinstance(python, FoundInterpreter)]
    for python in usable:
        if not python.prefixes:
            return python
    for candidate in (finder.find("python", SYSTEM_PYTHON), *usable, own_python()):
        if isinstance(candidate, FoundInterpreter) and finder.acceptable(candidate) is None:
            return candidate
    return None


def why_no_agent() -> str:
    needed = ".".join(str(number) for number in MINIMUM_PYTHON)
    problem = f"no Python {needed} or newer to run nsm's agent with"
    return f"{problem}. To get one: {install_command('python3')}"
