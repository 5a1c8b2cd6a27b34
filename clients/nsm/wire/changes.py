"""Changes that a session made in a project, as the operations `changes`, `change`, `apply` and
`discard` answer. Few programs ask."""

from typing import Annotated, Any, NamedTuple, TypeAlias

from nsm.wire.decode import Constraint, Made
from nsm.wire.operation import operation


def path_of(given: bytes) -> str:
    """A path as text, whatever it is called: names of files are bytes."""
    return given.decode("utf-8", "surrogateescape")


def bytes_of(path: str) -> bytes:
    """Convert the text of `path_of` back to the bytes of the path."""
    return path.encode("utf-8", "surrogateescape")


PathField = Annotated[str, Made(bytes, path_of)]


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

    path: PathField
    kind: str
    before: FileState | None
    after: FileState | None
    conflict: str
    risk: str
    problem: str


class ChangeEnd(NamedTuple):
    """End of the rows: totals, and the reason if rows are missing.

    Attributes:
        session: its id.
        project: the directory on the host.
        changes: how many rows.
        used_bytes, size_bytes: present and largest size of the overlay.
    """

    session: str
    project: str
    changes: int
    used_bytes: int
    size_bytes: int


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


class Refused(NamedTuple):
    """A change that was not made, and why."""

    path: PathField
    why: str


class ChangeReport(NamedTuple):
    """Outcome of `apply` or `discard`.

    Attributes:
        done: how many changes were made, or taken back.
        refused: those that were not.
    """

    done: int
    refused: list[Refused]


MAX_PATH_BYTES = 4096


def _is_below(path: str) -> bool:
    parts = {"", ".", ".."} & set(path.split("/"))
    return not parts and "\0" not in path and len(bytes_of(path)) <= MAX_PATH_BYTES


AskedPath: TypeAlias = Annotated[
    str,
    Made(bytes, path_of, bytes_of),
    Constraint(
        _is_below,
        "a path below the project, in bytes, relative to it, without '.', '..' and empty parts",
    ),
]


class AgreedRow(NamedTuple):
    """A change that somebody agreed to: its path, and the tokens of both states as they were shown.

    Attributes:
        risky: it is to be applied although it has a `risk`.
    """

    path: AskedPath
    before: str | None = None
    after: str | None = None
    risky: bool = False


@operation("manage", recorded=None)
def changes(target: str, paths: tuple[AskedPath, ...] = ()) -> ChangeEnd: ...
@operation("manage", recorded=None)
def change(target: str, path: AskedPath) -> Contents: ...
@operation("manage", recorded=("target", "force", "changes"))
def apply(
    target: str, changes: tuple[AgreedRow, ...] = (), *, force: bool = False
) -> dict[str, Any]: ...
@operation("manage", recorded=("target", "paths"))
def discard(target: str, paths: tuple[AskedPath, ...] = ()) -> dict[str, Any]: ...
