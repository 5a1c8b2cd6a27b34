"""Plans made by hand, for what is made of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsmbox.model.plan import Mount, Network, Plan, Variable

if TYPE_CHECKING:
    from collections.abc import Iterable

HOME = "/home/mia"
PROJECT = f"{HOME}/work/shop"


def plan(
    directory: str = PROJECT,
    *,
    mounts: Iterable[Mount] = (),
    variables: Iterable[tuple[str, str]] = (),
    network: Network | None = None,
) -> Plan:
    """An ordinary plan for claude, and what is named besides."""
    table = {
        "ANTHROPIC_API_KEY": "sk-ant-1234",
        "EDITOR": "vim",
        "HOME": HOME,
        "LANG": "de_DE.UTF-8",
        "NSM_SOCKET": "/run/nsm/box/control.sock",
        "PATH": "/run/nsm/bin:/usr/local/bin:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "TMPDIR": "/tmp",
        "USER": "mia",
        "XDG_RUNTIME_DIR": "/tmp",
        **dict(variables),
    }
    return Plan(
        profile="claude",
        mounts=(
            Mount(kind="tmpfs", target="/"),
            Mount(kind="ro-bind", target="/usr", source="/usr", why="programs"),
            Mount(kind="symlink", target="/bin", source="usr/bin"),
            *(
                Mount(kind="ro-bind", target=f"/etc/{name}", source=f"/etc/{name}")
                for name in ("passwd", "group", "hosts", "resolv.conf", "ssl")
            ),
            *(
                Mount(kind="mask", target=f"/usr/bin/{name}", masks_file=True)
                for name in ("ssh", "gpg", "sudo", "age")
            ),
            Mount(kind="proc", target="/proc"),
            Mount(kind="dev", target="/dev"),
            Mount(kind="tmpfs", target="/tmp"),
            Mount(kind="tmpfs", target=HOME, mode=0o700),
            Mount(kind="ro-file", target=f"{HOME}/.gitconfig", data=b"[user]\n"),
            Mount(kind="ro-bind", target=f"{HOME}/.nvm/v20", source=f"{HOME}/.nvm/v20"),
            Mount(kind="bind", target=f"{HOME}/.claude", source=f"{HOME}/.claudebox"),
            Mount(kind="bind", target=directory, source=directory, why="the working directory"),
            Mount(kind="bind", target=f"{directory}/.git", source=f"{directory}/.git"),
            Mount(
                kind="ro-bind", target=f"{directory}/.git/hooks", source=f"{directory}/.git/hooks"
            ),
            Mount(kind="mask", target=f"{directory}/keys", why="a secret path"),
            *mounts,
        ),
        variables=tuple(Variable(name=name, value=value) for name, value in sorted(table.items())),
        network=network or Network(),
        command=("/run/nsm/bin/claude", "--dangerously-skip-permissions", "--version"),
        directory=directory,
    )


__all__ = ["HOME", "PROJECT", "plan", "replace"]
