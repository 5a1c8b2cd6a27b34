"""Reader of `config.toml`; its errors are in terms of the file, and all of them are named at once.

Each table is read into its class of `nsmd.model.settings` by `nsm.wire.decode`. Every key has a
default, so a missing file is a valid one.

pydantic would be a second decoder, takes a quarter of a second to import, and has messages that
would have to be written anew in terms of the file. msgspec stops at the first mistake.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from nsm.http.listen_address import parse_listen, parse_port, why_no_host, why_no_origin
from nsm.wire.decode import DecodeError, decode, shown
from nsm.wire.errors import closest
from nsm.wire.inspection import read_all_requests
from nsmd.model.host_rules import (
    HOST_NAME,
    BadHostError,
    HostRuleError,
    parse_authority,
    parse_rule,
)
from nsmd.model.names import ENVIRONMENT_NAME, PROGRAM_NAME, why_not_inherited
from nsmd.model.packages import why_no_devices, why_no_packages, why_no_reference
from nsmd.model.secrets import SecretRuleError, parse_source
from nsmd.model.settings import (
    HIDDEN,
    OLDER_PRESETS,
    PRESETS,
    BoxDefaults,
    EnvironmentSettings,
    HttpSettings,
    Settings,
    UpstreamSettings,
    network_rule,
)

MAX_CONFIG_BYTES = 1024 * 1024

_SCHEMES = ("unix:", "path:", "git+file://", "git+file:")
"""Prefixes that a path may have."""

BACKEND = "jail"
"""The only backend. Keys that name it are for `lib.fromToml`."""

_OTHERS_TABLES = ("backends", "daemon")
"""Tables of the older nix-sandbox-mcp."""

MAX_VARIABLES_BYTES = 96 * 1024
"""Largest size of one environment's `env`, names and values together: room for certificates."""


T = TypeVar("T")
Place = tuple[str, ...]
"""Keys that lead to a table or a value. (A key may have a dot itself.)"""


