"""The sandboxes that are compared: what each needs, and how it is asked to run a command.

All start in the same world (`box.world`), in its project, as the same ordinary user, with the
settings that their own documentation begins with. npm's packages are named with their hashes in
lock files: srt's in `benchmarks/peers/sandbox-runtime`, Claude Code's in this directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from box.modelapi import model
from box.world import HOME, PROJECT
from nsm._version import __version__
from peers import srt

if TYPE_CHECKING:
    from box.world import World

HERE = Path(__file__).resolve().parent
AGENTS = HERE.parents[1] / "build/boxpeers"
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120

CAREFUL = """
--unshare-all --die-with-parent --new-session --clearenv --cap-drop ALL
--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib
--symlink usr/lib64 /lib64 --ro-bind /etc/alternatives /etc/alternatives
--ro-bind /etc/ld.so.cache /etc/ld.so.cache --proc /proc --dev /dev --tmpfs /tmp
--setenv PATH /usr/local/bin:/usr/bin:/bin --setenv LANG C.UTF-8
"""
"""Options as somebody chooses them who reads bubblewrap's manual with care."""


SCRIPT = "script-of-the-comparison.sh"


class NotHereError(Exception):
    """A sandbox that cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Output of a command in a sandbox.

    Attributes:
        out: its standard output.
        told: everything that anybody printed: the sandbox, too.
    """

    out: str
    told: str


Run = Callable[[str], Ran]
"""A function that runs a line of shell in a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A way to start commands.

    Attributes:
        name: the column's heading.
        what: how it is started, for the page.
        start: makes the function that runs lines in it; `NotHereError` where it cannot be had.
    """

    name: str
    what: str
    start: Callable[[Start], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Surroundings in which a sandbox is started.

    Attributes:
        before: stands before the sandbox's command.
    """

    world: World
    before: tuple[str, ...] = ()

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> Ran:
        """Run a command of the world to its end."""
        done = self.world.run(*self.before, *command, variables=variables)
        return Ran(out=done.stdout, told=done.stdout + done.stderr)


def _none(start: Start) -> Run:
    return lambda line: start.run("sh", "-c", line)


def _box(*options: str) -> Callable[[Start], Run]:
    return lambda start: (
        lambda line: start.run("nsm", "box", "--yes", *options, "--", "sh", "-c", line)
    )


def _bubblewrap(start: Start) -> Run:
    places = ["--tmpfs", HOME, "--bind", PROJECT, PROJECT, "--chdir", PROJECT, "--setenv", "HOME"]
    command = ["bwrap", *CAREFUL.split(), *places, HOME, "sh", "-c"]
    return lambda line: start.run(*command, line)


def _srt(start: Start) -> Run:
    for program, advice in srt.NEEDED.items():
        if shutil.which(program) is None:
            raise NotHereError(f"{program} is missing; {advice}")
    try:
        srt.install()
    except srt.SrtMissingError as error:
        raise NotHereError(str(error)) from None
    settings = {
        "network": {"allowedDomains": list[str](), "deniedDomains": list[str]()},
        "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": [".", "/tmp"], "denyWrite": [".env"]},
    }
    start.world.write(f"{HOME}/.srt-settings.json", json.dumps(settings))
    command = [str(srt.PLACE / "node_modules/.bin/srt"), "--settings", f"{HOME}/.srt-settings.json"]
    return lambda line: start.run(*command, "-c", line, variables=_with_ripgrep(start.world))


def _claude(start: Start) -> Run:
    """Claude Code itself, whose model is a stand-in that asks for one command."""
    program = install_claude()
    settings = {
        "sandbox": {
            "enabled": True,
            "autoAllowBashIfSandboxed": True,
            "allowUnsandboxedCommands": False,
        }
    }

    start.world.write(f"{HOME}/.claude.json", "{}")  # in the world it is no JSON

    def run(line: str) -> Ran:
        # Claude Code asks a person before it runs a line that it finds hard to read.
        start.world.write(f"{PROJECT}/{SCRIPT}", line)
        asked: dict[str, object] = {
            "command": f"sh {SCRIPT}",
            "description": "runs a script",
            "timeout": 60_000,
        }
        with model("Bash", asked) as url:
            variables = {**_with_ripgrep(start.world), "ANTHROPIC_BASE_URL": url}
            return start.run(
                *(str(program), "-p", "run it", "--settings", json.dumps(settings)),
                variables=variables,
            )

    return run


def _with_ripgrep(world: World) -> dict[str, str]:
    """Return a PATH with ripgrep, which srt and Claude Code search the project with."""
    places = [str(path.parent) for path in srt.PLACE.glob("node_modules/@vscode/ripgrep-*/bin/rg")]
    return {"PATH": os.pathsep.join([world.variables["PATH"], *places])}


def install_claude() -> Path:
    """Have Claude Code below `build/`; return its program.

    Raises:
        NotHereError: npm could not.
    """
    program = AGENTS / "node_modules/.bin/claude"
    if not program.exists():
        AGENTS.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(HERE / name, AGENTS / name)
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=AGENTS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise NotHereError(f"npm cannot install Claude Code: {srt.last_line(done.stderr)}")
    return program


def started(sandbox: Sandbox, world: World, before: tuple[str, ...] = ()) -> Run:
    """Make the function that runs lines in a sandbox in a world.

    Raises:
        NotHereError: it cannot be had, or does not run a command here.
    """
    run = sandbox.start(Start(world=world, before=before))
    done = run("echo it runs")
    if "it runs" not in done.out:
        raise NotHereError(f"it does not run here: {srt.last_line(done.told)}")
    return run


NONE = Sandbox(name="nothing", what="no sandbox: every attack has to succeed", start=_none)

SANDBOXES = (
    Sandbox(
        name="nsm box, no network",
        what=f"`nsm box --network off`, nsm {__version__}",
        start=_box("--network", "off"),
    ),
    Sandbox(name="nsm box", what=f"`nsm box`: the host's network, nsm {__version__}", start=_box()),
    Sandbox(
        name="srt",
        what="sandbox-runtime's `srt`, with the settings of its documentation's first example",
        start=_srt,
    ),
    Sandbox(
        name="Claude Code",
        what="Claude Code's own sandbox (`sandbox.enabled`, no commands outside of it); "
        "its model is a stand-in",
        start=_claude,
    ),
    Sandbox(
        name="bubblewrap",
        what="a careful bubblewrap: /usr, the project, an empty home, all namespaces its own",
        start=_bubblewrap,
    ),
)
