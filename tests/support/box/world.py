"""An ordinary user's world to start boxes in: a home with secrets, a project, an agent, sockets.

Everything is in one directory of the test's own and seen by programs of the world only, at the
places where people have it: `HOME` at `/home/ada`, sockets below `/run`. Programs are run by
`World.run`, `World.popen` or, on a terminal, `terminal.Terminal(world.command(...), ...)`. They are
Ada's whoever runs the tests; the process that is started is the program itself, so that signals and
exit codes are its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import e2e_support
from rungates import of_run

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

ENTER = Path(__file__).with_name("enter.py")
REPOSITORY = Path(__file__).resolve().parents[3]

HOME = "/home/ada"
PROJECT = f"{HOME}/project"
OTHER_PROJECT = f"{HOME}/other"
AWAY = "/home/shared/project"
"""A working directory that is not below HOME."""

ADAS_UID = 54_321
"""User for tests that root runs: nobody's on any machine, so that she may do nothing to anyone."""

COMMAND_TIMEOUT_S = 180

AGENT = """\
#!/usr/bin/env sh
# In the place of a coding agent: `run COMMAND...` runs it, anything else is told, one line each.
count=0
for word in "$@"; do
    count=$((count + 1))
    if [ "$word" = run ]; then
        shift $count
        exec "$@"
    fi
done
printf '<%s>\\n' "$@"
"""

AGENTS = {
    "claude": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "gemini": "@google/gemini-cli",
    "opencode": "opencode-ai",
}
"""Programs, and the packages of npm that have them."""

SECRETS: Mapping[str, str] = {
    ".ssh/id_ed25519": "ssh key",
    ".gnupg/private-keys-v1.d/0.key": "gpg key",
    ".aws/credentials": "aws key",
    ".config/gcloud/credentials.db": "gcloud token",
    ".kube/config": "kube token",
    ".docker/config.json": "docker login",
    ".config/sops/age/keys.txt": "sops age key",
    ".config/age/keys.txt": "age key",
    ".local/share/tailscale/tailscaled.state": "tailscale state",
    ".local/share/keyrings/login.keyring": "keyring",
    ".mozilla/firefox/ada/logins.json": "firefox logins",
    ".config/google-chrome/Default/Cookies": "chrome cookies",
    ".config/chromium/Default/Cookies": "chromium cookies",
    ".config/containers/auth.json": "podman login",
    ".local/share/containers/storage/secrets/secretsdata.json": "podman secrets",
    ".claude/.credentials.json": "the host's claude login",
    ".claude.json": "the host's claude state",
    ".git-credentials": "git login",
    ".netrc": "netrc",
    ".bash_history": "history",
    "other/.env": "another project",
}
"""Files in HOME that no box shows, with their content after `SECRET`."""

SECRET = "SECRET of ada: "

SOCKETS = {
    "docker": "/run/docker.sock",
    "podman": "/run/user/UID/podman/podman.sock",
    "ssh-agent": "/run/user/UID/ssh-agent.sock",
    "keyring": "/run/user/UID/keyring/control",
    "gpg-agent": "/run/user/UID/gnupg/S.gpg-agent",
    "d-bus": "/run/user/UID/bus",
    "system d-bus": "/run/dbus/system_bus_socket",
    "wayland": "/run/user/UID/wayland-0",
    "pulse": "/run/user/UID/pulse/native",
    "gpg-agent in home": "/home/ada/.gnupg/S.gpg-agent",
    "ssh multiplexer": "/home/ada/.ssh/master.sock",
}
"""Sockets of the host that no box shows; somebody listens on each."""


