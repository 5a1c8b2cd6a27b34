"""Descriptions of mistakes in `config.toml`, from pydantic's errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from nsm.suggestion import closest
from nsmd.config import secret_tables
from nsmd.model.settings import EnvironmentSettings, SecretSettings, Settings

BACKEND = "jail"
"""The only backend. Keys that name it are for `lib.fromToml`."""


def describe(error: Mapping[str, Any]) -> str:
    """Format one of pydantic's errors as `key: what was found, what is allowed`; empty if it says
    nothing useful.
    """
    location: tuple[int | str, ...] = error["loc"]
    if location[:1] == ("secrets",):
        return secret_tables.describe(location, error["type"])
    key = ".".join(str(part) for part in location)
    if location[:1] == ("environments",) and location[2:3] == ("network",):
        return _describe_network(location[:3], error)
    if location[:2] in (("box", "net"), ("http", "network")):
        return _describe_network(location[:2], error)
    context: Mapping[str, Any] = error.get("ctx", {})
    found = f"found {error['input']!r:.80}"
    if location[:1] == ("environments",) and location[2:3] == ("env",):
        found = f"found something of type {type(error['input']).__name__}"  # it may be a secret
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            if location[-1] == "backend" and location[0] in ("defaults", "environments"):
                return f"{key}: {found}, allowed: {BACKEND!r}"
            return _unknown_key(location)
        case "literal_error" if location[:1] == ("hosts",) and error["input"] == "git":
            return f'{key}: {found}, expected "copy": nsm no longer pushes commits to hosts'
        case "literal_error":
            return f"{key}: {found}, allowed: {context['expected']}"
        case "greater_than":
            return f"{key}: {found}, expected more than {context['gt']:g}"
        case "greater_than_equal":
            return f"{key}: {found}, expected at least {context['ge']}"
        case "less_than_equal":
            return f"{key}: {found}, expected at most {context['le']}"
        case "dataclass_type":
            return f"{key}: {found}, expected a table [{key}]"
        case _:
            return f"{key}: {found}, {error['msg'][0].lower()}{error['msg'][1:]}"


def _describe_network(key_path: tuple[int | str, ...], error: Mapping[str, Any]) -> str:
    """Describe an invalid network. It may be a word or a list, and pydantic complains about both;
    for a list, the errors about words are left out.
    """
    key = ".".join(str(part) for part in key_path)
    given: Any = error["input"]
    if error["type"] == "literal_error" and isinstance(given, list):
        return ""
    if error["type"] == "too_long":
        most = error["ctx"]["max_length"]
        return f"{key}: has {len(given)} hosts, expected at most {most}"
    return f'{key}: found {given!r:.80}, expected "off", "full" or a list of hosts'


def _unknown_key(location: tuple[int | str, ...]) -> str:
    *parents, last = (str(part) for part in location)
    known = _known_keys(tuple(parents))
    near = closest(last, known)
    suggestion = f"; did you mean {near!r}?" if near else "."
    return f"{'.'.join([*parents, last])}: unknown key{suggestion} Known here: {', '.join(known)}"


def _schema_class(path: tuple[str, ...]) -> type[Any] | None:
    """The dataclass that describes the table at a path of keys."""
    if len(path) == 2 and path[0] == "environments":
        return EnvironmentSettings
    if len(path) == 2 and path[0] == "secrets":
        return SecretSettings
    kind: Any = Settings
    for part in path:
        kind = get_type_hints(kind).get(part)
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def _known_keys(path: tuple[str, ...]) -> list[str]:
    kind = _schema_class(path)
    return [f.name for f in dataclasses.fields(kind)] if kind is not None else []
