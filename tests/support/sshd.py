"""Another machine, as far as ssh can tell: a real sshd, and a way to it that can be slow or cut.

`sshd -i` serves one connection on its standard input and output. The ProxyCommand of the test's own
ssh configuration starts it, so nothing listens anywhere, and passes bytes between the two. The
"machine" has directories of its own for everything of nsm's.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bootstrap
from e2e_support import end_supervisor, program, run, variables_for, wait_gone

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

SSHD = "/usr/sbin/sshd"
PRIVILEGE_SEPARATION = "/run/sshd"
"""Directory without which root's sshd does not start; Debian's service makes it."""

WAY = Path(__file__).with_name("sshway.py")
KEY_TIMEOUT_S = 60


class FarMachine:
    """The other machine.

    Attributes:
        address: for `--host`.
        here: environment of programs on this machine.
        there: directory of everything of nsm's on the other one.
    """

    def __init__(self, directory: Path, there: Path | None) -> None:
        self.address = "ssh://far"
        self.directory = directory
        if there is None:
            there = directory / "far"
            there.mkdir(mode=0o700)
        self.there = there
        (directory / "ways").mkdir(mode=0o700)
        self.here = self.laptop("near")

    def laptop(self, name: str) -> dict[str, str]:
        """Environment of programs on one more machine that uses the other one."""
        place = self.directory / name
        place.mkdir(mode=0o700)
        variables = variables_for(place) | {
            "NSM_SSH": f"ssh -F {self.directory / 'ssh_config'}",
            "XDG_RUNTIME_DIR": str(place),
        }
        del variables["NSM_SOCKET"]
        return variables

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of ours on this machine, for the other one."""
        return run(*command, variables={**self.here, "NSM_HOST": self.address}, stdin=stdin)

    def ways(self) -> list[int]:
        """Process ids of the connections, or of what passes their bytes."""
        notes = [path.name for path in (self.directory / "ways").iterdir()]
        return sorted(int(pid) for pid in notes if Path("/proc", pid).exists())

    def stall(self) -> list[int]:
        """Have all connections pass nothing, and not end either; returns them."""
        ways = self.ways()
        for pid in ways:
            os.kill(pid, signal.SIGSTOP)
        return ways

    def cut(self, ways: Sequence[int] | None = None) -> int:
        """Cut all connections at once, as a cable that is pulled; returns how many there were.

        Args:
            ways: only these.
        """
        ways = self.ways() if ways is None else ways
        for pid in ways:
            (self.directory / "ways" / str(pid)).unlink(missing_ok=True)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(ways)

    def remove_nsm(self) -> None:
        """Have Python alone on PATH there, in place of nsm's programs."""
        python = self.directory / "python"
        python.mkdir()
        name = f"python3.{sys.version_info[1]}"
        (python / name).symlink_to(sys.executable)
        self.replace_programs(python)

    def replace_programs(self, directory: Path) -> None:
        """Have a directory on PATH there, in place of the one of nsm's programs."""
        config = self.directory / "sshd_config"
        ours = str(Path(program("nsm")).parent)
        config.write_text(config.read_text().replace(f"PATH={ours}:", f"PATH={directory}:", 1))

    def end(self) -> None:
        """End its supervisor and all connections."""
        end_supervisor(str(self.there / "nsm" / "control.sock"))
        passing = [os.pidfd_open(pid) for pid in self.ways()]
        for control in self.directory.glob("*/nsm/hosts/*/ssh"):
            ssh = ("ssh", "-F", str(self.directory / "ssh_config"), "-S", str(control))
            subprocess.run([*ssh, "-O", "exit", "far"], capture_output=True, check=False)
        wait_gone(passing)


def configure(directory: Path, *, delay_s: float, bytes_s: float, within: Sequence[str]) -> None:
    """Write keys and configuration of both sides."""
    for name in ("host_key", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)],
            check=True,
            timeout=KEY_TIMEOUT_S,
        )
    (directory / "known_hosts").write_text(f"far {(directory / 'host_key.pub').read_text()}")
    there = {**variables_for(directory / "far"), "XDG_RUNTIME_DIR": str(directory / "far")}
    there["PATH"] = f"{Path(program('nsm')).parent}:{there['PATH']}"
    del there["NSM_SOCKET"]  # which is found there
    settings = " ".join(f'"{name}={value}"' for name, value in there.items())
    (directory / "sshd_config").write_text(
        f"""\
HostKey "{directory}/host_key"
AuthorizedKeysFile "{directory}/key.pub"
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
LogLevel ERROR
SetEnv {settings}
"""
    )
    way = shlex.join([sys.executable, "-S", "-E", str(WAY)])
    way += f" {directory}/ways {delay_s} {bytes_s} {' '.join(within)}"
    (directory / "ssh_config").write_text(
        f"""\
Host far
  ProxyCommand {way} {SSHD} -i -f {directory}/sshd_config -E {directory}/sshd.log
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile none
  IdentityFile {directory}/key
  IdentitiesOnly yes
  IdentityAgent none
"""
    )


@contextmanager
def far_machine(
    directory: Path,
    *,
    delay_s: float = 0.0,
    bytes_s: float = math.inf,
    within: Sequence[str] = (),
    there: Path | None = None,
) -> Generator[FarMachine]:
    """Have another machine, and see that nothing of it is left.

    Args:
        directory: private and with a short name (a socket's path has at most 107 bytes).
        delay_s: delay of each packet.
        bytes_s: bytes that pass in a second.
        within: a command that becomes what follows it, in which each connection's sshd runs.
        there: where its directory is seen from here, if it is there already.
    """
    if not (shutil.which(SSHD) and shutil.which("ssh")):
        why = "sshd is missing (Debian, Ubuntu: apt-get install openssh-server)"
        started = os.path.isdir(bootstrap.RUNNING_SYSTEMD)
        pytest.skip(f"not here: {why}; set-up installs no servers" if started else why)
    if os.geteuid() == 0:
        Path(PRIVILEGE_SEPARATION).mkdir(mode=0o755, exist_ok=True)
    machine = FarMachine(directory, there)
    configure(directory, delay_s=delay_s, bytes_s=bytes_s, within=within)
    try:
        yield machine
    finally:
        machine.end()
