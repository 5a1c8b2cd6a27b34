"""systemd of the user, for `nsm service`: nsm's units, what systemd says, and lingering.

The units in `systemd/` are these, without an installation's paths.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from nsm import paths

SERVICE = "nsm-supervisor.service"
SOCKET = "nsm-supervisor.socket"

MARK = (
    "# Written by `nsm service install`; `nsm service uninstall` removes it. Changes of your own:"
)
"""Begins each unit that was installed, so that it can be told from what others wrote."""

_SERVICE = """\
[Unit]
Description=nsm: jailed Python, Bash and Node sessions for coding agents
Requires=nsm-supervisor.socket
After=nsm-supervisor.socket
# With a start that fails again and again, sessions would wait for ever.
StartLimitIntervalSec=30
StartLimitBurst=30

[Service]
Type=notify
ExecStart={supervisor}
# The program as it is installed now, and its configuration; sessions go on.
ExecReload={nsm} reload
Restart=on-failure
RestartSec=250ms
# 2: a mistake in config.toml, or no place to be; starting again would not help.
RestartPreventExitStatus=2
# 75: ended by a signal, and sessions are left to the next one (`systemctl stop` starts none).
RestartForceExitStatus=75
SuccessExitStatus=75
# A reload tries the next program first, and then waits until that answers.
TimeoutStartSec=180
# An event loop that hangs is ended, and says where it hung.
WatchdogSec=30
TimeoutAbortSec=10
# Above what a drain takes (`[drain] timeout_seconds`); the supervisor asks for more if it needs it.
TimeoutStopSec=30
# Sessions outlive the supervisor: their descriptors are kept, and given to the next one. Without
# one, as after `systemctl stop`, nobody has them, and that ends each session.
KillMode=process
FileDescriptorStoreMax=65536
# systemd 254 and newer say by themselves that they keep descriptors.
Environment=NSM_FDSTORE=systemd
# Sessions are in a scope beside this service, where each is limited (docs/reference/policy.md);
# where there can be none they are in here.
TasksMax=infinity
OOMPolicy=continue
ManagedOOMPreference=avoid
# It has little to do, and whoever waits for a session waits for it.
CPUWeight=1000
UMask=0077
KeyringMode=private
# What it has in memory is code and its output.
LimitCORE=0
# Jails are user namespaces made by bwrap, which is setuid on some hosts: options that forbid those
# (RestrictNamespaces=, NoNewPrivileges= and all that imply it), or that mount for the unit what
# sessions are then shown (PrivateTmp=, ProtectHome=), must not be set here.

[Install]
Also=nsm-supervisor.socket
"""

_SOCKET = """\
# The socket that clients of nsm look for. The first one to connect starts the supervisor.
[Unit]
Description=Control socket of nsm

[Socket]
# $XDG_RUNTIME_DIR/nsm/control.sock: docs/reference/configuration.md, Files.
ListenStream=%t/nsm/control.sock
SocketMode=0600
# The supervisor refuses a directory that others may enter.
DirectoryMode=0700
# A herd of editors that start at once is to find room (nsmd.host.listeners.BACKLOG).
Backlog=1024

[Install]
WantedBy=sockets.target
"""

_BY_HAND = """\
# `nsm service install` puts both units into ~/.config/systemd/user, with the absolute paths of its
# installation, and enables them; nothing else is needed.
"""


def units(supervisor: Sequence[str], nsm: Sequence[str]) -> dict[str, str]:
    """The units of an installation, by their names; its commands have absolute paths."""
    service = _SERVICE.format(supervisor=_command(supervisor), nsm=_command(nsm))
    own = {name: f"{MARK}\n# systemctl --user edit {name}\n" for name in (SERVICE, SOCKET)}
    return {SERVICE: own[SERVICE] + service, SOCKET: own[SOCKET] + _SOCKET}


def plain_units() -> dict[str, str]:
    """The units with names for programs, as they are in `systemd/`."""
    service = _BY_HAND + _SERVICE.format(supervisor="nsm-supervisor", nsm="nsm")
    return {SERVICE: service, SOCKET: _SOCKET}


def _command(words: Sequence[str]) -> str:
    """A command line (systemd.service(5), "Command lines")."""
    return " ".join(_word(word) for word in words)


def _word(text: str) -> str:
    text = text.replace("%", "%%").replace("$", "$$")
    if not set(text) & set(" \t\"'\\;"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


ANSWER_TIMEOUT_S = 60.0
"""Time for systemctl: a stop waits for running code to finish."""

_LINGERING = "/var/lib/systemd/linger"


class NoManagerError(OSError):
    """Error for a user without systemd; the message says why, and what works without it."""


class ManagerFailedError(OSError):
    """systemd did not do what it was asked for; the message has what it said."""


def check() -> None:
    """Raise an error that says why there is no manager, if there is none."""
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
    """Run systemctl and return its output."""
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
