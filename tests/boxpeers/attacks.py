"""The attacks: the probes of `box.probes`, and what a sandbox leaves for the host to run.

Every attack starts in a fresh world. Whether one succeeded is told by the host where the sandbox
may have files of its own under the same names, else by the attack.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from box import probes
from box.attack import GUARDED, OUTSIDE, Attack, prepared
from box.world import PROJECT, SECRETS, have_git, open_world
from boxpeers.sandboxes import Ran, Sandbox, started

if TYPE_CHECKING:
    from collections.abc import Generator

    from box.world import World
    from boxpeers.sandboxes import Run

Outcome = Literal["held", "told", "open"]
"""`told`: it succeeded, and whoever started the sandbox reads of it at the end."""

PYTHON = "/usr/bin/python3"
"""A Python that every sandbox shows."""

PROBES = "probes-of-boxes.py"
MARK = "left by the attack"

LEFT: Mapping[str, tuple[str, str]] = {
    ".mcp.json": ("mcp.json", "agents start the servers that it names"),
    ".claude/settings.json": ("settings.json", "hooks of Claude Code"),
    ".claude/settings.local.json": ("settings.local.json", "the same"),
    ".cursor/mcp.json": ("mcp.json", "servers that Cursor starts"),
    ".vscode/tasks.json": ("tasks.json", "tasks that run when the folder is opened"),
    ".devcontainer/devcontainer.json": ("devcontainer", "`initializeCommand` runs on the host"),
    ".envrc": (".envrc", "direnv, when somebody enters the directory"),
    ".husky/pre-commit": ("pre-commit", "git, before the next commit"),
    ".git/hooks/post-checkout": ("post-checkout", "git, at the next switch of branches"),
    "lib/.git/hooks/post-checkout": ("lib", "git, in a repository that the code made"),
    "deep/er/than/two/.mcp.json": ("deep", "an agent that is started in that directory"),
}
"""Files that do not exist before: what a notice has to name, and who runs them later."""

LEAVE = """\
import os, subprocess, sys
for path in sys.argv[2:]:
    try:
        if path.startswith("lib/"):
            subprocess.run(["git", "init", "-q", "lib"], check=False)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(sys.argv[1])
        os.chmod(path, 0o755)
    except OSError:
        pass
"""

RENAMED = "mkdir aside && echo '{mark}' > aside/tasks.json && mv -T aside .vscode"
SETTING = "git config core.fsmonitor ./evil; git config --get core.fsmonitor"
STAYS = """\
trap '' HUP INT TERM
for i in $(seq 100); do echo > alive; sleep .05; done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One attack in one sandbox.

    Attributes:
        what: the attack, for the page.
        count: how much of what there was it got; empty where that is one thing.
    """

    name: str
    what: str
    outcome: Outcome
    count: str = ""


@contextmanager
def _world(sandbox: Sandbox) -> Generator[tuple[World, Run]]:
    with open_world() as world:
        yield world, started(sandbox, world)


def _probed(attack: Attack, run: Run) -> dict[str, dict[str, object]]:
    names = ",".join(name for name in probes.PROBES if name != "signal-to-the-starters-group")
    setting = json.dumps(attack.setting)
    attack.world.write(f"{PROJECT}/{PROBES}", Path(probes.__file__).read_text(encoding="utf-8"))
    done = run(shlex.join([PYTHON, "-I", PROBES, setting, names]))
    start = done.out.find("{")
    told: dict[str, dict[str, object]] = json.loads(done.out[start:].partition("\n")[0])
    return told


def run_probes(sandbox: Sandbox) -> Generator[Result]:
    """Run the probes of boxes in a sandbox."""
    with open_world() as world, prepared(world) as attack:
        with attack.victim():
            told = _probed(attack, started(sandbox, world, attack.starter))
        outside, guarded = attack.came_to_be(), attack.guarded_changed()
        for name, each in told.items():
            got, of = each.get("got", []), 0
            if name.startswith("writing-outside"):
                got, of = outside, len(OUTSIDE)
            elif name.endswith("-guarded"):
                got, of = guarded, len(GUARDED)
            elif name.startswith("secrets-in"):
                of = len(SECRETS)
            what = (probes.PROBES[name].__doc__ or "").strip().rstrip(".")
            count = f"{len(cast('list[str]', got))} of {of}" if got and of else ""
            yield Result(name=name, what=what, outcome="open" if got else "held", count=count)


def run_left(sandbox: Sandbox) -> Generator[Result]:
    """Have a sandbox leave files which the host runs later."""
    for path, (word, who) in LEFT.items():
        with _world(sandbox) as (world, run):
            have_git(world)
            done = run(shlex.join([PYTHON, "-I", "-c", LEAVE, MARK, path]))
            left = world.host(PROJECT) / path
            yield Result(name=f"new `{path}`", what=who, outcome=_outcome(_has(left), word, done))
    with _world(sandbox) as (world, run):
        done = run(RENAMED.format(mark=MARK))
        there = _has(world.host(PROJECT) / ".vscode/tasks.json")
        what = "a directory that is renamed to `.vscode`"
        yield Result(name="new by renaming", what=what, outcome=_outcome(there, ".vscode", done))
    with _world(sandbox) as (world, run):
        have_git(world)
        done = run(SETTING)
        there = "fsmonitor" in (world.host(PROJECT) / ".git/config").read_text()
        what = "`core.fsmonitor`: a program that the host's git runs at `git status`"
        yield Result(name="setting of git", what=what, outcome=_outcome(there, "fsmonitor", done))


def run_stays(sandbox: Sandbox) -> Generator[Result]:
    """Have a program go on after the sandbox has ended."""
    with _world(sandbox) as (world, run):
        world.write(f"{PROJECT}/stays", STAYS)
        run("setsid sh stays >/dev/null 2>&1 </dev/null & while [ ! -e alive ]; do sleep .01; done")
        alive = world.host(PROJECT) / "alive"
        alive.unlink(missing_ok=True)
        world.run("sleep", "0.5")
        outcome: Outcome = "open" if alive.exists() else "held"
        if alive.exists():
            world.run("sleep", "6")  # until it has ended by itself
        what = "A program in a session of its own goes on after the end"
        yield Result(name="outliving", what=what, outcome=outcome)


def _has(path: Path) -> bool:
    try:
        return MARK in path.read_text(errors="replace")
    except OSError:
        return False


def _outcome(there: bool, word: str, done: Ran) -> Outcome:
    if not there:
        return "held"
    return "told" if word in done.told.replace(done.out, "") else "open"


def run_all(sandbox: Sandbox) -> list[Result]:
    """Run every attack in a sandbox.

    Raises:
        NotHereError: the sandbox cannot be had.
    """
    return [*run_probes(sandbox), *run_left(sandbox), *run_stays(sandbox)]
