"""Programs of nsm that are started in a stranger's checkout, by all front doors: nothing of the
checkout runs on the host.

Its modules are called as those of nsm, of what it needs and of Python, and its programs as those
that nsm starts. PATH has directories that depend on the working directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import END_TIMEOUT_S, end_holder, end_supervisor, program, variables_for

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

MODULES = (
    *("nsm", "nsmd", "nsmbox", "sandbox", "trio", "cbor2", "pip", "sitecustomize"),
    *("usercustomize", "json", "socket", "subprocess", "langchain"),
)
PROGRAMS = (
    *("bash", "busctl", "bwrap", "claude", "git", "less", "loginctl", "nix", "node", "nsm-mcp"),
    *("nsm-supervisor", "nvidia-smi", "python", "python3", "sh", "skopeo", "ssh", "systemctl"),
    *("systemd-run", "tar", "uv"),
)


class Checkout:
    """A hostile checkout, and the environment of a person who works in it.

    Attributes:
        path: the checkout.
        variables: environment of what is started there.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "checkout"
        self._ran = directory / "ran"
        self.variables = variables_for(directory)
        self.variables["PATH"] = f"tools:{self.variables['PATH']}::."
        for folder in ("config", "state", "checkout/tools"):
            (directory / folder).mkdir(parents=True)

    def place(self) -> None:
        """Put the modules and programs there."""
        for name in MODULES:
            (self.path / name).mkdir()
            for file in ("__init__.py", "__main__.py"):
                text = f"with open({str(self._ran)!r}, 'a') as ran: ran.write('module {name} ')\n"
                (self.path / name / file).write_text(text)
        for folder in (self.path, self.path / "tools"):
            for name in PROGRAMS:
                place = folder / name
                if not place.exists():
                    place.write_text(f"#!/bin/sh\necho program {name} >>{self._ran}\n")
                    place.chmod(0o755)

    def ran(self) -> str:
        """Return what of it has run on the host."""
        return self._ran.read_text() if self._ran.exists() else ""

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program there to its end."""
        return subprocess.run(
            command,
            cwd=self.path,
            env=self.variables,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=END_TIMEOUT_S,
            check=False,
        )


@pytest.fixture
def checkout(short_dir: Path) -> Generator[Checkout]:
    """A checkout without anything hostile yet; the supervisor that was started from it ends."""
    made = Checkout(short_dir)
    yield made
    end_supervisor(made.variables["NSM_SOCKET"])
    end_holder(short_dir)


def test_the_traps_work(checkout: Checkout) -> None:
    checkout.place()
    checkout.run(sys.executable, "-m", "nsm.cli", "--version")
    checkout.run("/bin/sh", "-c", "uv")
    assert checkout.ran() == "module nsm program uv\n"


COMMANDS: list[list[str]] = [
    ["run", "-e", "python", "print(6 * 7)"],
    ["run", "-e", "bash", "-s", "kept", "echo 42"],
    ["env"],
    ["doctor"],
    ["config", "check"],
    ["service", "status"],
    ["setup", "claude"],
    ["box", "--dry-run", "--", "/bin/true"],
]


def test_commands_run_nothing_of_the_checkout(checkout: Checkout) -> None:
    checkout.place()
    for arguments in COMMANDS:
        done = checkout.run(program("nsm"), *arguments)
        assert checkout.ran() == "", arguments
        assert arguments[0] != "run" or done.stdout == "42\n", done.stderr
    for options in (["--dry-run"], ["--check"]):
        checkout.run(program("claudebox"), *options, "--", "/bin/true")
    assert checkout.ran() == ""


def test_nsm_mcp_starts_the_supervisor(checkout: Checkout) -> None:
    checkout.place()
    asked = (
        '{"jsonrpc": "2.0", "id": 1, "method": "initialize", '
        '"params": {"protocolVersion": "2025-06-18"}}\n'
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n'
    )
    done = checkout.run(program("nsm-mcp"), stdin=asked)
    assert '"run"' in done.stdout, done.stderr
    assert checkout.ran() == ""


@pytest.mark.parametrize(
    "command",
    [
        [program("nsm-supervisor")],
        pytest.param([sys.executable, "-m", "nsmd"], marks=pytest.mark.slow),
    ],
    ids=["nsm-supervisor", "python -m nsmd"],
)
def test_a_supervisor_that_is_restarted_there(checkout: Checkout, command: Sequence[str]) -> None:
    """The checkout becomes hostile while it runs."""
    reader, writer = os.pipe()
    running = subprocess.Popen(
        [*command, "--ready-fd", str(writer)],
        cwd=checkout.path,
        env=checkout.variables,
        pass_fds=[writer],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writer)
    with open(reader, "rb") as ready:
        assert ready.readline() == b"\n"
    checkout.place()
    with nsm.Client(socket_path=checkout.variables["NSM_SOCKET"], autostart=False) as client:
        client.run("x = 42", env="python", session="kept")
        before = client.status().pid
        assert checkout.run(program("nsm"), "reload").returncode == 0
        assert client.run("print(x)", env="python", session="kept").stdout == "42\n"
        assert client.status().pid == before == running.pid
    running.send_signal(signal.SIGINT)
    running.wait(END_TIMEOUT_S)
    assert checkout.ran() == ""


MIDDLEWARE = """
from dataclasses import dataclass

SHELL_TEMP_PREFIX = "langchain-shell-"

@dataclass
class BaseExecutionPolicy:
    command_timeout: float = 30.0
"""

SHELL = """
import sys
from pathlib import Path
from nsm.integrations.langchain_shell import NsmExecutionPolicy
with NsmExecutionPolicy() as policy:
    shell = policy.spawn(workspace=Path(sys.argv[1]), env={}, command=["/bin/bash"])
    print("echo $((6 * 7))", file=shell.stdin)
    print(shell.stdout.readline())
    shell.kill()
    shell.communicate()
"""


@pytest.mark.slow
def test_a_shell_of_langchain(checkout: Checkout, short_dir: Path) -> None:
    """Started by a program that lies elsewhere. The framework is stood in for by what is used."""
    middleware = short_dir / "program/langchain/agents/middleware"
    middleware.mkdir(parents=True)
    (middleware / "shell_tool.py").write_text(MIDDLEWARE)
    (short_dir / "program/main.py").write_text(SHELL)
    (short_dir / "langchain-shell-1").mkdir()
    checkout.place()
    main = str(short_dir / "program/main.py")
    done = checkout.run(sys.executable, main, str(short_dir / "langchain-shell-1"))
    assert (done.stdout.strip(), done.stderr, checkout.ran()) == ("42", "", "")
