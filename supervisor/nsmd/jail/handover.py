"""Handover to an artifact's program: descriptors beside its channel, and variables with their
numbers.

Programs of schema 1 take the project as a descriptor and report their jail on another one. An
artifact's metadata says which further ones it takes (docs/reference/artifacts.md). Older programs
get the project's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from nsm.dataclass import dataclass, field
from nsm.wire.errors import StartFailedError
from nsmd.jail.project_directory import open_project
from nsmd.jail.starting import memory_file
from nsmd.jail.user import JailUser
from nsmd.model.values import Artifact, ProjectMount

POLICY, VARIABLES = "policy", "variables"
"""Values of `Artifact.takes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Descriptors and variables of one start.

    Attributes:
        project: project that the jail shows.
        info_end: descriptor for the process id of the jail.
        policy: content of the jail's policy file; empty for a template.
        code_variables: variables of the code in the jail.
    """

    project: ProjectMount | None
    info_end: int
    policy: bytes
    code_variables: Sequence[tuple[str, str]] = field(default=(), repr=False)


def hand_over(
    artifact: Artifact, user: JailUser, given: Handover, owned: ExitStack
) -> tuple[Mapping[str, str], Sequence[int]]:
    """Make the variables of a program's environment, and the descriptors that it inherits.

    Args:
        user: user that jails run as.
        owned: closes the descriptors, except those of `given`.

    Raises:
        StartFailedError: the program does not take a descriptor that it must get.
        BadProjectError: as `Launcher.launch`.
        OSError: there is no descriptor left.
    """
    variables: dict[str, str] = {}
    inherited: list[int] = []

    def give(name: str, descriptor: int) -> None:
        variables[name] = str(descriptor)
        inherited.append(descriptor)

    if given.project is not None:
        path, directory = open_project(user, given.project)
        owned.callback(os.close, directory)
        variables["PROJECT_DIR"] = path
        if artifact.schema > 0:
            give("NSM_PROJECT_FD", directory)
    if artifact.schema > 0:
        give("NSM_INFO_FD", given.info_end)
    if POLICY in artifact.takes:
        give("NSM_POLICY_FD", memory_file(given.policy, owned))
    if given.code_variables:
        if VARIABLES not in artifact.takes:
            raise StartFailedError(
                "The environment is to have variables of its own "
                f"({', '.join(name for name, _ in given.code_variables)}), and its artifact was "
                "built by an nsm that could not set any.",
                hint="Build the environment again, or remove its `env` and `network` from "
                "config.toml.",
            )
        give("NSM_VARIABLES_FD", memory_file(_as_arguments(given.code_variables), owned))
    return variables, inherited


def _as_arguments(variables: Sequence[tuple[str, str]]) -> bytes:
    """Format them for bwrap (bwrap(1), --args): on its command line, everyone could read them."""
    words = [word for name, value in variables for word in ("--setenv", name, value)]
    return b"".join(os.fsencode(word) + b"\0" for word in words)
