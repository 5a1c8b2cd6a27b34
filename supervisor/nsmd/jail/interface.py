"""Interface of a backend: start a jail, return the agent's socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from nsm.dataclass import dataclass, field
from nsmd.model.devices import ShownDevices
from nsmd.model.images import ImageRoot
from nsmd.model.policy import Policy
from nsmd.model.values import (
    Artifact,
    JailSpec,
    Links,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
)

if TYPE_CHECKING:
    from nsmd.jail.process import BwrapJail
    from nsmd.jail.project_copy import ProjectCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """Complete specification of a template; sessions of equal specifications are forks of one
    template.

    Attributes:
        agent_python, binds, links, path, preload, artifact, image, shown_devices: as in
            `Environment`.
        project: as in `JailSpec`.
        host_network: its sessions have the host's network, not one of their own.
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


class Remarks(Protocol):
    """Source of notes; returns each once."""

    def __call__(self) -> Sequence[str]: ...


class Jail(Protocol):
    """One running jail with an agent in it.

    Resources: it owns `socket`, `pidfd` and the process of the jail's starter until `release`. The
    owner calls `kill`, awaits `wait`, and calls `release`, in this order.

    Attributes:
        policy: policy of the session at its start.
        remarks: notes on how its sessions start, each returned once.
        template_pid: process id of its template, or of the template that was about to be replaced
            when it started; 0 for none.
        outdated: its files have changed on disk since.
    """

    policy: Policy | None
    remarks: Remarks
    template_pid: int
    outdated: bool

    @property
    def starter_pid(self) -> int:
        """Process id of our child that made it, which is reaped with it; 0 if there is none."""
        ...

    @property
    def socket(self) -> socket.socket:
        """The supervisor's end of the agent's channel: a stream, non-blocking, close-on-exec."""
        ...

    @property
    def pid(self) -> int:
        """Process id on the host of the jail's PID 1."""
        ...

    @property
    def pidfd(self) -> int:
        """Descriptor of the jail's PID 1; readable once nothing of the jail is left."""
        ...

    @property
    def project_copy(self) -> ProjectCopy | None:
        """Changes of its session in an overlay of the project; None in other modes."""
        ...

    def mark_ready(self) -> None:
        """Note that the agent is ready, and release what only the start needed. May be repeated."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to PID 1, which ends everything in the jail. May be repeated."""
        ...

    async def wait(self) -> None:
        """Return once nothing of the jail is left and its starter has been reaped.

        Cancellation: loses nothing; call it again.
        """
        ...

    def stderr_text(self) -> str:
        """Output of the starter and the agent before the agent took its descriptors; bounded.

        It comes out of the jail: show it, but do not trust it. Control characters are removed.
        """
        ...

    def release(self) -> None:
        """Close the descriptors. May be repeated.

        It does not kill the jail: the agent ends by end-of-file on its socket, unless another
        process holds a duplicate of `socket`.
        """
        ...


class Launcher(Protocol):
    """Launcher of jails of one kind."""

    async def prepare(self, spec: JailSpec) -> None:
        """Wait until the template for many jails is ready, if the launcher uses one.

        This is apart from `launch`, so that jails which wait for one template do not use up the
        limit on launches. `launch` finds out whether there is a template then.

        Raises, Cancellation: as `launch`.
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


class ColdLauncher(Launcher, Protocol):
    """Launcher of each session in a jail of its own, and of templates' jails."""

    @property
    def limits(self) -> SessionLimits:
        """Limits of all sessions."""
        ...

    @property
    def system_calls(self) -> bytes | None:
        """System call filter of code in jails, in classic BPF; None if there is no table for this
        machine's system calls.
        """
        ...

    def policy(self, spec: JailSpec, *, forked: bool) -> Policy:
        """Make the policy of such a session.

        Args:
            forked: it is a fork; otherwise it has a jail of its own.
        """
        ...

    async def launch_template(self, spec: TemplateSpec, system_calls: bytes) -> BwrapJail:
        """Start a template's jail; `socket` is its control socket.

        Args:
            system_calls: filter of its sessions, in classic BPF.

        Raises, Cancellation: as `launch`.
        """
        ...


async def discard(jail: Jail) -> str:
    """End a jail that nobody will use; returns what it wrote to stderr.

    Cancellation: shielded; 1 ms.
    """
    with trio.CancelScope(shield=True):
        jail.kill()
        await jail.wait()
    text = jail.stderr_text()
    jail.release()
    return text