class ConfigError(Exception):
    """The configuration file cannot be used; `problems` has one line per mistake."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{path}: {problem}" for problem in self.problems))


def load(path: str) -> Settings:
    """Read the settings in a file; the defaults if it does not exist. Raises `ConfigError`."""
    return parse(_read(path), path)


def unused_keys(path: str) -> list[str]:
    """List keys in a file that the supervisor accepts but does not use, since they are for other
    programs. Raises `ConfigError`.
    """
    return _set_aside(_table_of(_read(path), path))


def parse(data: bytes, path: str) -> Settings:
    """Parse the text of a file; relative paths in it begin in the directory of `path`."""
    table = _table_of(data, path)
    _set_aside(table)
    _respell(table, os.path.dirname(os.path.abspath(path)))
    problems: list[str] = []
    settings = _read_table(Settings, table, (), problems)
    if settings is not None:
        wrong = [problem.partition(": ")[0] for problem in problems]
        problems += [each for each in _cross_check(settings) if not _may_follow(each, wrong)]
    if settings is None or problems:
        raise ConfigError(path, problems)
    return settings


def _may_follow(problem: str, wrong: Sequence[str]) -> bool:
    """Return whether a problem may come from a wrong key, whose default was checked."""
    key = problem.partition(": ")[0]
    return any(
        each == key
        or each.startswith((f"{key}.", f"{key}["))
        or f"[{'.'.join(each.split('.')[:2])}]" in problem
        for each in wrong
    )


def _read_table(kind: type[T], table: object, place: Place, problems: list[str]) -> T | None:
    """Read a table into its class, without wrong keys; None if that cannot be. `problems` gets what
    is wrong.
    """
    if not isinstance(table, dict):
        key = ".".join(place)
        problems.append(f"{key}: {_found(place, table)}, expected a table [{key}]")
        return None
    hints = get_type_hints(kind, include_extras=True)
    known = {name.rstrip("_"): name for name in hints}
    values: dict[str, Any] = {}
    before = len(problems)
    for key, plain in cast("dict[str, object]", table).items():
        if (name := known.get(key)) is None:
            problems.append(_unknown_key((*place, key), plain, list(known)))
        elif (value := _read_value(hints[name], plain, (*place, key), problems)) is not None:
            values[name] = value
    try:
        return kind(**values)
    except TypeError:  # a key without a default is missing, or wrong
        if len(problems) == before:
            problems.append(f"{'.'.join(place)}: needs all of {', '.join(known)}")
        return None


def _read_value(kind: Any, plain: object, place: Place, problems: list[str]) -> Any:
    """Read the value of a key; None if it is wrong."""
    if dataclasses.is_dataclass(kind):
        return _read_table(cast("type[Any]", kind), plain, place, problems)
    if get_origin(kind) is dict and dataclasses.is_dataclass(entry := get_args(kind)[1]):
        if isinstance(plain, dict):
            read = {
                name: _read_table(cast("type[Any]", entry), table, (*place, name), problems)
                for name, table in cast("dict[str, object]", plain).items()
            }
            return {name: table for name, table in read.items() if table is not None}
        kind = Mapping[str, object]
    try:
        return decode(kind, plain)
    except DecodeError as error:
        inner = error.path if error.path.startswith("[") else error.path and f".{error.path}"
        problems.append(
            f"{'.'.join(place)}{inner}: {_found(place, error.found)}, expected {error.expected}"
        )
        return None


def _found(place: Place, plain: object) -> str:
    """Say what is there, or only its type if it may be a secret."""
    if not {"secrets", "env"}.isdisjoint(place):  # of the whole file, an environment, or a box
        return f"found something of type {type(plain).__name__}"
    return f"found {shown(plain)}"


def _unknown_key(place: Place, plain: object, known: list[str]) -> str:
    key, last = ".".join(place), place[-1]
    if last == "backend" and place[0] in ("defaults", "environments"):
        return f"{key}: {_found(place, plain)}, expected {BACKEND!r}"
    near = closest(last, known)
    suggestion = f"; did you mean {near!r}?" if near else "."
    return f"{key}: unknown key{suggestion} Known here: {', '.join(known)}"


def _read(path: str) -> bytes:
    """Read a file; empty if it does not exist."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from error
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(path, [f"is larger than {MAX_CONFIG_BYTES} bytes"])
    return data


def _table_of(data: bytes, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, [f"is not UTF-8 text (byte {error.start})"]) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or too long a number
        raise ConfigError(path, [f"is not valid TOML: {error}"]) from error


def _set_aside(table: dict[str, Any]) -> list[str]:
    """Remove what only `lib.fromToml` and the older nix-sandbox-mcp understand, so that one file
    serves all. Returns the removed keys. Another backend than ours stays, and is refused as
    unknown.
    """
    keys = [key for key in _OTHERS_TABLES if isinstance(table.get(key), dict)]
    for key in keys:
        del table[key]
    environments: object = table.get("environments")
    sections: list[tuple[str, object]] = [("defaults", table.get("defaults"))]
    if isinstance(environments, dict):
        entries = cast("dict[str, object]", environments).items()
        sections += [(f"environments.{name}", entry) for name, entry in entries]
    for name, section in sections:
        if not isinstance(section, dict):
            continue
        entry = cast("dict[str, object]", section)
        if entry.get("backend") == BACKEND:
            del entry["backend"]
            keys.append(f"{name}.backend")
        if "flake" in entry and "interpreter" in entry:  # the sandbox has its own
            keys.append(f"{name}.interpreter")
    return keys


def dump(settings: Settings) -> dict[str, Any]:
    """The effective settings as plain values, for `nsm config show`.

    Values of sessions' variables are left out, because people put the output into reports and
    tickets.
    """
    plain = dataclasses.asdict(settings)
    for environment in plain["environments"].values():
        environment["env"] = dict.fromkeys(environment["env"], HIDDEN)
    plain["secrets"] = {
        name: {key.rstrip("_"): value for key, value in secret.items()}
        for name, secret in plain["secrets"].items()
    }
    return plain


