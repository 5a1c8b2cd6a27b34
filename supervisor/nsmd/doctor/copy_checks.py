"""Doctor's trial of projects that are copied on write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress

import trio

from nsm.checks import Check
from nsm.wire.errors import NsmError
from nsmd.jail import BwrapLauncher
from nsmd.jail.bubblewrap import probe_bwrap
from nsmd.jail.project_copy import NoCopyError
from nsmd.jail.templates import open_templates
from nsmd.model.settings import Settings
from nsmd.model.values import Environment, JailSizes, JailSpec, ProjectMount

NAME = "copy-on-write"

FIX = (
    "Only the project mode `overlay` needs it. Forks need Linux 6.6, jails of their own bubblewrap "
    "0.11 beside that, and a supervisor that runs as root mounts of its own: see "
    "docs/how-to/project-modes.md, 'Where it works'."
)


def check_copies(
    launcher: BwrapLauncher, settings: Settings, usable: Sequence[Environment]
) -> list[Check]:
    """Start a session whose project is copied, as the supervisor does; empty if none starts anyway.

    Args:
        usable: environments in which sessions start.
    """
    if not usable:
        return []
    with tempfile.TemporaryDirectory(prefix="nsm-doctor-") as directory:
        os.chmod(directory, 0o755)  # whatever TMPDIR is, the jails' user has to come in
        found = os.stat(directory)
        project = ProjectMount(
            path=os.path.realpath(directory),
            mount_point="/project",
            device=found.st_dev,
            inode=found.st_ino,
            mode="overlay",
        )
        sizes = JailSizes(workspace_mb=16, tmp_mb=16, shm_mb=16, overlay_mb=16)
        spec = JailSpec(environment=usable[0], project=project, sizes=sizes)
        forked = settings.defaults.templates
        error = trio.run(_why_not_copied, launcher, spec, forked)
    if error is not None:
        return [Check(name=NAME, status="warn", detail=error, fix=FIX)]
    detail = "projects can be copied on write"
    with suppress(NsmError):
        program = None if launcher.bwrap_path is None else probe_bwrap(launcher.bwrap_path)
        if program is not None and not program.overlays:
            detail += (
                f" in forks; sessions that are none are refused then, since bubblewrap "
                f"{program.version} has no --overlay"
            )
    return [Check(name=NAME, status="ok", detail=detail)]


async def _why_not_copied(
    launcher: BwrapLauncher,
    spec: JailSpec,
    forked: bool,
) -> str | None:
    async with open_templates(launcher, enabled=forked) as starting:
        try:
            jail = await starting.launch(spec)
        except NoCopyError as error:
            return f"projects cannot be copied on write: {error.why}"  # this one is nobody's
        except NsmError as error:
            return error.message
        jail.kill()
        with trio.CancelScope(shield=True):
            await jail.wait()
        jail.release()
    return None
