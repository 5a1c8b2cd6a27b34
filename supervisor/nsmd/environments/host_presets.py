"""Environments from presets, made from this host's own interpreters.

To find an interpreter, nsm has to ask it: a `python3` on PATH may be a shim, a symlink or a virtual
environment, and only the program itself knows its real place (`nsmd.environments.interpreters`).
Asking runs a program, so it must not be one that somebody else could have put there. All functions
block, for some 50 ms: call `find_environments` in a thread.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import trio

from nsm import paths
from nsm.dataclass import dataclass, replace
from nsmd.environments.interpreters import (
    FoundInterpreter,
    InterpreterError,
    SilentInterpreterError,
    UnaskedInterpreterError,
    ask_bash,
    ask_node,
    ask_python,
    in_base_system,
    own_python,
    reserved_mb,
)
from nsmd.host.locales import Variables
from nsmd.host.package_manager import install_command
from nsmd.host.paths import is_within, printable, why_not_run, why_private
from nsmd.jail.host import PYTHON_DIRECTORY
from nsmd.model.settings import PRESETS, EnvironmentSettings, Preset, Settings
from nsmd.model.values import ClientIdentity, Environment, ReadOnlyBind

log = logging.getLogger(__name__)


MINIMUM_PYTHON = (3, 9)
"""Oldest version for the agent, which runs on the environment's own Python if there is one."""
MINIMUM_NODE = (18,)
MINIMUM_BASH = (4, 4)

SYSTEM_PYTHON = "/usr/bin/python3"
"""Runs the agent of environments without a Python of their own: every jail shows it anyway."""

BASE_PATH = ("/usr/local/bin", "/usr/bin", "/bin", PYTHON_DIRECTORY)
"""PATH in a jail, after the interpreter's own directory."""

_INSTALLED = (
    ".asdf/installs/python/*/bin",
    ".local/share/mise/installs/python/*/bin",
    ".local/share/uv/python/*/bin",
    ".pyenv/versions/*/bin",
)
"""Directories below HOME in which tools put Pythons for the user."""

Unreadable = Callable[[str], str | None]
"""Returns why jails could not read a host path; None if they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Search for a preset's interpreter."""

    programs: tuple[str, ...]
    title: str
    package: str
    minimum: tuple[int, ...]


_KINDS: Mapping[Preset, _Kind] = {
    "python": _Kind(
        programs=("python3", "python"), title="Python", package="python3", minimum=MINIMUM_PYTHON
    ),
    "bash": _Kind(programs=("bash",), title="Bash", package="bash", minimum=MINIMUM_BASH),
    "node": _Kind(
        programs=("node", "nodejs"), title="Node.js", package="nodejs", minimum=MINIMUM_NODE
    ),
}

_Wanted = tuple[Preset, str | None]
"""A preset and the interpreter that was configured for it."""


class _UnusableError(Exception):
    """An interpreter cannot be used; the message is a clause that says why."""


def find_environments(
    settings: Settings,
    search_path: str,
    *,
    home: str | None = None,
    unreadable: Unreadable = lambda _: None,
    variables: Variables = (),
) -> tuple[Environment, ...]:
    """Make the environments of all presets and of the configuration, except those that Nix builds.

    Args:
        home: HOME of the user; jails show only an interpreter's prefix of it.
        unreadable: returns why the jails' user cannot read a path; such interpreters are skipped.

    Returns:
        Presets first. Unusable ones are included, with `problem`.
    """
    finder = _Finder(search_path, os.path.realpath(home or paths.home()), unreadable)
    wanted: dict[str, EnvironmentSettings] = {name: EnvironmentSettings() for name in PRESETS}
    # A preset stays until its replacement is built.
    configured = {
        name: entry
        for name, entry in settings.environments.items()
        if entry.flake is None and entry.packages is None
    }
    wanted |= configured
    keys: dict[str, _Wanted] = {
        name: (_preset(name, entry), entry.interpreter) for name, entry in wanted.items()
    }
    distinct = list(dict.fromkeys(keys.values()))
    try:
        with ThreadPoolExecutor(max_workers=len(distinct)) as pool:
            answers = {key: pool.submit(finder.find, *key) for key in distinct}
        found = {key: answer.result() for key, answer in answers.items()}
    except RuntimeError:  # there is no room for another thread
        found = {key: finder.find(*key) for key in distinct}
    agent = _agent_python(finder, [found[key] for key in distinct if key[0] == "python"])
    return tuple(
        replace(
            _environment(name, entry, settings, keys[name][0], found[keys[name]], agent),
            source="config.toml" if name in configured else "preset",
            variables=tuple({**dict(variables), **entry.env}.items()),
        )
        for name, entry in wanted.items()
    )


