"""Configuration of pip, uv and npm, and netrc: files and variables, as these programs read them.

Files are read with a bound. Faults are added to lists of `problems`, each a sentence that quotes no
line, which may hold a password. Configuration of a project is not read: it may come from anybody,
and would send builds, and variables of the user, to hosts of its choice.
"""

from __future__ import annotations

import configparser
import json
import netrc
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from typing import Any

from nsm.below import read_file
from nsm.dataclass import dataclass
from nsmd.packages.text_files import rows, table, tables

MAX_FILE_BYTES = 1024 * 1024

TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""Words for yes in pip's configuration; uv and npm take some of them."""


def read_text(path: str, problems: list[str], *, required: bool = False) -> str | None:
    """Read a file; None if there is none, or it cannot be read, which is a problem.

    That there is none is a problem only if it is `required`.
    """
    if path == os.devnull:
        return None
    try:
        data = read_file(path, MAX_FILE_BYTES + 1, links=True)
        if len(data) > MAX_FILE_BYTES:
            problems.append(f"{path} is larger than {MAX_FILE_BYTES} bytes and was not read")
            return None
        return data.decode()
    except (FileNotFoundError, NotADirectoryError):
        if required:
            problems.append(f"{path} does not exist")
    except UnicodeDecodeError:
        problems.append(f"{path} is not in UTF-8 and was not read")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name is invalid"
        problems.append(f"{path} could not be read: {why}")
    return None


def expand(path: str, home: str) -> str:
    """Replace ``~`` at the beginning of a path."""
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    return path


def config_home(environ: Mapping[str, str], home: str) -> str:
    """Return the directory of the user's configuration files."""
    return environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")


def config_directories(environ: Mapping[str, str], etc: str) -> list[str]:
    """Return the directories of the machine's configuration files."""
    said = environ.get("XDG_CONFIG_DIRS") or os.path.join(etc, "xdg")
    return [each for each in said.split(":") if os.path.isabs(each)]


def to_seconds(text: str) -> float | None:
    """Parse a number of seconds; None if it is none, or out of bounds."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None


def to_count(text: str) -> int | None:
    """Parse a small number; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


def read_netrc(
    environ: Mapping[str, str], home: str, problems: list[str]
) -> dict[str, tuple[str, str]]:
    """Read users and passwords by host, without the entry `default`, which is for every host."""
    chosen = environ.get("NETRC")
    names = [expand(chosen, home)] if chosen else [f"{home}/.netrc", f"{home}/_netrc"]
    path = next((name for name in names if os.path.exists(name)), None)
    if path is None or read_text(path, problems) is None:
        return {}
    try:
        hosts = netrc.netrc(path).hosts
    except (netrc.NetrcParseError, OSError, ValueError):
        # The error's text may quote a password.
        problems.append(f"{path} is not a valid netrc and was not read")
        return {}
    return {
        host.lower(): (user or "", password or "")
        for host, (user, _, password) in hosts.items()
        if host != "default"
    }


_SECTIONS = ("global", "install")
_OTHER_NAMES = {"pypi-url": "index-url", "default-timeout": "timeout"}
"""Names that pip takes as well."""


def read_pip_settings(
    environ: Mapping[str, str], home: str, *, etc: str, prefix: str | None, problems: list[str]
) -> dict[str, str]:
    """Read pip's settings: long names of options, without dashes, and their texts.

    As in pip's `_internal/configuration.py`: files of the machine, of the user, of the interpreter
    (in its `prefix`), then `PIP_CONFIG_FILE`, then variables; and in all of them `[global]` before
    `[install]`.
    """
    by_section: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for path in _pip_paths(environ, home, etc, prefix):
        required = path == environ.get("PIP_CONFIG_FILE")
        for section, name, value in _read_pip(path, problems, required=required):
            by_section[section][name] = value
    settings = {**by_section["global"], **by_section["install"]}
    for variable, value in environ.items():
        if variable.startswith("PIP_") and value:
            settings[_normal(variable.removeprefix("PIP_"))] = value
    return settings


def _pip_paths(environ: Mapping[str, str], home: str, etc: str, prefix: str | None) -> list[str]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    directories = [os.path.join(each, "pip") for each in config_directories(environ, etc)]
    directories.append(etc)
    if not chosen or not os.path.exists(chosen):
        directories.append(os.path.join(home, ".pip"))
        directories.append(os.path.join(config_home(environ, home), "pip"))
    if prefix:
        directories.append(prefix)
    paths = [os.path.join(directory, "pip.conf") for directory in directories]
    return [*paths, chosen] if chosen else paths


