"""All kinds of records in the descriptor store, and which of them this version cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nsmd.boxes.box import BOX, BoxRecord
from nsmd.fdstore import records
from nsmd.fdstore.records import SessionRecord, SpecRecord, UnreadableRecordError
from nsmd.jail.templates.template_store import PREFIX as TEMPLATE
from nsmd.jail.templates.template_store import TemplateRecord
from nsmd.network.secrets.grant import GRANT, GrantRecord
from nsmd.ports.relay_process import RELAY, RelayRecord
from nsmd.ports.session_ports import PORT, PortRecord
from nsmd.restart.kept_sessions import SESSION, SPEC

KINDS: Mapping[str, type[Any]] = {
    SESSION: SessionRecord,
    SPEC: SpecRecord,
    TEMPLATE: TemplateRecord,
    BOX: BoxRecord,
    PORT: PortRecord,
    RELAY: RelayRecord,
    GRANT: GrantRecord,
}
"""By the beginnings of the names in the store."""


def unreadable(kept: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Find what this version could not use.

    Args:
        kept: names and records.

    Returns:
        Reasons, by name. Specifications are not named: the sessions that need them are.
    """
    found: dict[str, str] = {}
    specs: dict[str, str] = {}
    for name, text in kept:
        kind = next((KINDS[prefix] for prefix in KINDS if name.startswith(prefix)), None)
        try:
            if kind is None:
                raise UnreadableRecordError("this version knows no such kind of entry")  # noqa: TRY301
            record = records.decode(kind, text.encode())
        except UnreadableRecordError as error:
            found[name] = str(error)
            continue
        if isinstance(record, SessionRecord):
            specs[name] = record.spec
    found |= {name: found[spec] for name, spec in specs.items() if spec in found}
    return {name: why for name, why in found.items() if not name.startswith((SPEC, TEMPLATE))}