@dataclass(slots=True)
class World:
    """A user's world.

    Attributes:
        directory: on the host; what it holds is gone at the end of the block.
        uid: Ada's; her group has the same number where root runs the tests.
        variables: her environment, as a shell of hers has it.
        stack: closed at the end of the block.
    """

    directory: Path
    uid: int
    gid: int
    variables: dict[str, str]
    _shadows: dict[str, list[str]]
    _covered: list[str]
    _shown: list[tuple[str, str]]
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def runtime(self) -> str:
        """Her XDG_RUNTIME_DIR."""
        return f"/run/user/{self.uid}"

    def host(self, path: str) -> Path:
        """Path on the host of a path in the world below `/home` or `/run`."""
        if path.startswith("/home/"):
            return self.directory / path[1:]
        if path.startswith(self.runtime):
            return self.directory / "runtime" / path[len(self.runtime) :].lstrip("/")
        if (path + "/").startswith("/run/"):
            return self.directory / path[1:]
        raise ValueError(f"{path!r} is not in the world's own directories")

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        """Put a file of Ada's at a path of the world; directories are made.

        Returns:
            Where the host has it.
        """
        file = self.host(path)
        self.make_directory(os.path.dirname(path))
        file.write_text(text)
        file.chmod(mode)
        self.give(file)
        return file

    def make_directory(self, path: str) -> Path:
        """Make a directory of Ada's, and those above it."""
        made = self.host(path)
        missing: list[Path] = []
        while not made.exists():
            missing.append(made)
            made = made.parent
        for directory in reversed(missing):
            directory.mkdir()
            self.give(directory)
        return self.host(path)

    def link(self, path: str, to: str) -> None:
        """Make a symbolic link of Ada's."""
        self.make_directory(os.path.dirname(path))
        self.host(path).symlink_to(to)
        self.give(self.host(path))

    def show(self, source: str | Path, path: str) -> None:
        """Have something of the host at a path of the world, for programs started from now on."""
        self._shown.append((str(source), path))

    def shadow(self, directory: str, *names: str) -> None:
        """Leave out some names of a directory of the host, which becomes the world's own."""
        self._shadows.setdefault(directory, []).extend(names)

    def command(self, *argv: str, directory: str = PROJECT) -> list[str]:
        """Build the command that starts a program in the world, for `subprocess` or a terminal; it
        is no child."""
        world = {
            "uid": self.uid,
            "gid": self.gid,
            "shadow": self._shadows,
            "cover": self._covered,
            "show": self._shown,
            "directory": directory,
        }
        return [sys.executable, "-I", "-S", str(ENTER), json.dumps(world), "--", *argv]

    def popen(
        self,
        *argv: str,
        directory: str = PROJECT,
        variables: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.PIPE,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        start_new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a program; the caller ends it."""
        return subprocess.Popen(
            self.command(*argv, directory=directory),
            env=self.variables | dict(variables or {}),
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
        )

    def run(
        self,
        *argv: str,
        directory: str = PROJECT,
        variables: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end.

        Args:
            variables: on top of her own; an empty value takes one away.
        """
        merged = self.variables | dict(variables or {})
        return subprocess.run(
            self.command(*argv, directory=directory),
            env={name: value for name, value in merged.items() if value},
            cwd="/",
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def box(
        self,
        *argv: str,
        options: tuple[str, ...] = (),
        directory: str = PROJECT,
        variables: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a box, by `nsm box --yes`, to its end.

        Args:
            options: of `nsm box`.
        """
        return self.run(
            *("nsm", "box", "--yes", *options, "--", *argv),
            directory=directory,
            variables=variables,
            stdin=stdin,
        )

    def listen(self, path: str) -> None:
        """Have somebody listen on a socket of the world, to its end."""
        self.make_directory(os.path.dirname(path))
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.host(path)))
        listener.listen()
        self.host(path).chmod(0o666)
        self.give(self.host(path))

    def install_agent(self, name: str = "claude", text: str = AGENT) -> str:
        """Put one of `AGENTS` where npm's global packages are in a home directory, and on PATH.

        Returns:
            The path under which it is found.
        """
        prefix, package = f"{HOME}/.npm-global", f"lib/node_modules/{AGENTS[name]}"
        self.write(f"{prefix}/{package}/cli.js", text, 0o755)
        self.write(f"{prefix}/{package}/package.json", json.dumps({"name": AGENTS[name]}))
        self.link(f"{prefix}/bin/{name}", f"../{package}/cli.js")
        return f"{prefix}/bin/{name}"

    @contextmanager
    def supervisor(self, config: str = "") -> Generator[e2e_support.Supervisor]:
        """A supervisor of Ada's, at her socket, for the block.

        Args:
            config: text of her `config.toml`.
        """
        if config:
            self.write(f"{HOME}/.config/nsm/config.toml", config)
        directory = self.make_directory(f"{self.runtime}/nsm")
        with e2e_support.supervisor(
            directory,
            variables={
                **self.variables,
                "NSM_SOCKET": f"{self.runtime}/nsm/control.sock",
                "XDG_STATE_HOME": f"{HOME}/.local/state",
                "XDG_CONFIG_HOME": f"{HOME}/.config",
            },
            within=self.command(directory="/"),
        ) as it:
            yield it

    def give(self, path: Path) -> None:
        """Make something on the host Ada's."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


@contextmanager
def open_world(tools: Path | None = None) -> Generator[World]:
    """A world with a home, secrets in it, a project, two more places, and agents.

    Args:
        tools: a directory of Ada's for what nsm keeps of the system's programs, for several worlds.

    No supervisor runs, and none is started by programs of the world unless `NSM_AUTOSTART` is
    taken out of `World.variables`, whose end is then the caller's; see `World.supervisor`.
    """
    uid = os.getuid() or ADAS_UID
    gid = os.getgid() if os.getuid() else ADAS_UID
    with tempfile.TemporaryDirectory(prefix="nsm-world-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        world = World(
            directory=directory,
            uid=uid,
            gid=gid,
            variables=_variables(uid),
            _shadows={"/run": ["user", "docker.sock", "dbus"]},
            _covered=_closed_directories(uid),
            _shown=[
                (f"{name}/home", "/home"),
                (f"{name}/runtime", f"/run/user/{uid}"),
                *((f"{name}/run/{entry}", f"/run/{entry}") for entry in ("docker.sock", "dbus")),
                (f"{name}/passwd", "/etc/passwd"),
                (f"{name}/group", "/etc/group"),
                *((str(path), str(path)) for path in _needed()),
                *([(str(tools), f"{HOME}/.cache/nsm/box-tools")] if tools else []),
            ],
        )
        for made in ("home", "runtime", "run", "run/dbus"):
            (directory / made).mkdir()
        world.give(directory / "home")  # the maker of what it gives away
        (directory / "runtime").chmod(0o700)
        world.give(directory / "runtime")
        (directory / "passwd").write_text(_accounts("passwd", f"{uid}:{gid}:Ada:{HOME}:/bin/bash"))
        (directory / "group").write_text(_accounts("group", f"{gid}:"))
        with world.stack:
            _furnish(world)
            yield world


def _variables(uid: int) -> dict[str, str]:
    return {
        "HOME": HOME,
        "USER": "ada",
        "LOGNAME": "ada",
        "SHELL": "/bin/bash",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PATH": f"{HOME}/.npm-global/bin:{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
        "XDG_RUNTIME_DIR": f"/run/user/{uid}",
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path=/run/user/{uid}/bus",
        "SSH_AUTH_SOCK": f"/run/user/{uid}/ssh-agent.sock",
        "WAYLAND_DISPLAY": "wayland-0",
        "AWS_SECRET_ACCESS_KEY": f"{SECRET}aws variable",
        "ANTHROPIC_API_KEY": "sk-ant-of-ada",
        "NSM_AUTOSTART": "0",
        **of_run(),
    }


def _needed() -> list[Path]:
    """Paths that nsm's programs need although Ada cannot see them: in somebody's home."""
    return list(dict.fromkeys(Path(p) for p in (sys.base_prefix, sys.prefix, REPOSITORY)))


def _closed_directories(uid: int) -> list[str]:
    """Directories above those that she may not enter, the highest of each."""
    closed: dict[str, None] = {}
    for path in _needed():
        for above in reversed(path.parents):
            status = above.stat()
            if not status.st_mode & 0o001 and status.st_uid != uid and str(above) != "/home":
                closed[str(above)] = None
                break
    return list(closed)


def _accounts(database: str, rest: str) -> str:
    """The host's, with Ada in the place of whoever has her number."""
    number = rest.partition(":")[0]
    kept = [
        line
        for line in Path(f"/etc/{database}").read_text().splitlines()
        if line.split(":")[2:3] != [number]
    ]
    return "\n".join([*kept, f"ada:x:{rest}", ""])


def _furnish(world: World) -> None:
    for path in (
        PROJECT,
        OTHER_PROJECT,
        AWAY,
        f"{HOME}/.local/bin",
        f"{HOME}/.cache/nsm/box-tools",
    ):
        world.make_directory(path)
    world.host(f"{HOME}/.cache/nsm/box-tools").chmod(0o700)
    for path, what in SECRETS.items():
        world.write(f"{HOME}/{path}", f"{SECRET}{what}\n", 0o600)
    for name in ("nsm", "nsm-mcp", "nsm-supervisor", "claudebox"):
        world.link(f"{HOME}/.local/bin/{name}", e2e_support.program(name))
    world.write(
        f"{HOME}/.gitconfig",
        "[user]\n\tname = Ada Lovelace\n\temail = ada@example.org\n"
        "[credential]\n\thelper = store\n[alias]\n\tst = status\n",
    )
    world.write(f"{PROJECT}/README.md", "a project\n")
    for path in SOCKETS.values():
        world.listen(path.replace("UID", str(world.uid)))
    for name in AGENTS:
        world.install_agent(name)


def git(world: World, *arguments: str, directory: str = PROJECT) -> str:
    """Run git in the world, as Ada; what it prints."""
    done = world.run("git", *arguments, directory=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def have_git(world: World, directory: str = PROJECT) -> None:
    """Make a repository with one commit of a directory of the world."""
    if shutil.which("git", path=world.variables["PATH"]) is None:
        raise AssertionError("git is missing: `make setup` asks for it")
    script = "git init -q -b main && git add . && git commit -q -m first"
    done = world.run("sh", "-c", script, directory=directory)
    assert done.returncode == 0, done.stderr
