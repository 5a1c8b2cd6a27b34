"""Metadata of an artifact: its `metadata.json`, or its entry in `NIX_SANDBOX_METADATA`.

Pure. Every field is checked, and errors name the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args

from nsm import jsonlines
from nsm.dataclass import dataclass, replace
from nsm.wire.decode import Constraint, Converted, DecodeError, between, decode
from nsm.wire.tuples import NamedTuple
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

_OLDER_NAMES: Mapping[str, Interpreter] = {
    "python": "python",
    "node": "node",
    "bash": "bash",
    "shell": "bash",
}
"""Interpreters of environments whose entry names none, like the older project's presets."""

_NEWER = ("program", "preload", "template", "takes")
"""Keys that the older version does not have."""


class MetadataError(Exception):
    """Metadata cannot be used; the message is a clause that says why."""


T = TypeVar("T")

_NAME_RULE = "1 to 64 of a-z, 0-9 and '-', beginning with a letter or digit"


def _is_name(text: str) -> bool:
    return ENVIRONMENT_NAME.fullmatch(text) is not None


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable()


def _is_time(seconds: float) -> bool:
    return 0 < seconds <= MAX_SECONDS


def _is_ours(template: object) -> bool:
    return template == TEMPLATE_PROTOCOL


def _any_value(_: object) -> bool:
    return True


def _line(text: str) -> str:
    line = " ".join(text.split())
    return "".join(c for c in line if c.isprintable())[:MAX_DESCRIPTION_CHARS]


def _modules(modules: list[Any]) -> tuple[str, ...]:
    if len(modules) > MAX_PRELOADED:
        raise MetadataError(f"preload has {len(modules)} modules, at most {MAX_PRELOADED}")
    for module in modules:
        if not isinstance(module, str) or not all(p.isidentifier() for p in module.split(".")):
            raise MetadataError(f"preload has {module!r:.80}, which is not a Python module")
    return tuple(modules)


def _variables(names: list[Any]) -> tuple[str, ...]:
    for name in names:
        if reason := why_not_inherited(name if isinstance(name, str) else repr(name)):
            raise MetadataError(f"inherit_env: {reason}")
    return tuple(names)


def _texts(values: list[Any]) -> frozenset[str]:
    # A newer nsm would pass on what is unknown here.
    return frozenset(each for each in values if isinstance(each, str))


_Path = Annotated[str, Constraint(_is_path, "an absolute path")]
_Seconds = Annotated[
    float, Constraint(_is_time, f"a number of seconds above 0, at most {MAX_SECONDS}")
]


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

    name: Annotated[str, Constraint(_is_name, _NAME_RULE)]
    interpreter: Annotated[
        Interpreter,
        "interpreter_type",
        Constraint(_any_value, " or ".join(get_args(Interpreter))),
    ]
    timeout_s: Annotated[_Seconds, "timeout_seconds"]
    memory_mb: Annotated[int, between(1, MAX_MEGABYTES, "a whole number of MiB")]
    cpu_weight: int = 100
    schema: int = 0
    program: _Path = ""
    description: Annotated[str, Converted(str, _line)] = ""
    preload: Annotated[
        tuple[str, ...],
        Converted(list[Any], _modules),
        Constraint(_any_value, "a list of Python modules"),
    ] = ()
    forks: Annotated[bool, "template", Converted(Any, _is_ours)] = False
    takes: Annotated[
        frozenset[str], Converted(list[Any], _texts), Constraint(_any_value, "a list of texts")
    ] = frozenset()


class _Entry(NamedTuple):
    """An entry of `NIX_SANDBOX_METADATA`: an artifact, or its programs."""

    artifact: _Path | None = None
    exec: _Path = ""
    session_exec: _Path | None = None
    template_exec: _Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPaths:
    """Absolute paths of an environment's programs, as in `nsmd.model.values.Artifact`."""

    run: str
    session_run: str | None = None
    template_run: str | None = None


class SessionTimes(NamedTuple):
    """Limits of sessions; None if absent."""

    idle_timeout_seconds: _Seconds | None = None
    max_lifetime_seconds: _Seconds | None = None


class FlakeSettings(NamedTuple):
    """Settings as in `[project]` of config.toml."""

    use_flake: Any = False
    inherit_env: Annotated[
        tuple[str, ...],
        Converted(list[Any], _variables),
        Constraint(_any_value, "a list of names of variables"),
    ] = ()


class MetadataVariable(NamedTuple):
    """Content of `NIX_SANDBOX_METADATA`; its environments are not checked."""

    environments: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it
    session: SessionTimes = SessionTimes()
    project: FlakeSettings = FlakeSettings()


def parse_file(data: bytes, defaults: Defaults) -> Metadata:
    """Check a `metadata.json`; `defaults` are its limits if it sets none."""
    return _metadata(_object(_parse(data)), defaults)


