"""Programs that no box runs: their names; with a star at the end, all that begin so."""

from __future__ import annotations

from collections.abc import Iterable

KEYS = (
    *("gpg*", "ssh*", "scp", "sftp", "slogin", "dirmngr*", "pinentry*", "kbxutil", "keyboxd"),
    *("age", "age-*", "agenix", "rage", "rage-*", "tailscale*"),
)
"""Programs that hold keys, or are a way to other machines."""

USERS = ("sudo*", "su", "runuser", "pkexec", "doas", "visudo", "newgrp", "sg")
"""Ways to other users, where they are setuid: outside of the Nix store."""

CONTAINERS = (
    *("docker*", "podman*", "nerdctl", "containerd*", "ctr", "crictl", "buildah", "skopeo"),
)
"""Ways to other root directories."""


_ALL = frozenset((*KEYS, *USERS, *CONTAINERS))


def _beginnings(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:-1] for name in names if name.endswith("*"))


_BEGINNINGS = _beginnings(_ALL)
_BEGINNINGS_OF_KEYS = _beginnings(KEYS)


def is_forbidden(name: str) -> bool:
    """Return whether no box runs programs of this name."""
    # Of two thousand names in /usr/bin: fnmatch would take longer than all the rest.
    return name in _ALL or name.startswith(_BEGINNINGS)


def holds_keys(name: str) -> bool:
    """Return whether a program of this name must not be shown just for lying beside others on
    PATH."""
    return name in KEYS or name.startswith(_BEGINNINGS_OF_KEYS)
