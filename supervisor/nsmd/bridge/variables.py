"""The environment of a program; pure."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from nsmd.bridge.values import Program

PATH = (
    # The first three: NixOS, and Nix elsewhere.
    "/run/wrappers/bin:/run/current-system/sw/bin:/nix/var/nix/profiles/default/bin"
    ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
"""PATH of programs: the system's own. To pass on the supervisor's, a definition names `PATH` in
`env`.
"""

LANGUAGE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_TIME", "TZ")
"""Passed on if set: language and time zone of the program."""


def variables_of(program: Program, own: Mapping[str, str]) -> dict[str, str]:
    """All variables of a program: a fixed minimum, and those that its definition names.

    Args:
        own: the supervisor's environment.
    """
    return {**least(own), **{name: own[name] for name in program.env if name in own}}


def least(own: Mapping[str, str]) -> dict[str, str]:
    """Make the variables that every program has."""
    user = _user()
    found = {
        "PATH": PATH,
        "HOME": own.get("HOME") or (user.pw_dir if user else "/"),
        "USER": user.pw_name if user else str(os.getuid()),
        "LOGNAME": user.pw_name if user else str(os.getuid()),
        "SHELL": (user.pw_shell if user else "") or "/bin/sh",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
    }
    found.update((name, own[name]) for name in LANGUAGE if own.get(name))
    return found


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # in containers
        return None