def _cross_check(settings: Settings) -> Iterator[str]:
    """Rules that a type cannot express."""
    for name, environment in settings.environments.items():
        if not ENVIRONMENT_NAME.fullmatch(name):
            yield (
                f"environments.{name!r}: a name is 1 to 64 of a-z, 0-9 and '-', "
                "beginning with a letter or digit"
            )
        network = f"environments.{name}.network"
        yield from _check_hosts(network, environment.network_rule.allow)
        yield from _check_variables(name, environment.env)
        if why := why_no_devices(environment.devices):
            yield f"environments.{name}.devices: {why}"
        if environment.flake is not None:
            yield from _check_flake(name, environment, environment.flake)
            continue
        yield from _check_packages(name, environment)
        made = environment.packages is not None
        if environment.preset is None and name not in PRESETS and not made:
            yield (
                f"environments.{name}: has neither preset nor flake, and {name!r} is not a preset "
                f'itself. Add preset = "python" (or {", ".join(PRESETS[1:])}), or '
                'flake = "REF#ATTRIBUTE"'
            )
        program = None if environment.image else environment.interpreter
        if program is not None and not program.startswith("/"):
            yield (
                f"environments.{name}.interpreter: found {environment.interpreter!r}, "
                "expected an absolute path"
            )
        yield from _check_modules(name, environment)
        if environment.preload and (environment.preset or name) != "python" and not made:
            yield f"environments.{name}.preload: is for Python environments only"
    yield from _check_inherited(settings.project.inherit_env.vars)
    if settings.project.use_flake and "project" in settings.environments:
        yield (
            "environments.project: with project.use_flake, that is the name of the project's own "
            "shell; choose another one"
        )
    if settings.project.path is not None and not settings.project.path.startswith("/"):
        yield f"project.path: found {settings.project.path!r}, expected the path of a directory"
    yield from _check_secrets(settings)
    yield from _check_box(settings.box)
    yield from _check_http(settings.http)
    yield from _check_upstream(settings.network)
    yield from _check_build_hosts(settings.packages.hosts)
    for each in settings.ports.open:
        try:
            parse_port(each)
        except ValueError as error:
            yield f"ports.open: found {each!r:.80}, {error}"


def _check_inherited(names: Sequence[str]) -> Iterator[str]:
    key = "project.inherit_env.vars"
    for name in names:
        if reason := why_not_inherited(name):
            yield f"{key}: {reason}"


def _check_flake(name: str, environment: EnvironmentSettings, flake: str) -> Iterator[str]:
    """Check an environment that Nix builds. Its interpreter is the sandbox's own; the file's
    `interpreter` is for `lib.fromToml`, which reads the same file, and is not checked here.
    """
    if environment.preset is not None:
        yield f"environments.{name}: has preset and flake. Remove one"
    if environment.packages is not None:
        yield f"environments.{name}: has packages and flake. Remove one"
    if environment.devices:
        yield (
            f"environments.{name}.devices: an environment from a flake makes its jails itself, and "
            "has no devices. Use a preset, packages or an image"
        )
    if why := why_no_reference(flake):
        yield (
            f"environments.{name}.flake: found {flake!r:.80}, {why}; expected a reference like "
            '"github:OWNER/REPO#NAME" or "path:/DIRECTORY#NAME"'
        )
    yield from _check_modules(name, environment)


def _check_packages(name: str, environment: EnvironmentSettings) -> Iterator[str]:
    packages = environment.packages
    if packages is None:
        if environment.allow_builds:
            yield f"environments.{name}.allow_builds: is for environments with packages"
        return
    if environment.preset not in (None, packages.preset):
        yield f"environments.{name}: these packages are for the preset {packages.preset}"
    for key, why in why_no_packages(packages):
        if key not in ("interpreter", "preload"):  # checked for all environments
            written = "interpreter" if key == "language" else key
            yield f"environments.{name}.{written}: {why}"


