"""Interface of a backend: start a jail, return the agent's socket."""

from __future__ import annotations

from typing import Protocol

from nsm.dataclass import dataclass, field
from nsmd.jail.process import Jail
from nsmd.model.values import (
    Artifact,
    ImageRoot,
    JailSpec,
    Links,
    ProjectMount,
    ReadOnlyBind,
    ShownDevices,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """Complete specification of a template; sessions of equal specifications are forks of one
    template.

    Attributes:
        variables: variables during the import of preloaded modules; empty without such modules or
            devices.
        worker: the image's Python, of which workers are forked; empty if its sessions run none.
    """

    agent_python: str
    binds: tuple[ReadOnlyBind, ...]
    path: str
    preload: tuple[str, ...]
    project: ProjectMount | None
    artifact: Artifact | None = None
    host_network: bool = False
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    links: Links = ()
    image: ImageRoot | None = None
    shown_devices: ShownDevices | None = None
    worker: str = ""

    def __hash__(self) -> int:
        # As for `Environment`.
        return hash((self.agent_python, self.path, self.project and self.project.path))


class Launcher(Protocol):
    """Launcher of jails of one kind."""

    async def prepare(self, spec: JailSpec) -> None:
        """Wait until the template for many jails is ready, if the launcher uses one.

        This is apart from `launch`, so that jails which wait for one template do not use up the
        limit on launches. `launch` finds out whether there is a template then.
        """
        ...

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        """Start a jail and return when its agent has begun to speak.

        Args:
            group: descriptor of the `cgroup.procs` of a control group. The jail enters it before it
                gets a cgroup namespace, which then shows no other groups. The process that makes
                the jail may stay in the group. If the jail cannot enter it, it starts without.

        Raises:
            StartFailedError: the start failed; the message has the starter's own words.
            BadProjectError: the project directory is not the one that was checked, or the jail's
                user cannot read it.

        Cancellation: ends the jail.
        """
        ...
