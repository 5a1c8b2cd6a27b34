"""Metadata of an artifact: its `metadata.json`, or its entry in `NIX_SANDBOX_METADATA`.

Pure. Every field is checked, and errors name the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from nsm import jsonlines
from nsm.dataclass import dataclass, field, replace
from nsmd.model.names import ENVIRONMENT_NAME, why_not_inherited
from nsmd.model.settings import (
    MAX_MEGABYTES,
    MAX_SECONDS,
    Defaults,
    InheritSettings,
    SessionSettings,
    Settings,
)
from nsmd.model.values import Interpreter

SCHEMA = 1
"""Newest supported version of metadata; 0 is that of the older project, which has no version."""

TEMPLATE_PROTOCOL = 2
"""Supported version of the protocol between a template and its supervisor; templates of other
versions are not used.
"""

MAX_DESCRIPTION_CHARS = 200
MAX_PRELOADED = 64

_INTERPRETERS: tuple[Interpreter, ...] = get_args(Interpreter)

_OLDER_NAMES: Mapping[str, Interpreter] = {
    "python": "python",
    "node": "node",
    "bash": "bash",
    "shell": "bash",
}
"""Interpreters of environments whose entry names none, like the older project's presets."""


_BESIDE = ("environments", "session", "project")
"""Keys of `NIX_SANDBOX_METADATA`."""