def _check_hosts(key: str, patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        try:
            parse_rule(pattern)
        except HostRuleError as error:
            yield f"{key}: {pattern!r:.80} {error}"


def _check_upstream(network: UpstreamSettings) -> Iterator[str]:
    """Check the upstream proxy. Its text is not shown: it may have a password."""
    if network.upstream not in (None, "off"):
        try:
            parse_authority(network.upstream.removeprefix("http://").removesuffix("/"), 80)
        except BadHostError:
            yield (
                'network.upstream: expected "http://HOST:PORT", or "off". A login belongs into '
                "~/.netrc, or where network.upstream_login says"
            )
    if network.upstream_login is not None:
        try:
            parse_source(network.upstream_login)
        except SecretRuleError as error:
            yield f"network.upstream_login: {error}"


def _check_build_hosts(patterns: Sequence[str]) -> Iterator[str]:
    """Check hosts that builds may reach: listed ones may be private, so they have to be named."""
    key = "packages.hosts"
    yield from (problems := [*_check_hosts(key, patterns)])
    for rule in map(parse_rule, [] if problems else patterns):
        if rule.request is not None:
            yield f"{key}: {rule.text!r} is a rule for requests, expected a host"
        elif rule.name == HOST_NAME:
            yield f"{key}: {rule.text!r} is for sessions, expected localhost or 127.0.0.1"
        elif rule.name is None and (rule.network is None or not rule.network.prefixlen):
            yield (
                f"{key}: {rule.text!r} is every host, expected the names of hosts, such as "
                '"files.example.org" or "*.example.org:8443"'
            )


def _check_secrets(settings: Settings) -> Iterator[str]:
    """Check all secrets, and that those exist which are granted."""
    for name, secret in settings.secrets.items():
        try:
            secret.secret(name)
        except SecretRuleError as error:
            yield f"secrets.{name}: {error}"
    granted = [("box.secrets", settings.box.secrets)]
    granted += [(f"environments.{n}.secrets", e.secrets) for n, e in settings.environments.items()]
    for key, names in granted:
        for name in names:
            if name not in settings.secrets:
                yield f"{key}: there is no table [secrets.{name:.80}]"


def _check_box(box: BoxDefaults) -> Iterator[str]:
    yield from _check_hosts("box.net", network_rule(box.net).allow)
    for key, paths in (("protect_paths", box.protect_paths), ("unprotect", box.unprotect)):
        for path in paths:
            if not path or path.startswith("/") or ".." in path.split("/"):
                yield f"box.{key}: found {path!r:.80}, expected a path inside the working directory"
    for key, paths in (("show", box.show), ("add", box.add)):
        for path in paths:
            if not os.path.expanduser(path).startswith("/"):
                yield f"box.{key}: found {path!r:.80}, expected an absolute path, or one below ~"
    if not all(box.hide) or any("\0" in path for path in box.hide):
        yield f"box.hide: found {list(box.hide)!r:.80}, expected texts that are not empty"
    for path in box.persist:
        if not path.startswith("~/") or not path.strip("~/") or {"..", "."} & {*path.split("/")}:
            yield f"box.persist: found {path!r:.80}, expected a directory below ~/"
    if not all(name.isidentifier() and name.isascii() for name in box.env):
        # The text is not shown: it may be NAME=SECRET.
        yield "box.env: found something that is not a variable name"
    for program in box.bridge:
        if not PROGRAM_NAME.fullmatch(program):
            yield f"box.bridge: found {program!r:.80}, expected names of the bridge's programs"


def _check_http(http: HttpSettings) -> Iterator[str]:
    try:
        parse_listen(http.listen)
    except ValueError as error:
        yield f"http.listen: found {http.listen!r:.80}, {error}"
    for host in http.hosts:
        if why := why_no_host(host):
            yield f"http.hosts: found {host!r:.80}, {why}"
    for origin in http.origins:
        if why := why_no_origin(origin):
            yield f"http.origins: found {origin!r:.80}, {why}"
    for program in http.programs:
        if not PROGRAM_NAME.fullmatch(program):
            yield f"http.programs: found {program!r:.80}, expected names of the bridge's programs"
    if http.project is not None and not http.project.startswith("/"):
        yield f"http.project: found {http.project!r:.80}, expected an absolute path"
    yield from _check_hosts("http.network", http.network_rule.allow)


def _check_variables(name: str, variables: Mapping[str, str]) -> Iterator[str]:
    key = f"environments.{name}.env"
    for variable, value in variables.items():
        if reason := why_not_inherited(variable):
            yield f"{key}: {reason}"
        elif "\0" in value:
            yield f"{key}.{variable}: has a NUL character, which no variable can"
    size = sum(len(f"{variable}={value}".encode()) for variable, value in variables.items())
    if size > MAX_VARIABLES_BYTES:
        yield f"{key}: has {size} bytes, expected at most {MAX_VARIABLES_BYTES}; use files instead"


def _check_modules(name: str, environment: EnvironmentSettings) -> Iterator[str]:
    for module in environment.preload:
        if not all(part.isidentifier() for part in module.split(".")):
            yield f"environments.{name}.preload: {module!r} is not the name of a Python module"


def _respell(table: dict[str, Any], directory: str) -> None:
    """Normalize in place what can be written in several ways: networks, paths below a home
    directory, and the project's path relative to the file's directory. A value of an unexpected
    type stays, and causes an error later.
    """
    rows: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("project", "path", lambda path: _joined(directory, _expanded(path))),
        ("http", "project", _expanded),
        ("http", "listen", _expanded),
        ("http", "network", _respelled),
        ("box", "net", _respelled),
    ]
    for name, key, respell in rows:
        _respell_key(table.get(name), key, respell)
    environments: object = table.get("environments")
    if isinstance(environments, dict):
        for environment in cast("dict[str, object]", environments).values():
            _respell_key(environment, "interpreter", _expanded)
            _respell_key(environment, "flake", _expanded)
            for key in ("requirements", "project", "package_lock"):
                _respell_key(environment, key, lambda path: _joined(directory, _expanded(path)))
            _respell_key(environment, "network", _respelled)
            _respell_key(environment, "preset", _newer_preset)


