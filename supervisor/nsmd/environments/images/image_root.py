"""The environment of an unpacked image."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from nsm.dataclass import dataclass
from nsmd.environments.images.host_python import HostPythonError, host_python
from nsmd.environments.packages.failures import InstallError
from nsmd.environments.packages.store import EnvironmentDetails, ImageFacts
from nsmd.host.paths import is_within
from nsmd.jail.arguments import IMAGE_PLACES
from nsmd.model.policy import JAIL_VARIABLES
from nsmd.model.values import IMAGE_PLACE, ImageRoot, Interpreter, Links, ReadOnlyBind, SetupStep

ROOT = "root"
"""Directory of the image's files in its environment's directory."""

MAX_SHOWN = 200
"""Most files and directories in the image's root directory; each is a mount."""

_NOT_TAKEN = {"LD_AUDIT", "LD_PRELOAD", *JAIL_VARIABLES} - {"LANG"}
"""Variables of images that sessions do not have: their own, and those by which the host's loader
would load an image's libraries into the agent.
"""

_GO_THERE: Mapping[Interpreter, str] = {
    "python": "__import__('os').chdir({!r})",
    "bash": "cd -- {}",
    "node": "process.chdir({})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownImage:
    """Mounts and links by which a jail shows an image.

    Attributes:
        image: as in `Environment`.
        binds, links: as in `Environment`.
    """

    image: ImageRoot
    binds: tuple[ReadOnlyBind, ...]
    links: Links


def shown_image(
    made: str, agent_python: str, prefixes: tuple[str, ...], *, writable: bool = False
) -> ShownImage:
    """Find what a jail shows of an unpacked image, and of the host for the agent. Blocks.

    Each entry of the image's root directory is a mount of its own: where links lead is for the
    jail to find out, and nothing is ever made in the image's directories.

    Args:
        made: directory of the environment.
        agent_python, prefixes: Python of the host for the agent, and what it needs.
        writable: sessions may change the files, each in an overlay of its own.

    Raises:
        InstallError: the image cannot be shown.
        OSError: it is not there.
    """
    try:
        host = host_python(agent_python, prefixes)
    except HostPythonError as error:
        raise InstallError(
            f"There is no Python for the agent: {error}", "`nsm doctor` says what nsm needs."
        ) from error
    root = os.path.join(made, ROOT)
    if writable:
        return ShownImage(
            image=ImageRoot(directory=root, python=host.command, writable=True),
            binds=(ReadOnlyBind(source=root, target=IMAGE_PLACE), *host.binds),
            links=(),
        )
    binds: list[ReadOnlyBind] = []
    links: list[tuple[str, str]] = []
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            target = f"/{entry.name}"
            if any(is_within(place, target) for place in IMAGE_PLACES):
                continue
            if entry.is_symlink():
                links.append((target, os.readlink(entry.path)))
            else:
                binds.append(ReadOnlyBind(source=entry.path, target=target))
    if len(binds) + len(links) > MAX_SHOWN:
        raise InstallError(f"Its root directory has more than {MAX_SHOWN} entries")
    return ShownImage(
        image=ImageRoot(directory=root, python=host.command),
        binds=(*binds, *host.binds),
        links=tuple(links),
    )


def variables_of(facts: ImageFacts) -> dict[str, str]:
    """Variables of an image that its sessions have."""
    return {name: value for name, value in facts.variables.items() if name not in _NOT_TAKEN}


def setup_of(details: EnvironmentDetails, facts: ImageFacts) -> tuple[SetupStep, ...]:
    """Steps that bring code to the image's working directory."""
    folder = facts.working_directory
    if not folder or not details.program:
        return ()
    quoted = shlex.quote(folder) if details.interpreter == "bash" else folder
    if details.interpreter == "node":
        import json  # noqa: PLC0415  # rarely needed

        quoted = json.dumps(folder)
    code = _GO_THERE[details.interpreter].format(quoted)
    return (SetupStep(name="the image's working directory", code=code),)