class MetadataError(Exception):
    """Metadata cannot be used; the message is a clause that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Facts about an environment that need no look at its programs.

    Attributes:
        schema: version of the metadata and of the programs' interface.
        interpreter, program, timeout_s, memory_mb, cpu_weight, preload: as in
            `nsmd.model.values.Environment`.
        forks: its template speaks a supported protocol.
        takes: as in `nsmd.model.values.Artifact`.
    """

    name: str
    interpreter: Interpreter
    timeout_s: float
    memory_mb: int
    cpu_weight: int = 100
    schema: int = 0
    program: str = ""
    description: str = ""
    preload: tuple[str, ...] = ()
    forks: bool = False
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPaths:
    """Absolute paths of an environment's programs, as in `nsmd.model.values.Artifact`."""

    run: str
    session_run: str | None = None
    template_run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Content of `NIX_SANDBOX_METADATA`.

    Attributes:
        environments: unchecked environments, by name.
        idle_timeout_s, max_lifetime_s: limits of sessions, seconds; None if absent.
        use_flake, inherited: as in `[project]` of config.toml.
    """

    environments: Mapping[str, object] = field(default_factory=dict[str, object])
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    use_flake: bool = False
    inherited: tuple[str, ...] = ()


def of_artifact(data: bytes, defaults: Defaults) -> Metadata:
    """Check a `metadata.json`.

    Args:
        data: the file's bytes.
        defaults: limits if it sets none.

    Raises:
        MetadataError: it cannot be used.
    """
    fields = _Fields(_parse(data), "it")
    return _metadata(fields, fields.name("name"), fields.interpreter(None), defaults)


def of_entry(name: str, value: object, defaults: Defaults) -> tuple[Metadata, ProgramPaths] | str:
    """Check one environment of `NIX_SANDBOX_METADATA`.

    Args:
        name: its key.
        value: its value.
        defaults: as in `of_artifact`.

    Returns:
        Metadata and programs; or the path of an artifact, whose own metadata has the rest.

    Raises:
        MetadataError: it cannot be used.
    """
    if not ENVIRONMENT_NAME.fullmatch(name):
        raise MetadataError(_bad_name("its name", name))
    fields = _Fields(value, "it")
    backend = fields.get("backend", "jail")
    if backend == "microvm":
        raise MetadataError("its backend, microvm, is not available yet; use `jail`")
    if backend != "jail":
        raise fields.wrong("backend", "`jail`")
    if (artifact := fields.optional_path("artifact")) is not None:
        return artifact
    programs = ProgramPaths(
        run=fields.path("exec"),
        session_run=fields.optional_path("session_exec"),
        template_run=fields.optional_path("template_exec"),
    )
    interpreter = fields.interpreter(_OLDER_NAMES.get(name))
    return _metadata(fields, name, interpreter, defaults), programs


def of_variable(text: str) -> Said:
    """Read the value of `NIX_SANDBOX_METADATA`, without checking its environments.

    Raises:
        MetadataError: it is no such value.
    """
    top = _Fields(_parse(text.encode("utf-8", "surrogatepass")), "it")
    session = _Fields(top.get("session", {}), "`session`")
    project = _Fields(top.get("project", {}), "`project`")
    # The first form had no wrapper: `{NAME: {"backend": ..., "exec": ...}}`. A misspelt key comes
    # here, too, and is then listed as an environment that cannot be used.
    flat = {name: each for name, each in top.values.items() if name not in _BESIDE}
    environments = flat if "environments" not in top.values else top.get("environments", {})
    return Said(
        environments=_Fields(environments, "`environments`").values,
        idle_timeout_s=session.seconds("idle_timeout_seconds", None),
        max_lifetime_s=session.seconds("max_lifetime_seconds", None),
        use_flake=project.get("use_flake", False) is True,
        inherited=project.names("inherit_env"),
    )


def with_said(settings: Settings, text: str | None) -> Settings:
    """Replace default settings by those in the supervisor's own metadata.

    Args:
        text: `NIX_SANDBOX_METADATA` of the supervisor's own environment. Errors in it are shown in
            the list of environments.
    """
    if text is None:
        return settings
    try:
        said = of_variable(text)
    except MetadataError:
        return settings
    session, project, usual = settings.session, settings.project, SessionSettings()
    if said.idle_timeout_s and session.idle_timeout_seconds == usual.idle_timeout_seconds:
        session = replace(session, idle_timeout_seconds=said.idle_timeout_s)
    if said.max_lifetime_s and session.max_lifetime_seconds == usual.max_lifetime_seconds:
        session = replace(session, max_lifetime_seconds=said.max_lifetime_s)
    if said.use_flake and not project.use_flake:
        inherited = project.inherit_env.vars or said.inherited
        project = replace(project, use_flake=True, inherit_env=InheritSettings(vars=inherited))
    return replace(settings, session=session, project=project)


def _metadata(fields: _Fields, name: str, interpreter: Interpreter, defaults: Defaults) -> Metadata:
    schema = fields.schema()
    timeout_s = fields.seconds("timeout_seconds", defaults.timeout_seconds)
    assert timeout_s is not None, "there is a default"
    older = schema == 0
    preload = () if older else fields.preload()
    if preload and interpreter != "python":
        raise MetadataError("preload is for Python environments only")
    return Metadata(
        name=name,
        interpreter=interpreter,
        timeout_s=timeout_s,
        memory_mb=fields.megabytes("memory_mb", defaults.memory_mb),
        cpu_weight=defaults.cpu_weight,
        schema=schema,
        program="" if older else fields.path("program"),
        description=fields.description(),
        preload=preload,
        forks=not older and fields.get("template", None) == TEMPLATE_PROTOCOL,
        takes=frozenset() if older else fields.takes(),
    )


def _parse(data: bytes) -> object:
    try:
        return jsonlines.parse(data)
    except ValueError as error:
        raise MetadataError(f"it is not valid JSON: {error}") from None


def _bad_name(field: str, found: object) -> str:
    return (
        f"{field} is {found!r:.80}, expected 1 to 64 of a-z, 0-9 and '-', beginning with a letter "
        "or digit"
    )


class _Fields:
    """Reader of one JSON object's fields.

    Raises:
        MetadataError: it is no object.
    """

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise MetadataError(f"{what} is {value!r:.80}, expected an object")
        self.values = cast("dict[str, Any]", value)

    def get(self, key: str, default: object) -> object:
        """Return a field; null counts as absent."""
        found = self.values.get(key)
        return default if found is None else found

    def wrong(self, key: str, expected: str) -> MetadataError:
        """Make the error for a field."""
        if self.values.get(key) is None:
            return MetadataError(f"{key} is missing, expected {expected}")
        return MetadataError(f"{key} is {self.values[key]!r:.80}, expected {expected}")

    def schema(self) -> int:
        found = self.get("schema", 0)
        if type(found) is not int or found < 0:
            raise self.wrong("schema", f"a whole number up to {SCHEMA}")
        if found > SCHEMA:
            raise MetadataError(
                f"it was made for a newer nsm (schema {found}; this one knows up to {SCHEMA}). "
                "Update nsm, or build the environment with the nsm that you have"
            )
        return found

    def name(self, key: str) -> str:
        found = self.values.get(key)
        if not isinstance(found, str) or not ENVIRONMENT_NAME.fullmatch(found):
            raise MetadataError(_bad_name(key, found))
        return found

    def interpreter(self, default: Interpreter | None) -> Interpreter:
        found = self.get("interpreter_type", default)
        for known in _INTERPRETERS:
            if found == known:
                return known
        raise self.wrong("interpreter_type", " or ".join(_INTERPRETERS))

    def seconds(self, key: str, default: float | None) -> float | None:
        found = self.get(key, default)
        if found is None:
            return None
        if type(found) not in (int, float) or not 0 < cast("float", found) <= MAX_SECONDS:
            raise self.wrong(key, f"a number of seconds above 0, at most {MAX_SECONDS}")
        return float(cast("float", found))

    def megabytes(self, key: str, default: int) -> int:
        found = self.get(key, default)
        if type(found) is not int or not 1 <= found <= MAX_MEGABYTES:
            raise self.wrong(key, f"a whole number of MiB from 1 to {MAX_MEGABYTES}")
        return found

    def path(self, key: str) -> str:
        found = self.values.get(key)
        if not isinstance(found, str) or not found.startswith("/") or not found.isprintable():
            raise self.wrong(key, "an absolute path")
        return found

    def optional_path(self, key: str) -> str | None:
        return None if self.values.get(key) is None else self.path(key)

    def names(self, key: str) -> tuple[str, ...]:
        found = self.get(key, [])
        if not isinstance(found, list):
            raise self.wrong(key, "a list of names of variables")
        for name in cast("list[object]", found):
            if reason := why_not_inherited(name if isinstance(name, str) else repr(name)):
                raise MetadataError(f"{key}: {reason}")
        return tuple(cast("list[str]", found))

    def takes(self) -> frozenset[str]:
        found = self.get("takes", [])
        if not isinstance(found, list):
            raise self.wrong("takes", "a list of texts")
        # A newer nsm would pass on what is unknown here.
        return frozenset(each for each in cast("list[object]", found) if isinstance(each, str))

    def description(self) -> str:
        found = self.get("description", "")
        if not isinstance(found, str):
            raise self.wrong("description", "text")
        line = " ".join(found.split())
        return "".join(c for c in line if c.isprintable())[:MAX_DESCRIPTION_CHARS]

    def preload(self) -> tuple[str, ...]:
        found = self.get("preload", [])
        if not isinstance(found, list):
            raise self.wrong("preload", "a list of Python modules")
        modules = cast("list[object]", found)
        if len(modules) > MAX_PRELOADED:
            raise MetadataError(f"preload has {len(modules)} modules, at most {MAX_PRELOADED}")
        for module in modules:
            if not isinstance(module, str) or not all(p.isidentifier() for p in module.split(".")):
                raise MetadataError(f"preload has {module!r:.80}, which is no Python module")
        return tuple(cast("list[str]", modules))
