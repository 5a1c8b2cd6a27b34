"""Configuration files and variables of npm.

Its files have lines ``key = value``; ``${NAME}`` stands for a variable. As in npm's own `ini` and
`@npmcli/config`, as far as registries need it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping

from nsmd.environments.packages.indexes.files import expand, read_text

_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_PREFIX = "npm_config_"


def read_npm_settings(
    environ: Mapping[str, str], home: str, *, etc: str, problems: list[str]
) -> dict[str, list[str]]:
    """Read npm's settings: keys and their values, of which only arrays have several.

    Args:
        problems: gets a sentence for each file that cannot be read.
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