def find_python(
    program: str | None, search_path: str, *, home: str, unreadable: Unreadable
) -> FoundInterpreter | str:
    """Find the Python of an environment made from packages, or the reason why there is none.

    Args:
        program: absolute path; of a virtual environment, its base is taken. None for the first one
            on PATH.
        search_path, home, unreadable: as for `find_environments`.
    """
    finder = _Finder(search_path, os.path.realpath(home), unreadable, keep_venv=False)
    return finder.find("python", program)


def find_node(
    program: str | None, search_path: str, *, home: str, unreadable: Unreadable
) -> tuple[FoundInterpreter, FoundInterpreter] | str:
    """Find the Node of an environment made from packages, and a Python for its agent; or the
    reason why one is missing.

    Args:
        program: absolute path; None for the first one on PATH.
        search_path, home, unreadable: as for `find_environments`.
    """
    finder = _Finder(search_path, os.path.realpath(home), unreadable)
    node = finder.find("node", program)
    if isinstance(node, str):
        return node
    agent = _agent_python(finder, [])
    return _no_agent() if agent is None else (node, agent)


def find_python_in(
    folder: str,
    version: Sequence[int],
    settings: Settings,
    search_path: str,
    *,
    home: str | None = None,
    unreadable: Unreadable = lambda _: None,
    variables: Variables = (),
) -> Environment:
    """Make the environment of the Python in a directory that a file of a project names.

    The file may name anything. So a Python is asked only if the user would run it anyway: it is on
    PATH, the configuration names it, or a tool such as uv or pyenv installed it for the user.

    Args:
        folder: absolute path of the directory.
        settings, search_path, home, unreadable, variables: as for `find_environments`.

    Returns:
        The environment, with the limits, network and variables of `python`; with `problem` if it
        cannot be used.
    """
    home = os.path.realpath(home or paths.home())
    finder = _Finder(search_path, home, unreadable, keep_venv=False)
    entry = settings.environments.get("python", EnvironmentSettings())
    # What lies in a project gets no devices, whatever its user gave the preset.
    entry = replace(entry, preset="python", description=None, preload=(), devices=())
    configured = [each.interpreter for each in settings.environments.values() if each.interpreter]
    # Links are followed once: somebody could exchange one before the program is run or shown.
    folder, real = os.path.normpath(folder), os.path.realpath(folder)
    found = finder.find_in(folder, real, version, configured)
    agent = found if isinstance(found, FoundInterpreter) else None
    environment = _environment("python", entry, settings, "python", found, agent)
    if agent is not None and real != folder and not in_base_system(folder):
        # The environment names its programs by this path.
        there = ReadOnlyBind(source=os.path.dirname(real), target=os.path.dirname(folder))
        environment = replace(environment, binds=tuple(dict.fromkeys((*environment.binds, there))))
    return replace(environment, variables=tuple({**dict(variables), **entry.env}.items()))


class _Finder:
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
        kind = _KINDS[preset]
        if configured is not None:
            try:
                return self._check(preset, configured, configured=True)
            except _UnusableError as error:
                return f"the configured interpreter {error}"
        refused: dict[str, None] = {}
        unasked = False
        for candidate in self._candidates(kind.programs):
            try:
                return self._check(preset, candidate, configured=False)
            except _UnusableError as error:
                refused[str(error)] = None
                if isinstance(error.__cause__, UnaskedInterpreterError):
                    unasked = True
                    break  # the next one may be quite another version
                unasked = unasked or isinstance(error.__cause__, SilentInterpreterError)
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
        except _UnusableError as error:
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
        """Why a jail could not show what that interpreter needs; None if it could."""
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
            raise _UnusableError(f"{program} is not run: {reason}")
        try:
            found = self._ask(preset, program, configured=configured)
        except InterpreterError as error:
            raise _UnusableError(str(error)) from error
        # A shim may have led elsewhere.
        if reason := why_not_run(found.program, configured=configured):
            raise _UnusableError(f"{found.program} is not run: {reason}")
        kind = _KINDS[preset]
        if found.version < kind.minimum:
            needed = ".".join(str(number) for number in kind.minimum)
            raise _UnusableError(
                f"{found.program} is {kind.title} {found.version_text}, {needed} is needed"
            )
        if reason := self.acceptable(found):
            raise _UnusableError(reason)
        return found

    def _ask(self, preset: Preset, program: str, *, configured: bool) -> FoundInterpreter:
        if preset == "python":
            return ask_python(program, self._variables, keep_venv=configured and self._keep_venv)
        if preset == "node":
            return ask_node(program, self._variables)
        return ask_bash(program, self._variables)


