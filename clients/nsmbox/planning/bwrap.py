"""A plan as arguments of bwrap; pure but for the descriptors that it is given.

What each line is for is in docs/how-to/claudebox.md. The order matters: bwrap works through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from nsmbox.host.nsm_itself import PYTHON
from nsmbox.model.plan import SOCKET_DIRECTORY, Mount, Plan

HOSTNAME = "nsm-box"

OPERANDS = {
    **dict.fromkeys(("--bind-fd", "--ro-bind-fd"), 2),
    **dict.fromkeys(("--bind", "--bind-try", "--ro-bind", "--ro-bind-try", "--symlink"), 2),
    **dict.fromkeys(("--file", "--ro-bind-data"), 2),
    **dict.fromkeys(("--tmpfs", "--dir", "--proc", "--dev", "--remount-ro", "--perms"), 1),
    **dict.fromkeys(
        ("--hostname", "--chdir", "--seccomp", "--size", "--info-fd", "--block-fd", "--sync-fd"), 1
    ),
}
"""How many words an option takes; the others that are used here take none."""

_OWN_DESCRIPTORS = 64
"""More than bwrap opens besides sources of mounts, with those that its caller has left open."""

Descriptor = Callable[[bytes], int]
"""Number of a descriptor from which bwrap reads this, once."""


def arguments(
    plan: Plan,
    descriptor: Descriptor,
    *,
    syscalls: bytes | None,
    sockets: str,
    launched: bool = True,
    opened: Mapping[int, int] | None = None,
    alive: int | None = None,
) -> list[str]:
    """All but bwrap's own name and the command.

    Args:
        syscalls: the filter of system calls; None on machines that have none.
        sockets: on the host, the directory of the box's sockets; empty where there are none.
        launched: paths that are made at launch exist; otherwise missing ones are left out, and all
            stand-ins.
        opened: descriptors of sources by their mounts' index, from `opening.open_sources`; the
            other sources are found by their paths.
        alive: descriptor that the box's process 1 is to hold, and nothing else in it.
    """
    lines = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--hostname", HOSTNAME),
        *(["--share-net"] if plan.network.mode == "host" else []),
        # `nsmbox.start.inside` is process 1 then. bwrap's own would show its command line there.
        *(["--as-pid-1"] if plan.command[0] == PYTHON else []),
    ]
    for index, mount in enumerate(plan.mounts):
        if mount.stand_in and not launched:
            continue
        if opened and index in opened:
            lines += [f"--{mount.kind}-fd", str(opened[index]), mount.target]
        else:
            words = _mount(mount, descriptor)
            lines += words if launched or not mount.made else [f"{words[0]}-try", *words[1:]]
    if sockets:
        lines += ["--ro-bind" if launched else "--ro-bind-try", sockets, SOCKET_DIRECTORY]
    lines += ["--remount-ro", "/", "--chdir", plan.start or plan.directory]
    if alive is not None:
        lines += ["--sync-fd", str(alive)]
    if syscalls is not None:
        lines += ["--seccomp", str(descriptor(syscalls))]
    return lines


def descriptors(mounts: Sequence[Mount]) -> int:
    """Return how many descriptors bwrap may need for a box."""
    return len(mounts) + _OWN_DESCRIPTORS


def variables(plan: Plan) -> list[str]:
    """The arguments that give the box its variables: bwrap is started with none, since its own
    can be read in the box, and would be obeyed by the loader of its libraries."""
    return [word for one in plan.variables for word in ("--setenv", one.name, one.value)]


def _mount(mount: Mount, descriptor: Descriptor) -> list[str]:
    target = mount.target
    permissions = ["--perms", f"{mount.mode:04o}"]
    match mount.kind:
        case "bind":
            return ["--bind", mount.source, target]
        case "ro-bind":
            return ["--ro-bind", mount.source, target]
        case "symlink":
            return ["--symlink", mount.source, target]
        case "link":
            return []  # bwrap would follow it
        case "proc":
            return ["--proc", target]
        case "dev":
            # bwrap's own has half of the machine's memory, `shm` in it with everything else.
            shm = ["--perms", "1777", *_size(mount), "--tmpfs", f"{target}/shm"]
            return ["--dev", target, *shm, "--remount-ro", target]
        case "tmpfs":
            return [*permissions, *_size(mount), "--tmpfs", target]
        case "dir":
            return [*permissions, "--dir", target]
        case "file":
            return [*permissions, "--file", str(descriptor(mount.data)), target]
        case "ro-file":
            return [*permissions, "--ro-bind-data", str(descriptor(mount.data)), target]
        case "mask" if mount.masks_file:
            return ["--perms", "0444", "--ro-bind-data", str(descriptor(b"")), target]
        case "mask":
            return ["--perms", "0555", "--tmpfs", target, "--remount-ro", target]
        case _:
            assert_never(mount.kind)


def _size(mount: Mount) -> list[str]:
    return ["--size", str(mount.size_mb << 20)] if mount.size_mb else []
