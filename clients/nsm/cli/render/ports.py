"""Open ports as a table, for `nsm port` and `nsm inspect`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.ports import PortRow


def ports_table(rows: Sequence[PortRow], width: int | None = None) -> str:
    """The table of `nsm port` without a port."""
    if not rows:
        return "No open ports."
    return formats.table(
        "SESSION PORT ADDRESS OPEN TOTAL REFUSED IN OUT NOTE".split(),
        (
            (
                row.name or row.session,
                str(row.port),
                row.address,
                str(row.connections),
                str(row.total),
                str(row.refused),
                formats.size(row.sent_bytes),
                formats.size(row.received_bytes),
                _note(row) or "-",
            )
            for row in rows
        ),
        right="PORT OPEN TOTAL REFUSED IN OUT",
        width=width,
    )


def _note(row: PortRow) -> str:
    if not row.is_open:
        return f"not open: {row.problem}"
    if row.problem:
        return f"does not work: {row.problem}"
    if row.full:
        return "too many connections: more wait until some end"
    if row.refused and row.refused + row.failed == row.total:
        return f"no program listens on port {row.port} in the session"
    if row.failed:
        return f"{formats.count(row.failed, 'connection')} failed"
    return ""
