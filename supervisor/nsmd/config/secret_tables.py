"""The tables `[secrets.NAME]` of `config.toml`: their spelling, and checks beyond their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from nsmd.model.secrets import SecretRuleError
from nsmd.model.settings import Settings

_RENAMED = ("from", "as")
"""Keys that are words of Python, and have another name in `SecretSettings`."""


def respell(tables: object) -> None:
    """Rename keys in place, as `SecretSettings` has them."""
    for table in cast("dict[str, object]", tables).values() if isinstance(tables, dict) else ():
        if isinstance(table, dict):
            keys = cast("dict[str, Any]", table)
            for key in _RENAMED:
                if key in keys:
                    keys[f"{key}_"] = keys.pop(key)


def plain(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tables as the file has them."""
    return {
        name: {key.rstrip("_"): value for key, value in table.items()}
        for name, table in tables.items()
    }


def check(settings: Settings) -> Iterator[str]:
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


def describe(location: tuple[int | str, ...], kind: str) -> str:
    """Describe a mistake in a secret's table without what was found: it may be the value itself."""
    *parents, last = (str(part).rstrip("_") for part in location)
    key = ".".join([*parents, last])
    known = "from, hosts, as"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{key}: unknown key. Known here: {known}"
    if kind in ("missing", "missing_keyword_only_argument"):
        return f"{key}: is missing; a secret has {known}"
    return f"{key}: expected {'a text' if last == 'from' else 'a list of texts'}"