def _respell_key(section: object, key: str, respell: Callable[[Any], Any]) -> None:
    if isinstance(section, dict) and key in section:
        keys = cast("dict[str, Any]", section)
        keys[key] = respell(keys[key])


def _expanded(path: Any) -> Any:
    """Replace `~/` or `~USER/` at the beginning of a path by that home directory."""
    if not isinstance(path, str):
        return path
    scheme = next((each for each in _SCHEMES if path.startswith(f"{each}~")), "")
    return scheme + os.path.expanduser(path.removeprefix(scheme))


def _joined(directory: str, path: Any) -> Any:
    """Make a relative path absolute from a directory; one with an unknown home stays as it is."""
    if not isinstance(path, str) or not path or path.startswith("~"):
        return path
    return os.path.normpath(os.path.join(directory, path))


def _newer_preset(preset: Any) -> Any:
    return OLDER_PRESETS.get(preset, preset) if isinstance(preset, str) else preset


def _respelled(network: Any) -> Any:
    match network:
        case "host":
            return "full"
        case "none":
            return "off"
        case {"allow": list(), **others} if not others or others == {"intercept": False}:
            return network["allow"]
        case {"allow": list(), **others} if others == {"intercept": True}:
            hosts = cast("list[Any]", network["allow"])
            return [read_all_requests(each) if isinstance(each, str) else each for each in hosts]
        case _:
            return network


def render(settings: Settings) -> str:
    """Format the effective settings as a `config.toml`, without unset keys."""
    lines: list[str] = []
    for section, table in dump(settings).items():
        if section in ("environments", "secrets"):
            for name, entry in table.items():
                lines += _table(f"{section}.{name}", entry)
        else:
            lines += _table(section, table)
    return "\n".join(lines)


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    # JSON's texts, numbers and booleans are also valid TOML.
    rows = [
        f"{key} = {json.dumps(value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, dict)
    ]
    tables = [
        line
        for key, value in values.items()
        if isinstance(value, dict)
        for line in _table(f"{name}.{key}", cast("dict[str, Any]", value))
    ]
    return [f"[{name}]", *rows, "", *tables]
