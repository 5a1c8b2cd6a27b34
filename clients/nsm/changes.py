"""Changes of sessions in projects that are copied on write, for programs. Blocks.

Example::

    import nsm
    from nsm.changes import Changes

    with nsm.Client() as client:
        changes = Changes(client)
        rows, _ = changes.rows("work", ["src"])
        report = changes.apply("work", rows)
        print(report.done, [refused.path for refused in report.refused])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.wire.files import ChangeEnd, ChangeReport, ChangeRow, Contents, Refused, bytes_of
from nsm.wire.messages import read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

    from nsm.client.blocking import Client
    from nsm.wire.messages import Event

BATCH = 200
"""Changes in one request, so that none takes long and each fits a message."""


class Changes:
    """Operations on the changes of sessions."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def rows(self, target: str, paths: Iterable[str] = ()) -> tuple[list[ChangeRow], ChangeEnd]:
        """All changes, by path, and where they are.

        Args:
            target: the session: an id, a name, or ``SCOPE/NAME``.
            paths: only these and what is in them, relative to the project; none for all.

        Raises:
            BadRequestError: the session has no copy of its project.
            BadProjectError: the project is not there any more.
        """
        rows: list[ChangeRow] = []

        def on_event(event: Event) -> None:
            rows.extend(read(list[ChangeRow], event.data, "changes"))

        arguments = {"target": target, "paths": [bytes_of(path) for path in paths]}
        wire = self._client.call("changes", arguments, on_event=on_event)
        return rows, read(ChangeEnd, wire)

    def contents(self, target: str, path: str) -> Contents:
        """Read the contents of one path on both sides."""
        arguments = {"target": target, "path": bytes_of(path)}
        return read(Contents, self._client.call("change", arguments))

    def apply(
        self,
        target: str,
        rows: Sequence[ChangeRow],
        *,
        force: bool = False,
        risky: Collection[str] = (),
    ) -> ChangeReport:
        """Bring changes to the host, as they are in `rows`: what has changed since is refused.

        Args:
            force: also where the host's file was changed since the session began.
            risky: paths of rows that have a `risk`, and are to be applied all the same.
        """
        done, refused = 0, list[Refused]()
        ordered = in_order(rows)
        for first in range(0, len(ordered), BATCH):
            wanted = [_wanted(row, risky) for row in ordered[first : first + BATCH]]
            wire = self._client.call("apply", {"target": target, "changes": wanted, "force": force})
            done += read(int, wire, "applied")
            refused += read(list[Refused], wire, "refused")
        return ChangeReport(done, refused)

    def discard(self, target: str, paths: Iterable[str] = ()) -> ChangeReport:
        """Have files of the session be the host's again.

        Args:
            paths: as for `rows`.
        """
        arguments = {"target": target, "paths": [bytes_of(path) for path in paths]}
        wire = self._client.call("discard", arguments)
        return ChangeReport(read(int, wire, "discarded"), read(list[Refused], wire, "refused"))


def in_order(rows: Sequence[ChangeRow]) -> list[ChangeRow]:
    """Sort changes: deletions first, the deepest first; then parents before their contents."""

    def place(row: ChangeRow) -> str:
        return row.path.replace("/", "\0")  # what is in a directory comes right behind it

    deleted = sorted((row for row in rows if row.after is None), key=place, reverse=True)
    return [*deleted, *sorted((row for row in rows if row.after is not None), key=place)]


def _wanted(row: ChangeRow, risky: Collection[str]) -> dict[str, Any]:
    return {
        "path": bytes_of(row.path),
        "before": None if row.before is None else row.before.token,
        "after": None if row.after is None else row.after.token,
        "risky": row.path in risky,
    }
