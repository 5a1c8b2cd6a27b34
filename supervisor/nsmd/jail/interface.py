"""Interface of a backend: start a jail, return the agent's socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, Remarks, SessionLimits, TemplateSpec

if TYPE_CHECKING:
    from nsmd.jail.process import BwrapJail
    from nsmd.jail.project_copy import ProjectCopy


class Jail(Protocol):
    """One running jail with an agent in it.

    Resources: owns `socket`, `pidfd` and the process of the jail's starter until `release`.
    The owner calls `kill`, awaits `wait`, and calls `release`, in this order.

    Attributes:
        policy: of the session, as it is at its start.
        remarks: notes on how its sessions start, each of which is given out once.
        template_pid: of the template that it is a fork of, or that was about to be replaced when it
            started; 0 for none.
        outdated: files that it was made of have changed on disk since.
    """

    policy: Policy | None
    remarks: Remarks
    template_pid: int
    outdated: bool

    @property
    def starter_pid(self) -> int:
        """Process id of our child that made it, which is reaped with it; 0 where there is none."""
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
        """Changes of its session in a project that is copied on write; None for any other."""
        ...

    def kill(self) -> None:
        """SIGKILL to PID 1, which takes everything in the jail with it. May be repeated."""
        ...

    async def wait(self) -> None:
        """Return once nothing of the jail is left and its starter has been reaped.

        Cancellation: loses nothing; call it again.
        """
        ...

    def stderr_text(self) -> str:
        """Return the output of the starter and the agent before the agent took its descriptors;
        bounded.

        It comes out of the jail: text to show, nothing to trust. Control characters are removed.
        """
        ...

    def release(self) -> None:
        """Close the descriptors. May be repeated.

        It does not kill: the agent ends by end-of-file on its socket unless another process holds
        a duplicate of `socket`.
        """
        ...


class Launcher(Protocol):
    """Starts jails of one kind."""

    async def prepare(self, spec: JailSpec) -> None:
        """Wait for what many jails are made from, where such a thing is used.

        Apart from `launch`, so that a limit on launches is not used up by those who wait for one
        thing. Whether there is something then, `launch` finds out.

        Raises, Cancellation: as `launch`.
        """
        ...

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        """Start a jail and return when its agent has begun to speak.

        Args:
            group: descriptor of the `cgroup.procs` of a control group, which the jail enters before
                it gets a cgroup namespace. That shows no other groups then. Whoever makes the jail
                may be left in it, and where it cannot be entered, nothing is.

        Raises:
            StartFailedError: it did not come to that; the message has the starter's own words.
            BadProjectError: the project directory is not the one that was checked, or the jail's
                user cannot read it.

        Cancellation: ends what was started.
        """
        ...


class ColdLauncher(Launcher, Protocol):
    """Starts each session in a jail of its own, and jails in which others can be forked."""

    @property
    def limits(self) -> SessionLimits:
        """Limits of all sessions."""
        ...

    @property
    def system_calls(self) -> bytes | None:
        """The filter of code in jails, in classic BPF; None where nobody has put this machine's
        system calls into a table."""
        ...

    def policy(self, spec: JailSpec, *, forked: bool) -> Policy:
        """The rules of such a session.

        Args:
            forked: in a template's jail; else in one of its own.
        """
        ...

    async def launch_template(self, spec: TemplateSpec, system_calls: bytes) -> BwrapJail:
        """Start a jail in which sessions are forked; `socket` is its control socket.

        Args:
            system_calls: the filter of its sessions, in classic BPF.

        Raises, Cancellation: as `launch`.
        """
        ...
