"""One OpenSSH connection to a host, which all programs of this user share.

OpenSSH does all of it: keys, agents, jump hosts, known hosts, and what the user has configured. A
master process (ControlMaster in ssh_config(5)) keeps the connection, and goes when nothing has used
it for a while. The other calls here are short ssh commands that the master carries out. Files
beside the socket that clients use say which connection it belongs to, and where it leads.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nsm.hosts.address import RemoteHost
from nsm.hosts.place import FACTS
from nsm.wire.decode import decode
from nsm.wire.errors import HostError, HostUnreachableError

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import IO

IDLE_S = 900
"""The connection ends after so many seconds in which no client was connected through it."""

_CONNECT_TIMEOUT_S = 15
"""Time limit for the host to answer at all; a person may type a password for as long as sshd lets
them."""

_MUX_TIMEOUT_S = 20.0
"""Time limit for a command to the master. It takes milliseconds, unless the master is stopped."""

_MAX_SAID_LINES = 2
"""Lines of ssh's last words that are shown; the rest is in its log."""

_OPTIONS = (
    f"ControlPersist={IDLE_S}",
    f"ConnectTimeout={_CONNECT_TIMEOUT_S}",
    # A connection that is dead is noticed within 15 s, before clients give up on the supervisor.
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "StreamLocalBindMask=0177",
    # What the user has configured for logins of their own has no place in this connection.
    "ClearAllForwardings=yes",
    "RemoteCommand=none",
    "RequestTTY=no",
    "PermitLocalCommand=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    # Compression=no and the like are the user's choice.
)