def parse_entry(
    name: str, value: object, defaults: Defaults
) -> tuple[Metadata, ProgramPaths] | str:
    """Check one environment of `NIX_SANDBOX_METADATA`.

    Returns:
        Metadata and programs; or the path of an artifact, whose own metadata has the rest.
    """
    if not _is_name(name):
        raise MetadataError(f"its name is {name!r:.80}, expected {_NAME_RULE}")
    entry = _object(value)
    backend = entry.get("backend")
    if backend == "microvm":
        raise MetadataError("its backend, microvm, is not available yet; use `jail`")
    if backend not in (None, "jail"):
        raise MetadataError(f"backend is {backend!r:.80}, expected `jail`")
    artifact, run, session_run, template_run = _checked(_Entry, entry)
    if artifact is not None:
        return artifact
    if not run:
        raise MetadataError("exec is missing, expected an absolute path")
    programs = ProgramPaths(run=run, session_run=session_run, template_run=template_run)
    if entry.get("interpreter_type") is None and name in _OLDER_NAMES:
        entry = {**entry, "interpreter_type": _OLDER_NAMES[name]}
    return _metadata({**entry, "name": name}, defaults), programs


def parse_variable(text: str) -> MetadataVariable:
    """Read the value of `NIX_SANDBOX_METADATA`, without checking its environments."""
    top = _object(_parse(text.encode("utf-8", "surrogatepass")))
    if "environments" not in top:
        # The first form had no wrapper: `{NAME: {"backend": ..., "exec": ...}}`. A misspelt key
        # comes here, too, and is then listed as an environment that cannot be used.
        flat = {name: each for name, each in top.items() if name not in MetadataVariable._fields}
        top = {**top, "environments": flat}
    return _checked(MetadataVariable, top)


def settings_of(text: str | None) -> MetadataVariable:
    """Read the settings in a value of `NIX_SANDBOX_METADATA`; errors in it are shown in the list of
    environments, and not here.
    """
    try:
        return MetadataVariable() if text is None else parse_variable(text)
    except MetadataError:
        return MetadataVariable()


def with_variable(settings: Settings, text: str | None) -> Settings:
    """Replace default settings by those in the supervisor's own `NIX_SANDBOX_METADATA`."""
    found = settings_of(text)
    session, project, usual = settings.session, settings.project, SessionSettings()
    idle_s, lifetime_s = found.session
    if idle_s and session.idle_timeout_seconds == usual.idle_timeout_seconds:
        session = replace(session, idle_timeout_seconds=idle_s)
    if lifetime_s and session.max_lifetime_seconds == usual.max_lifetime_seconds:
        session = replace(session, max_lifetime_seconds=lifetime_s)
    if found.project.use_flake is True and not project.use_flake:
        inherited = project.inherit_env.vars or found.project.inherit_env
        project = replace(project, use_flake=True, inherit_env=InheritSettings(vars=inherited))
    return replace(settings, session=session, project=project)


def _metadata(plain: Mapping[str, Any], defaults: Defaults) -> Metadata:
    schema = _schema(plain)
    if schema == 0:
        plain = {key: value for key, value in plain.items() if key not in _NEWER}
    elif plain.get("program") is None:
        raise MetadataError("program is missing, expected an absolute path")
    usual = {"timeout_seconds": defaults.timeout_seconds, "memory_mb": defaults.memory_mb}
    given = {key: value for key, value in plain.items() if value is not None}
    ours = {"schema": schema, "cpu_weight": defaults.cpu_weight}
    found = _checked(Metadata, {**usual, **given, **ours})
    if found.preload and found.interpreter != "python":
        raise MetadataError("preload is for Python environments only")
    return found


def _schema(plain: Mapping[str, Any]) -> int:
    found = plain.get("schema")
    if found is None:
        return 0
    if type(found) is not int or found < 0:
        raise MetadataError(f"schema is {found!r:.80}, expected a whole number up to {SCHEMA}")
    if found > SCHEMA:
        raise MetadataError(
            f"it was made for a newer nsm (schema {found}; this one knows up to {SCHEMA}). "
            "Update nsm, or build the environment with the nsm that you have"
        )
    return found


def _checked(kind: type[T], plain: Mapping[str, Any]) -> T:
    try:
        return decode(kind, plain)
    except DecodeError as error:
        raise MetadataError(str(error)) from None


def _object(value: object) -> dict[str, Any]:
    try:
        return decode(dict[str, Any], value)
    except DecodeError as error:
        raise MetadataError(str(error)) from None


def _parse(data: bytes) -> object:
    try:
        return jsonlines.parse(data)
    except ValueError as error:
        raise MetadataError(f"it is not valid JSON: {error}") from None