def _read_pip(path: str, problems: list[str], *, required: bool) -> list[tuple[str, str, str]]:
    text = read_text(path, problems, required=required)
    if text is None:
        return []
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
        return [
            (section, _normal(name), value)
            for section in _SECTIONS
            if parser.has_section(section)
            for name, value in parser.items(section)
            if value
        ]
    except configparser.Error:
        # The error's text quotes lines, which may hold a password.
        problems.append(f"{path} is not a valid configuration file of pip and was not read")
        return []


def _normal(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return _OTHER_NAMES.get(name, name)


_NAMED = re.compile(r"([A-Za-z0-9._-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UvIndex:
    """One index as uv's configuration names it: its name, which may be empty, its URL as written,
    perhaps with credentials, user and password from variables for that name, and whether it is one
    page with links.
    """

    name: str
    url: str
    login: tuple[str, str] | None = None
    is_flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UvSettings:
    """Settings of uv that concern indexes: the default one, others in uv's order, whether it uses
    none at all, hosts whose certificate is not checked, and `index-strategy`, empty if it is not
    set.
    """

    default: UvIndex | None
    others: tuple[UvIndex, ...]
    find_links: tuple[str, ...]
    no_index: bool
    insecure_hosts: tuple[str, ...]
    strategy: str


def read_uv_settings(
    environ: Mapping[str, str], home: str, *, etc: str, problems: list[str]
) -> UvSettings:
    """Read uv's settings."""
    layers = [
        each
        for path in _uv_paths(environ, home, etc)
        if (parsed := _read_uv(path, problems, environ)) is not None
        for each in (table(parsed.get("pip")), parsed)  # `[pip]` is for `uv pip` alone
    ]
    default, others = _named_by_variables(environ)
    find_links = list(_split(environ.get("UV_FIND_LINKS", ""), ","))
    for layer in layers:
        extra: list[UvIndex] = []
        for entry in tables(layer.get("index")):
            found = _index(entry)
            if found is None or entry.get("explicit") is True:
                continue
            if entry.get("default") is True:
                default = default or found
            else:
                extra.append(found)
        extra += [UvIndex(name="", url=url) for url in _texts(layer, "extra-index-url")]
        others += extra
        for url in _texts(layer, "index-url"):
            default = default or UvIndex(name="", url=url)
        find_links += _texts(layer, "find-links")
    hosts = _split(environ.get("UV_INSECURE_HOST", ""))
    return UvSettings(
        default=_with_login(default, environ) if default else None,
        others=tuple(_with_login(each, environ) for each in others),
        find_links=tuple(find_links),
        no_index=environ.get("UV_NO_INDEX", "").lower() in TRUE
        or any(layer.get("no-index") is True for layer in layers),
        insecure_hosts=(*hosts, *(x for t in layers for x in _texts(t, "allow-insecure-host"))),
        strategy=environ.get("UV_INDEX_STRATEGY")
        or next((x for t in layers for x in _texts(t, "index-strategy")), ""),
    )


def _uv_paths(environ: Mapping[str, str], home: str, etc: str) -> list[str]:
    if environ.get("UV_NO_CONFIG", "").lower() in TRUE:
        return []
    if chosen := environ.get("UV_CONFIG_FILE"):
        return [chosen]
    machine = [os.path.join(each, "uv/uv.toml") for each in config_directories(environ, etc)]
    machine.append(os.path.join(etc, "uv/uv.toml"))
    first = next((path for path in machine if os.path.exists(path)), None)
    user = os.path.join(config_home(environ, home), "uv/uv.toml")
    return [user, first] if first else [user]


def _read_uv(path: str, problems: list[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    text = read_text(path, problems, required=path == environ.get("UV_CONFIG_FILE"))
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        problems.append(f"{path} is not valid TOML and was not read")
        return None


def _named_by_variables(environ: Mapping[str, str]) -> tuple[UvIndex | None, list[UvIndex]]:
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    others = environ.get("UV_INDEX", "").split() + environ.get("UV_EXTRA_INDEX_URL", "").split()
    return _maybe_named(default) if default else None, [_maybe_named(each) for each in others]


def _maybe_named(text: str) -> UvIndex:
    if (named := _NAMED.fullmatch(text)) is not None:
        return UvIndex(name=named[1], url=named[2])
    return UvIndex(name="", url=text)


def _with_login(index: UvIndex, environ: Mapping[str, str]) -> UvIndex:
    if not index.name:
        return index
    name = re.sub(r"[^A-Z0-9]", "_", index.name.upper())
    user = environ.get(f"UV_INDEX_{name}_USERNAME", "")
    password = environ.get(f"UV_INDEX_{name}_PASSWORD", "")
    if not user and not password:
        return index
    return UvIndex(name=index.name, url=index.url, login=(user, password), is_flat=index.is_flat)


def _index(entry: Mapping[str, Any]) -> UvIndex | None:
    url, name = entry.get("url"), entry.get("name")
    if not isinstance(url, str):
        return None
    return UvIndex(
        name=name if isinstance(name, str) else "", url=url, is_flat=entry.get("format") == "flat"
    )


def _texts(layer: Mapping[str, Any], name: str) -> list[str]:
    found = layer.get(name)
    return [found] if isinstance(found, str) else [x for x in rows(found) if isinstance(x, str)]


def _split(text: str, mark: str | None = None) -> list[str]:
    return [each.strip() for each in text.split(mark) if each.strip()]


_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_PREFIX = "npm_config_"


def read_npm_settings(
    environ: Mapping[str, str], home: str, *, etc: str, problems: list[str]
) -> dict[str, list[str]]:
    """Read npm's settings: keys and their values, of which only arrays have several.

    Files have lines ``key = value``; ``${NAME}`` stands for a variable. As in npm's own `ini` and
    `@npmcli/config`, as far as registries need it.
    """
    variables = _variables(environ)
    user = variables.get("userconfig", os.path.join(home, ".npmrc"))
    settings: dict[str, list[str]] = {}
    for path in (*_machine_paths(environ, variables, etc), expand(user, home)):
        text = read_text(path, problems)
        if text is not None:
            settings.update(parse_npmrc(text, environ))
    settings.update({key: [value] for key, value in variables.items()})
    return settings


def parse_npmrc(text: str, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Parse an `.npmrc`; lines that are no settings are left out, as npm does."""
    settings: dict[str, list[str]] = {}
    for line in re.split(r"[\r\n]+", text):
        stripped = line.strip()
        if not stripped or stripped[0] in ";#":
            continue
        if stripped.startswith("[") and stripped.endswith("]"):
            break  # a section; npm has none, and nothing after it is a setting of its own
        key, equals, value = line.partition("=")
        name = _replaced(_plain(key), environ)
        plain = _replaced(_plain(value), environ) if equals else "true"
        if name.endswith("[]"):
            settings.setdefault(name[:-2], []).append(plain)
        else:
            settings[name] = [plain]
    return settings


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in environ.items():
        if not name.lower().startswith(_PREFIX) or not value:
            continue
        key = name[len(_PREFIX) :]
        if key and not key.startswith("//"):
            key = (key[0] + key[1:].replace("_", "-")).lower()
        found[key] = value
    return found


def _machine_paths(environ: Mapping[str, str], variables: Mapping[str, str], etc: str) -> list[str]:
    if chosen := variables.get("globalconfig"):
        return [chosen]
    paths = [os.path.join(etc, "npmrc")]  # Debian's npm has it there
    prefix = variables.get("prefix") or environ.get("PREFIX")
    if not prefix and (node := shutil.which("node", path=environ.get("PATH", ""))):
        prefix = os.path.dirname(os.path.dirname(os.path.realpath(node)))
    if prefix:
        paths.append(os.path.join(prefix, "etc/npmrc"))
    return paths


def _plain(text: str) -> str:
    """Take away quotes and comments."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1] if text[0] == "'" else text
        try:
            parsed = json.loads(inner)
        except (ValueError, RecursionError):
            return inner.strip('"') if text[0] == '"' else inner
        return parsed if isinstance(parsed, str) else inner
    plain = ""
    place = 0
    while place < len(text):
        mark = text[place]
        if mark == "\\" and text[place + 1 : place + 2] in tuple("\\;#"):
            plain += text[place + 1]
            place += 2
            continue
        if mark in ";#":
            break
        plain += mark
        place += 1
    return plain.strip()


def _replaced(text: str, environ: Mapping[str, str]) -> str:
    def value_of(found: re.Match[str]) -> str:
        backslashes, name, optional = found[1], found[2], found[3]
        if len(backslashes) % 2:
            return found[0][(len(backslashes) + 1) // 2 :]
        value = environ.get(name, "" if optional else f"${{{name}}}")
        return backslashes[: len(backslashes) // 2] + value

    return _VARIABLE.sub(value_of, text)
