"""Changes that a session made in a project, as the operations `changes`, `change`, `apply` and
`discard` answer. Few programs ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.fields import Fields


def path_of(given: bytes) -> str:
    """A path as text, whatever it is called: names of files are bytes."""
    return given.decode("utf-8", "surrogateescape")


def bytes_of(path: str) -> bytes:
    """Convert the text of `path_of` back to the bytes of the path."""
    return path.encode("utf-8", "surrogateescape")


class FileState(NamedTuple):
    """State of the file at a path.

    Attributes:
        type: ``file``, ``directory``, ``symlink`` or ``special``.
        mode: permissions.
        size: bytes of a file, or of a link's target.
        token: stands for all of it; another one after any change.
    """

    type: str
    mode: int
    size: int
    token: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one state."""
        fields = Fields(wire, "a file's state")
        return cls(
            fields.text("type"),
            fields.integer("mode"),
            fields.integer("size"),
            fields.text("token"),
        )


class ChangeRow(NamedTuple):
    """Change that a session made to one path.

    Attributes:
        path: below the project; `bytes_of` gives what it is called.
        kind: ``added``, ``changed`` or ``deleted``.
        before: on the host now; None where nothing is.
        after: in the session; None where nothing is.
        conflict: why applying it would undo what was done on the host meanwhile; or empty.
        risk: why nobody should apply it unseen; or empty.
        problem: why it cannot be applied; or empty.
    """

    path: str
    kind: str
    before: FileState | None
    after: FileState | None
    conflict: str
    risk: str
    problem: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the events of `changes`."""
        row = Fields(wire, "a change")
        before, after = row.optional("before", row.map), row.optional("after", row.map)
        return cls(
            path=path_of(row.data("path")),
            kind=row.text("kind"),
            before=None if before is None else FileState.from_wire(before),
            after=None if after is None else FileState.from_wire(after),
            conflict=row.text("conflict"),
            risk=row.text("risk"),
            problem=row.text("problem"),
        )

    def to_plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        plain = self._asdict()
        for side, state in (("before", self.before), ("after", self.after)):
            plain[side] = None if state is None else state._asdict()
        return plain


class ChangeEnd(NamedTuple):
    """End of the rows: totals, and the reason if rows are missing.

    Attributes:
        session: its id.
        project: the directory on the host.
        changes: how many rows.
        used_bytes, size_bytes: of the copy: what it takes, and may take.
    """

    session: str
    project: str
    changes: int
    used_bytes: int
    size_bytes: int

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `changes`."""
        fields = Fields(wire, "an answer")
        numbers = (fields.integer(name) for name in cls._fields[2:])
        return cls(fields.text("session"), fields.text("project"), *numbers)


class Contents(NamedTuple):
    """One path on both sides.

    Attributes:
        change: None if there is no difference any more.
        before, after: content of a file, target of a link; None where there is neither, and where
            it is longer than 1 MiB or changes just now.
    """

    change: ChangeRow | None
    before: bytes | None
    after: bytes | None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `change`."""
        fields = Fields(wire, "an answer")
        change = fields.optional("change", fields.map)
        return cls(
            None if change is None else ChangeRow.from_wire(change),
            fields.optional("before", fields.data),
            fields.optional("after", fields.data),
        )


class Refused(NamedTuple):
    """A change that was not made, and why."""

    path: str
    why: str


class ChangeReport(NamedTuple):
    """Outcome of `apply` or `discard`.

    Attributes:
        done: how many changes were made, or taken back.
        refused: those that were not.
    """

    done: int
    refused: list[Refused]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], key: str) -> Self:
        """Check the answer.

        Args:
            key: of the number.
        """
        fields = Fields(wire, "an answer")
        refused = [Fields(row, "a refusal") for row in fields.maps("refused")]
        return cls(
            fields.integer(key),
            [Refused(path_of(row.data("path")), row.text("why")) for row in refused],
        )