def _agent_python(
    finder: _Finder, pythons: Sequence[FoundInterpreter | str]
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


def _no_agent() -> str:
    needed = ".".join(str(number) for number in MINIMUM_PYTHON)
    problem = f"no Python {needed} or newer to run nsm's agent with"
    return f"{problem}. To get one: {install_command('python3')}"


def _preset(name: str, entry: EnvironmentSettings) -> Preset:
    if entry.preset is not None:
        return entry.preset
    # The configuration was checked: without `preset`, the name is a preset.
    return next(preset for preset in PRESETS if preset == name)


def _environment(
    name: str,
    entry: EnvironmentSettings,
    settings: Settings,
    preset: Preset,
    found: FoundInterpreter | str,
    agent: FoundInterpreter | None,
) -> Environment:
    kind = _KINDS[preset]
    defaults = settings.defaults
    unavailable = Environment(
        name=name,
        interpreter=preset,
        description=entry.description or kind.title,
        timeout_s=entry.timeout_seconds or defaults.timeout_seconds,
        memory_mb=entry.memory_mb or defaults.memory_mb,
        cpu_weight=entry.cpu_weight or defaults.cpu_weight,
        preload=entry.preload,
        network=entry.network_rule,
        devices=entry.devices,
        secrets=entry.secrets,
    )
    if isinstance(found, str):
        return replace(unavailable, problem=found)
    runner = found if preset == "python" else agent
    if runner is None:
        return replace(unavailable, problem=_no_agent())
    return replace(
        unavailable,
        description=entry.description or f"{kind.title} {found.version_text}",
        agent_python=runner.program,
        program=found.program,
        reserved_mb=reserved_mb(preset, found.version),
        binds=_binds([*found.prefixes, *runner.prefixes]),
        path=_path(found.program),
        packages=found.packages,
    )


def _binds(prefixes: Sequence[str]) -> tuple[ReadOnlyBind, ...]:
    """Bind each prefix at its own path, since interpreters know their path; each only once."""
    outermost = [
        prefix
        for prefix in dict.fromkeys(prefixes)
        if not any(other != prefix and is_within(prefix, other) for other in prefixes)
    ]
    return tuple(ReadOnlyBind(source=prefix, target=prefix) for prefix in outermost)


def _path(program: str) -> str:
    folder = os.path.dirname(program)
    return ":".join(BASE_PATH if in_base_system(folder) else (folder, *BASE_PATH))


class HostEnvironments:
    """Environments of the host's interpreters.

    An interpreter that could not be used is no verdict for good: the user may have been out of
    processes or memory, it may have been killed, or it is installed only now.

    Args:
        find: finds them for settings; blocks.

    Attributes:
        changed: called after each change.
    """

    def __init__(
        self, find: Callable[[Settings], Sequence[Environment]], settings: Settings
    ) -> None:
        self.find = find
        self._looks = 0
        self._one_at_a_time = trio.Lock()
        self.settings = settings
        self.found: Sequence[Environment] = ()
        self.changed: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<HostEnvironments {len(self.found)}>"

    async def begin(self) -> None:
        """Find them for the first time."""
        self.found = await trio.to_thread.run_sync(self.find, self.settings)

    def put(self, settings: Settings, found: Sequence[Environment]) -> None:
        """Take others, which were found for new settings."""
        self.settings, self.found = settings, found
        self.changed()

    async def search_again(self, _client: ClientIdentity | None = None) -> None:
        """Ask all interpreters again if one could not be used; all who come meanwhile wait."""
        if all(environment.problem is None for environment in self.found):
            return
        before = self._looks
        async with self._one_at_a_time:
            if self._looks != before:
                return
            settings = self.settings
            try:
                found = await trio.to_thread.run_sync(self.find, settings, abandon_on_cancel=True)
            except RuntimeError as error:  # threading's own, if there is no room for a thread
                log.warning("the interpreters of the host are not asked again: %s", error)
                return
            self._looks += 1
            if settings is self.settings and found != self.found:
                self.put(settings, found)


def _nothing() -> None:
    """Default for `changed`."""
