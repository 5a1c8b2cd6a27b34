"""Names of environments that are built: checked, and freed for another one."""

from __future__ import annotations

from collections.abc import Iterable

from nsm.wire.errors import BadRequestError
from nsmd.environments.builds.build_state import Building
from nsmd.model.flakes import shown
from nsmd.model.names import ENVIRONMENT_NAME


def check_given(
    buildings: Iterable[Building], reference: str, name: str, *, changes: bool = False
) -> None:
    """Check that an environment of this reference can be given that name.

    Args:
        buildings: environments that somebody wants.
        name: empty for its own.
        changes: it is made from packages: it has no name of its own, and one that is there may get
            others.

    Raises:
        BadRequestError: it cannot.
    """
    if (name or changes) and not ENVIRONMENT_NAME.fullmatch(name):
        raise BadRequestError(
            f"{name!r:.100} is no name for an environment.",
            hint="Use 1 to 64 of a-z, 0-9 and '-', beginning with a letter or digit.",
        )
    for other in buildings:
        differs = other.reference != reference and not (changes and other.packages is not None)
        if name and other.added and other.name == name and differs:
            raise BadRequestError(
                f"{name!r} is {shown(other.reference)} already.",
                hint=f"Choose another name, or `nsm env rm {name}` first.",
            )


def check_own(buildings: Iterable[Building], building: Building, name: str) -> None:
    """Check that no other added environment has the name that a build has found.

    Raises:
        BadRequestError: another one has it.
    """
    for other in buildings:
        taken = other.added and other.built is not None and other.name == name
        if taken and building.added and other is not building:
            raise BadRequestError(
                f"{shown(building.reference)} is called {name!r}, as {shown(other.reference)} is.",
                hint=f"`nsm env add --name ANOTHER {shown(building.reference)}`",
            )


def drop_nameless(buildings: Iterable[Building], named: Building) -> None:
    """Drop a failed attempt to build an environment under its own name, which another one may
    have; it was given a name now.
    """
    for other in buildings:
        same = other.reference == named.reference and not other.given_name
        if same and other is not named and other.built is None and other.attempt is None:
            other.added = False