class SshConnection:
    """The connection to one host, whose control socket and log are in a directory."""

    def __init__(self, host: RemoteHost, directory: str) -> None:
        self._host = host
        self._control = os.path.join(directory, "ssh")
        self._log = os.path.join(directory, "ssh.log")

    def is_up(self) -> bool:
        """Return whether there is a master that answers."""
        return os.path.exists(self._control) and self._ask_master("check").returncode == 0

    def open(self) -> None:
        """Make the connection.

        Raises:
            HostUnreachableError: there is none to be had; the message has ssh's own words.
            HostError: there is no ssh.
        """
        with suppress(FileNotFoundError):  # of a master that was killed: ssh would not replace it
            os.unlink(self._control)
        options = [word for option in _OPTIONS for word in ("-o", option)]
        command = [
            *(*self._host.ssh, "-M", "-N", "-f", "-S", _literal(self._control), "-E", self._log),
            *(*options, *self._host.destination),
        ]
        # Where there is no terminal to ask a person on, ssh must not find one all the same: an
        # editor's terminal, which the editor draws on.
        alone = not any(map(os.isatty, (0, 1, 2)))
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            ssh = subprocess.Popen(
                [*_WITHOUT_CTRL_C, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,  # a pipe would stay open as long as the master lives
                cwd="/",
                start_new_session=alone,
            )
            try:
                code = ssh.wait()
            except BaseException:
                ssh.terminate()  # while it asks for a password, it then restores the terminal
                ssh.wait()
                raise
        except OSError as error:
            raise self._no_ssh(error) from error
        finally:
            os.close(log)
        if code == _EXIT_NO_PROGRAM:
            raise self._no_ssh(FileNotFoundError(f"{self._host.ssh[0]} is not there"))
        if code != 0:
            self._refuse_changed_key()
            raise HostUnreachableError(
                f"there is no connection to {self._host.name}: {self._last_words()}",
                hint=f"Try `{shlex.join([*self._host.ssh, *self._host.destination])}`; what ssh "
                f"said is in {self._log}.",
            )

    def run(
        self, command: str, *, stdin: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command of the host's shell; a `HostUnreachableError` if the connection ends."""
        done = subprocess.run(
            self.command(command), stdin=stdin, cwd="/", capture_output=True, check=False
        )
        if done.returncode == _EXIT_SSH:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise HostUnreachableError(
                f"the connection to {self._host.name} was lost: {' '.join(said[-1:])}",
                hint="Try again.",
            )
        return done

    def command(self, command: str) -> list[str]:
        """Arguments that run a command of the host's shell over this connection, and no other."""
        # Without a master, ssh would make a connection of its own.
        only_master = ("-o", "ControlMaster=no", "-o", "ProxyCommand=false")
        return [
            *(*self._host.ssh, "-T", "-S", _literal(self._control), *only_master),
            *("-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes", "-o", "LogLevel=ERROR"),
            *(*self._host.destination, command),
        ]

    def forward(self, here: str, there: str) -> None:
        """Have the connections to an address here lead to one of the host, each the path of a Unix
        socket or ``HOST:PORT``. A `HostUnreachableError` has ssh's own words.
        """
        done = self._ask_master("forward", "-L", f"{_literal(here)}:{_literal(there)}")
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise HostUnreachableError(
                f"ssh could not forward {here} to {self._host.name}: "
                f"{' '.join(said[-1:]) or 'it did not say why'}",
                hint=f"End the connection by `{self._end_command()}`, and try again. What ssh said "
                f"is in {self._log}.",
            )

    def unforward(self, here: str, there: str) -> None:
        """Take back what `forward` did; connections that are open go on."""
        self._ask_master("cancel", "-L", f"{_literal(here)}:{_literal(there)}")

    def _end_command(self) -> str:
        """Command that ends the connection, for people. It works while nsm gets no answer, too."""
        control = ["-S", _literal(self._control), "-O", "exit"]
        return shlex.join([*self._host.ssh, *control, *self._host.destination])

    def _ask_master(self, what: str, *more: str) -> subprocess.CompletedProcess[bytes]:
        command = [
            *(*self._host.ssh, "-S", _literal(self._control), "-O", what),
            *(*more, *self._host.destination),
        ]
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                cwd="/",
                capture_output=True,
                check=False,
                timeout=_MUX_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, b"", _SILENT)
        except OSError as error:
            raise self._no_ssh(error) from error

    def _refuse_changed_key(self) -> None:
        """Tell of a host key that is not the one that ssh knows: ssh has said so in many lines."""
        said = "\n".join(self._lines())
        if _CHANGED_KEY not in said:
            return
        known = re.search(r"^Offending .* key in (.+):\d+$", said, re.MULTILINE)
        file = ["-f", known[1]] if known else []
        forgets = shlex.join(["ssh-keygen", *file, "-R", self._host_name_in_keys(said)])
        raise HostUnreachableError(
            f"the host key of {self._host.name} is not the one that your ssh knows: that machine "
            "was installed again, or another one answers in its place",
            hint="Ask whoever runs that machine whether its key has changed. If so, forget the "
            f"old one with `{forgets}` and try again. What ssh said is in {self._log}.",
        )

    def _host_name_in_keys(self, said: str) -> str:
        named = re.search(r"^Host key for (\S+) has changed", said, re.MULTILINE)
        return named[1] if named else self._host.host

    def _lines(self) -> list[str]:
        try:
            with open(self._log, encoding="utf-8", errors="replace") as log:
                return [line.strip() for line in log if line.strip()]
        except OSError:
            return []

    def _last_words(self) -> str:
        lines = self._lines()
        return " ".join(lines[-_MAX_SAID_LINES:]) or "ssh did not say why"

    def _no_ssh(self, error: OSError) -> HostError:
        return HostError(
            f"ssh cannot be started: {error}", hint="Install OpenSSH's client, or set NSM_SSH."
        )


_SILENT = f"the process of the connection has not answered for {_MUX_TIMEOUT_S:g} s".encode()

_CHANGED_KEY = "REMOTE HOST IDENTIFICATION HAS CHANGED"
"""Words of ssh's warning, which it has in English only."""

_WITHOUT_CTRL_C = ("/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Beginning of the connection's command. Its ProxyCommand, which also leads over jump hosts, stays
in the process group of the program that began it: Ctrl-C there would end the connection, and
interrupt no code. What ssh starts inherits that it is ignored. While ssh asks for a password, the
client ends it."""

_EXIT_NO_PROGRAM = 127

_EXIT_SSH = 255
"""Exit code of ssh itself, if no command was run or the connection ended (ssh(1))."""


def _literal(path: str) -> str:
    """A path, written so that ssh takes no part of it for a token (TOKENS in ssh_config(5)).

    Of ``HOST:PORT`` nothing changes.
    """
    if not path.startswith("/"):
        return path
    return path.replace("%", "%%").replace("\\", "\\\\").replace(":", "\\:")


def host_of(path: str) -> RemoteHost:
    """The host that a socket leads to; a `HostError` if nobody can tell."""
    place = os.path.join(os.path.dirname(path), FACTS)
    try:
        with open(place, encoding="utf-8") as file:
            return decode(RemoteHost, json.load(file))
    except (OSError, ValueError) as error:
        raise HostError(
            f"{place} cannot be read: {error}", hint="Remove it and try again."
        ) from error


def connection_of(path: str) -> SshConnection:
    """The connection to the host that a socket leads to; it need not be up."""
    return SshConnection(host_of(path), os.path.dirname(path))


def remote_socket(path: str) -> str:
    """The path there of the socket that one of ours leads to; a `HostUnreachableError` if it leads
    nowhere."""
    try:
        with open(forwarded_file(path), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise HostUnreachableError(
            "there is no connection to the host", hint="Try again."
        ) from None


def read_facts(path: str) -> dict[str, Any] | None:
    """Facts that the host of a socket last told of itself; None if it never did."""
    try:
        with open(facts_file(path), encoding="utf-8") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return None


def facts_file(path: str) -> str:
    """The file that has these facts."""
    return f"{path}.facts"


def forwarded_file(path: str) -> str:
    """The file that has the path there of the socket that one of ours leads to."""
    return f"{path}.there"


@contextmanager
def locked(path: str, name: str = "start.lock") -> Generator[None]:
    """Keep other programs from changing the connection that a socket belongs to, or what `name` is
    for.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(os.path.join(os.path.dirname(path), name), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
