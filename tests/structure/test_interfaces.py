"""The page on configuration names every key with its default, and every variable."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_type_hints

from nsm.wire import errors
from nsmd.mcp.attachment import VARIABLES
from nsmd.model.settings import EnvironmentSettings, HostSettings, SecretSettings, Settings

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"
KEYS = (REFERENCE / "configuration.md").read_text()
SOCKET = (REFERENCE / "control-socket.md").read_text()


def settings_rows() -> list[str]:
    """The configuration's sections, keys and defaults as the page has them."""
    rows: list[str] = []
    for section in dataclasses.fields(Settings):
        kind = get_type_hints(Settings)[section.name]
        if section.name == "environments":
            names = (field.name for field in dataclasses.fields(EnvironmentSettings))
            rows += ["[environments.NAME]", *(f"{name} | none" for name in names)]
        elif section.name == "hosts":
            rows += _rows_of("hosts.NAME", HostSettings)
        elif section.name == "secrets":
            names = (field.name.rstrip("_") for field in dataclasses.fields(SecretSettings))
            rows += ["[secrets.NAME]", *(f"{name} | none" for name in names)]
        else:
            rows += _rows_of(section.name, kind)
    return rows


def _rows_of(section: str, kind: type[Any]) -> list[str]:
    rows = [f"[{section}]"]
    for field in dataclasses.fields(kind):
        of_field = get_type_hints(kind)[field.name]
        if dataclasses.is_dataclass(of_field) and isinstance(of_field, type):
            inner = _rows_of(f"{section}.{field.name}", of_field)
            rows += [f"{field.name}.{row}" for row in inner[1:]]
        else:
            rows.append(f"{field.name} | {_shown(field.default)}")
    return rows


def _shown(default: object) -> str:
    match default:
        case None | () | dataclasses.MISSING:  # which is that of a table
            return "none"
        case bool():
            return str(default).lower()
        case float():
            return f"{default:.0f}"
        case str():
            return f'`"{default}"`'
        case _:
            return str(default)


def test_every_key_of_the_configuration_with_its_default() -> None:
    section = KEYS[KEYS.index("## Configuration") : KEYS.index("## Variables")]
    row = re.compile(r"^(?:### `(\[.*\])`|\| `(\S+)` \|(?: (.+?))? \| .+ \|)$", re.MULTILINE)
    rows = row.findall(section)
    named = [heading or f"{key} | {default or 'none'}" for heading, key, default in rows]
    assert named == settings_rows()


def test_the_variables_of_a_client_entry() -> None:
    section = KEYS[KEYS.index("## Variables") : KEYS.index("## Projects")]
    assert set(VARIABLES) <= set(re.findall(r"`([A-Z_]+)`", section))


def test_every_error_code() -> None:
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.NsmError)
    }
    section = SOCKET[SOCKET.index("Codes:") : SOCKET.index("## nsm COMMAND")]
    assert set(re.findall(r"`([a-z-]+)`", section)) == codes
