"""Summary of a plan: paths that can be changed, read and not seen. Pure.

A plan is a list of mounts that lie over each other; a person wants to know what they give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nsm.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsmbox.model.plan import Mount, Plan

Access = Literal["change", "protected", "read", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryItem:
    """A part of the host in a box.

    Attributes:
        source: on the host; that which is hidden has none.
    """

    target: str
    source: str = ""

    @property
    def elsewhere(self) -> bool:
        """True if it is at another path than on the host."""
        return self.source not in ("", self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Summary of the host's parts in a plan, without repetitions.

    Attributes:
        change: can be changed, and stays so.
        protected: inside of these, but cannot be changed.
        read: can be read, elsewhere.
        hidden: would be there, and is not seen.
    """

    change: tuple[SummaryItem, ...]
    protected: tuple[SummaryItem, ...]
    read: tuple[SummaryItem, ...]
    hidden: tuple[SummaryItem, ...]


def outline(plan: Plan) -> Outline:
    """The outline of a plan."""
    found: dict[Access, dict[str, SummaryItem]] = {
        "change": {},
        "protected": {},
        "read": {},
        "hidden": {},
    }
    for index, mount in enumerate(plan.mounts):
        if any(_holds(later.target, mount.target) for later in plan.mounts[index + 1 :]):
            continue  # lies below another one
        access = _access(mount, _ground(plan.mounts[:index], mount.target))
        if access is not None:
            source = mount.source if mount.kind in ("bind", "ro-bind") else ""
            found[access][mount.target] = SummaryItem(target=mount.target, source=source)
    return Outline(**{access: tuple(places.values()) for access, places in found.items()})


def only_guards_more(old: Plan, new: Plan) -> bool:
    """Return whether a plan gives the same as another one, or fewer programs of the host
    and secrets, and hides
    and protects the same or more."""
    before, after = outline(old), outline(new)
    return (
        (old.directory, old.profile, old.network, old.sockets)
        == (new.directory, new.profile, new.network, new.sockets)
        and [variable.name for variable in old.variables]
        == [variable.name for variable in new.variables]
        and (before.change, before.read) == (after.change, after.read)
        and set(before.protected) <= set(after.protected)
        and set(before.hidden) <= set(after.hidden)
        and set(old.programs) >= set(new.programs)
        and set(old.secrets) >= set(new.secrets)
    )


def _access(mount: Mount, ground: Mount | None) -> Access | None:
    """Return the access that a mount gives or takes, over the mount below it."""
    if ground is not None and _is_own(ground):
        return None  # what it holds is of the directory in whose place it is
    over_host = ground is not None and ground.kind in ("bind", "ro-bind")
    match mount.kind:
        case "bind" | "ro-bind":
            if ground is not None and over_host and _continues(ground, mount):
                if ground.kind == mount.kind:
                    return None
                return "change" if mount.kind == "bind" else "protected"
            return "change" if mount.kind == "bind" else "read"
        case "mask":
            return "hidden"
        case "tmpfs" if over_host:
            return "protected" if _is_own(mount) else "hidden"
        case "ro-file" | "link" if over_host:
            return "protected"
        case "file" | "symlink" if ground is not None and ground.kind == "bind":
            return "change"  # bwrap makes it in what it lies on
        case _:
            return None


def _is_own(mount: Mount) -> bool:
    """Return whether a box has this directory in the place of one that is there."""
    return mount.kind == "tmpfs" and mount.linkless and not mount.stand_in


def _ground(earlier: Sequence[Mount], target: str) -> Mount | None:
    return next((mount for mount in reversed(earlier) if _holds(mount.target, target)), None)


def _continues(ground: Mount, mount: Mount) -> bool:
    """Return whether the same would be there, seen through the mount below."""
    below = mount.target[len(ground.target.rstrip("/")) :]
    return ground.source.rstrip("/") + below == mount.source


def _holds(outer: str, inner: str) -> bool:
    return outer in (inner, "/") or inner.startswith(f"{outer.rstrip('/')}/")
