"""Handover to an artifact's program beside its channel: descriptors, and variables with their
numbers.

Programs of schema 1 take the project as a descriptor and tell of their jail on another one; which
further ones an artifact takes is in its metadata (docs/reference/artifacts.md). Older programs get
the project's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from nsm.wire.errors import StartFailedError
from nsmd.jail.project_directory import open_project
from nsmd.jail.starting import memory_file
from nsmd.jail.user import JailUser
from nsmd.model.values import Artifact, ProjectMount

POLICY, VARIABLES = "policy", "variables"
"""Names in `Artifact.takes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Descriptors and variables of one start.

    Attributes:
        project: that the jail shows.
        info_end: where to tell of the jail.
        policy: content of the jail's policy file; of a template's, nothing yet.
        code_variables: of the code in the jail.
    """

    project: ProjectMount | None
    info_end: int
    policy: bytes
    code_variables: Sequence[tuple[str, str]] = field(default=(), repr=False)


def hand_over(
    artifact: Artifact, user: JailUser, given: Handover, owned: ExitStack
) -> tuple[Mapping[str, str], Sequence[int]]:
    """Variables of a program's environment, and the descriptors that it is to inherit.

    Args:
        user: as whom jails run.
        owned: closes the descriptors, those of `given` left out.

    Raises:
        StartFailedError: the program does not take what it has to be given.
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
    """As bwrap reads them (bwrap(1), --args): on its command line, everyone could."""
    words = [word for name, value in variables for word in ("--setenv", name, value)]
    return b"".join(os.fsencode(word) + b"\0" for word in words)
