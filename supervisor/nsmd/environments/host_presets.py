"""Environments from presets, made from this host's own interpreters. All functions block, for some
50 ms: call `find_environments` in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import trio

from nsm import paths
from nsm.dataclass import replace
from nsmd.host.locales import Variables
from nsmd.host.paths import is_within
from nsmd.jail.host import BASE_PATH
from nsmd.jail.interpreters import (
    INTERPRETERS,
    FoundInterpreter,
    InterpreterFinder,
    Unreadable,
    find_agent_python,
    in_base_system,
    reserved_mb,
    why_no_agent,
)
from nsmd.model.settings import PRESETS, EnvironmentSettings, Preset, Settings
from nsmd.model.values import ClientIdentity, Environment, ReadOnlyBind

log = logging.getLogger(__name__)

_Wanted = tuple[Preset, str | None]
"""A preset and the interpreter that was configured for it."""


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
    finder = InterpreterFinder(search_path, os.path.realpath(home or paths.home()), unreadable)
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
    agent = find_agent_python(finder, [found[key] for key in distinct if key[0] == "python"])
    return tuple(
        replace(
            _environment(name, entry, settings, keys[name][0], found[keys[name]], agent),
            source="config.toml" if name in configured else "preset",
            variables=tuple({**dict(variables), **entry.env}.items()),
        )
        for name, entry in wanted.items()
    )


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
    finder = InterpreterFinder(search_path, home, unreadable, keep_venv=False)
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
    kind = INTERPRETERS[preset]
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
        return replace(unavailable, problem=why_no_agent())
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
