"""The user's own systemd, as far as `nsm service` needs it: its units, what it says, lingering."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from nsm import paths

ANSWER_TIMEOUT_S = 60.0
"""Time for systemctl: a stop waits for running code to finish."""

_LINGERING = "/var/lib/systemd/linger"


class NoManagerError(OSError):
    """Error for a user without systemd; the message says why, and what works without it."""


class ManagerFailedError(OSError):
    """systemd did not do what it was asked for; the message has what it said."""


def check() -> None:
    """Say why there is no manager.

    Raises:
        NoManagerError: there is none.
    """
    without = (
        "nsm works without it: clients start the supervisor, and sessions outlive it for ten "
        "minutes. For a supervisor that systemd keeps"
    )
    if shutil.which("systemctl", path=paths.search_path()) is None:
        raise NoManagerError(f"systemd is not installed. {without}, install it.")
    done = _run("systemctl", "--user", "show", "--property=Version", "--value")
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip().splitlines()
        raise NoManagerError(
            f"systemd does not answer for this user ({said[0] if said else 'nothing was said'}). "
            f"{without}, log in by a login manager or ssh (not su or sudo), or have an "
            f"administrator run `loginctl enable-linger {user_name()}`."
        )


def unit_directory() -> str:
    """Directory of a user's own units (systemd.unit(5))."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(paths.home(), ".config")
    return os.path.join(base, "systemd/user")


def ask(*arguments: str) -> str:
    """Run systemctl and return its output.

    Raises:
        ManagerFailedError: it failed.
    """
    done = _run("systemctl", "--user", *arguments)
    if done.returncode:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise ManagerFailedError(f"`systemctl --user {' '.join(arguments)}`: {said}")
    return done.stdout


def properties(unit: str, names: Sequence[str]) -> Mapping[str, str]:
    """Some properties of a unit; those of one that is not there are empty or nought."""
    shown = ask("show", unit, *(f"--property={name}" for name in names))
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return {name: found.get(name, "") for name in names}


def lingers() -> bool:
    """Return whether this user's services run without a login."""
    return os.path.exists(f"{_LINGERING}/{user_name()}")


def set_lingering(*, on: bool) -> str:
    """Have them run without a login, or not; returns why that was refused, empty if it was not."""
    done = _run("loginctl", "enable-linger" if on else "disable-linger")
    return done.stderr.strip() or f"status {done.returncode}" if done.returncode else ""


def user_name() -> str:
    """Return the name of this user."""
    import pwd  # noqa: PLC0415  # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
    if not variables.get("XDG_RUNTIME_DIR"):
        variables["XDG_RUNTIME_DIR"] = f"/run/user/{os.getuid()}"  # cron's jobs have none
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=variables,
            timeout=ANSWER_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"no answer within {ANSWER_TIMEOUT_S:g} s"
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror}")
