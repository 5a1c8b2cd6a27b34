"""A plan as arguments of bwrap, and as a command that people can read, and paste into bash.

What each line is for is in docs/how-to/claudebox.md. The order matters: bwrap works through them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from nsmbox.consent import readable
from nsmbox.host.nsm_itself import PYTHON
from nsmbox.model.plan import SOCKET_DIRECTORY, Mount, Plan, Variable

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
"""Number of words that an option takes; the others that are used here take none."""

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


SOCKETS = "/nonexistent/made-by-the-supervisor-at-launch"
"""Stand-in for the directory of a box's sockets, which exists only once there is a box."""

_FIRST_DESCRIPTOR = 10
"""Bash keeps its own from here on upwards, and moves them out of the way of redirections."""


def command(plan: Plan, program: str, *, syscalls: bytes | None) -> str:
    """The whole, for bash; what is secret is the shell's own variable there, or masked."""
    files: list[bytes] = []

    def descriptor(data: bytes) -> int:
        files.append(data)
        return _FIRST_DESCRIPTOR + len(files) - 1

    sockets = SOCKETS if plan.sockets else ""
    lines = arguments(plan, descriptor, syscalls=syscalls, sockets=sockets, launched=False)
    words = [
        f"exec env -i {quoted(program)}",
        *_by_option(lines),
        *(_variable(variable) for variable in plan.variables),
        "-- " + " ".join(quoted(word) for word in plan.command),
        *(_redirection(_FIRST_DESCRIPTOR + place, data) for place, data in enumerate(files)),
    ]
    # In a shell of its own, since `exec` would end the one that it is pasted to.
    return "( trap '' INT QUIT\n" + " \\\n  ".join(words) + "\n)"


def quoted(word: str) -> str:
    """A word for bash, of printable ASCII where it has anything that a terminal would obey."""
    if word.isprintable():
        return shlex.quote(word)
    # A byte in hexadecimal ends after two digits (bash(1), QUOTING).
    escaped = {ord("\\"): "\\\\", ord("'"): "\\'", ord("\n"): "\\n"}
    parts = (
        escaped.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(parts)}'"


def _variable(variable: Variable) -> str:
    shown = readable.masked(variable.name, variable.value, secret=variable.secret)
    if variable.inherited and shown != variable.value:
        return f'--setenv {variable.name} "${variable.name}"'
    return f"--setenv {variable.name} {quoted(shown)}"


def _by_option(lines: list[str]) -> list[str]:
    """One option with what it takes on each line; a path may look like an option."""
    grouped: list[list[str]] = []
    rest = list(lines)
    while rest:
        taken = 1 + OPERANDS.get(rest[0], 0)
        if grouped and grouped[-1][0] == "--perms" and len(grouped[-1]) == 2:
            grouped[-1] += rest[:taken]
        else:
            grouped.append(rest[:taken])
        rest = rest[taken:]
    return [" ".join(map(quoted, group)) for group in grouped]


def _redirection(number: int, data: bytes) -> str:
    if not data:
        return f"{number}</dev/null"
    import base64  # noqa: PLC0415  # for people only

    return f"{number}< <(base64 -d <<<{base64.b64encode(data).decode()})"
