"""Host directories that one jail shows beyond the base system, and links to them; pure."""

from __future__ import annotations

from collections.abc import Sequence

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.host.paths import is_within
from nsmd.jail.arguments import PLACES
from nsmd.model.policy import WORKSPACE
from nsmd.model.values import Links, ProjectMount, ReadOnlyBind

_WRITABLE = ("/tmp", WORKSPACE)  # noqa: S108 - in the jail


def needed_binds(
    binds: Sequence[ReadOnlyBind],
    project: ProjectMount | None,
    places: Sequence[str] = PLACES,
) -> Sequence[ReadOnlyBind]:
    """Binds of an environment that are needed in addition to a project.

    Nothing is ever mounted below the project: its files are not ours, and a symlink among them
    would lead bwrap, which makes mount points, out of the jail (CVE-2026-87766).

    Args:
        places: directories that such a jail has itself.

    Raises:
        BadProjectError: the mount point conflicts with a directory that the interpreter needs.
        StartFailedError: the interpreter's directory is one that every jail has itself.
    """
    needed: list[ReadOnlyBind] = []
    for bind in binds:
        for place in places:
            if is_within(place, bind.target):
                raise StartFailedError(
                    f"The interpreter needs {bind.source}, but the jail has its own {place}.",
                    hint="Configure another interpreter in config.toml.",
                )
        if project is None or not _overlap(bind.target, project.mount_point):
            needed.append(bind)
        elif not _shown_by(project, bind):
            raise BadProjectError(
                f"The mount point {project.mount_point} and {bind.target}, which the environment's "
                "interpreter needs, cover each other.",
                hint="Choose another mount point, such as /project.",
            )
    return needed


def needed_links(links: Links, shown: Sequence[str], places: Sequence[str] = PLACES) -> Links:
    """Links of an environment that a jail can have.

    bwrap follows a symlink on the way to a new one, and cannot make one in a read-only directory.
    So a link has no directory of the host above it or below it.

    Args:
        shown: paths in the jail of the host's directories, the project included.
        places: as for `needed_binds`.
    """
    taken = [*shown, *(place for place in places if place not in _WRITABLE)]
    return tuple(
        (path, target)
        for path, target in links
        if not any(_overlap(path, place) for place in taken)
        and not any(is_within(place, path) for place in _WRITABLE)
    )


def _overlap(one: str, other: str) -> bool:
    return is_within(one, other) or is_within(other, one)


def _shown_by(project: ProjectMount, bind: ReadOnlyBind) -> bool:
    """Return whether the project already shows that directory at that path."""
    below = bind.target.removeprefix(project.mount_point)
    return is_within(bind.target, project.mount_point) and bind.source == project.path + below
