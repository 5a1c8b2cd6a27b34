"""Environments that Nix builds, as the operations `env_...` answer. Few programs ask."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.errors import NsmError, from_wire
from nsm.wire.fields import Fields


class BuildProgress(NamedTuple):
    """How far a build has come.

    Attributes:
        phase: ``evaluating``, ``fetching``, ``downloading`` or ``building``.
        activity: what goes on, for people; may be empty.
        built, to_build: derivations; the second grows while nix finds out.
        copied, to_copy: store paths that come from elsewhere.
        downloaded_bytes, to_download_bytes: as far as nix knows.
    """

    phase: str
    activity: str
    built: int
    to_build: int
    copied: int
    to_copy: int
    downloaded_bytes: int
    to_download_bytes: int

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the field `progress` of a row."""
        fields = Fields(wire, "a build's progress")
        numbers = (fields.integer(name) for name in cls._fields[2:])
        return cls(fields.text("phase"), fields.text("activity"), *numbers)


class BuiltRow(NamedTuple):
    """One environment that Nix builds.

    Attributes:
        name: to run code in; before its first build, what it is likely to be called.
        reference: to its flake.
        state: of its last build: ``queued``, ``building``, ``ready`` or ``failed``.
        wanted_by: who named it: ``nsm env add``, ``config.toml``, ``NIX_SANDBOX_ENVS`` of the
            supervisor, or ``clients`` by theirs.
        path: in Nix's store, of what can be used now; None where nothing can.
        built_at: when that was built, Unix time.
        since_s: seconds that a build has waited or run; None where none does.
        progress: of a build that waits or runs.
        cause, error, hint: why the last build failed: a line, all of it, and what to do.
    """

    name: str
    reference: str
    state: str
    wanted_by: tuple[str, ...]
    path: str | None
    built_at: float | None
    since_s: float | None
    progress: BuildProgress | None
    cause: str | None
    error: str | None
    hint: str | None

    @property
    def going_on(self) -> bool:
        """True while a build waits or runs."""
        return self.progress is not None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of the answer to `env_list`."""
        row = Fields(wire, "a built environment")
        progress = row.optional("progress", row.map)
        return cls(
            name=row.text("name"),
            reference=row.text("reference"),
            state=row.text("state"),
            wanted_by=row.texts("wanted_by"),
            path=row.optional("path", row.text),
            built_at=row.optional("built_at", row.number),
            since_s=row.optional("since_s", row.number),
            progress=None if progress is None else BuildProgress.from_wire(progress),
            cause=row.optional("cause", row.text),
            error=row.optional("error", row.text),
            hint=row.optional("hint", row.text),
        )

    def to_plain(self) -> dict[str, Any]:
        """As plain values, e.g. for JSON."""
        progress = None if self.progress is None else self.progress._asdict()
        return {**self._asdict(), "progress": progress}


class RemovedEnvironment(NamedTuple):
    """Environment that was removed."""

    name: str
    reference: str


class RemoveError(NamedTuple):
    """A name that was not removed, and why."""

    target: str
    error: NsmError


class RemoveReport(NamedTuple):
    """Outcome for each name in `env_remove`."""

    removed: tuple[RemovedEnvironment, ...]
    errors: tuple[RemoveError, ...]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `env_remove`."""
        report = Fields(wire, "a report of removals")
        removed = [Fields(row, "a removed environment") for row in report.maps("removed")]
        errors = [Fields(row, "a removal's error") for row in report.maps("errors")]
        return cls(
            removed=tuple(
                RemovedEnvironment(row.text("name"), row.text("reference")) for row in removed
            ),
            errors=tuple(
                RemoveError(row.text("target"), from_wire(row.map("error"))) for row in errors
            ),
        )
