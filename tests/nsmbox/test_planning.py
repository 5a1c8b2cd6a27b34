"""Facts become plans, and plans the arguments of bwrap: what is in them, and in which order.

`golden/` has a whole one for each kind of box, as `--dry-run` prints it. After a change that is
meant, `NSM_TEST_WRITE_GOLDEN=1 pytest tests/nsmbox/test_planning.py` writes new ones, for you to
read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from box.facts_made import HOME, KNOWN, NPM, OWN, PROJECT, REPOSITORY, VARIABLES, facts, request
from nsmbox.host.added_directories import AddedDirectory
from nsmbox.host.facts import BoxRequest, Facts, HostPath
from nsmbox.host.nix_host import HostNix
from nsmbox.model.plan import Mount, Network, Plan
from nsmbox.planning import bwrap, planning
from nsmbox.protection.git_repository import GitFacts
from nsmbox.protection.guarded_files import Guarded
from nsmbox.protection.hidden_paths import HiddenPaths
from nsmbox.protection.secrets import within

GOLDEN = Path(__file__).with_name("golden")

BASH = ("/usr/bin/bash", "-c", "echo 'it''s me' && exit 3")

NIX = HostNix(
    state="/nix/var/nix",
    daemon=True,
    kept=("/nix/var/nix/profiles", "/nix/var/nix/gcroots"),
    alone=True,
    tools=("/nix/store/1-bash/bin", "/nix/store/2-coreutils/bin"),
    links=(
        ("/bin/sh", "/nix/store/1-bash/bin/sh"),
        ("/usr/bin/env", "/nix/store/2-coreutils/bin/env"),
    ),
    variables=(("SHELL", "/nix/store/3-zsh/bin/zsh"),),
)

CASES: dict[str, tuple[BoxRequest, Facts]] = {
    "claude": (request(), facts()),
    "claude-extra": (request(extra=("GH_TOKEN", "REPOSITORY", "ABSENT")), facts()),
    "codex": (
        request("codex"),
        facts(
            command=("/run/nsm/bin/codex",),
            state=(HostPath(path=f"{HOME}/.codex", source="/data/mia/codexbox"),),
        ),
    ),
    "shell-none": (
        request("shell", network=Network(mode="none")),
        facts(command=BASH, state=(), tools=()),
    ),
    "shell-allow": (
        request("shell", network=Network(mode="allow", allow=("pypi.org",))),
        facts(command=BASH, state=(), tools=()),
    ),
    "safe": (
        request("safe", show=("~/data",)),
        facts(
            command=BASH,
            state=(),
            tools=(),
            shown=(HostPath(path=f"{HOME}/data", source="/data/mia"),),
        ),
    ),
    "nixos": (
        request(),
        facts(
            system=facts().system[2:],
            command=("/nix/store/9-claude/bin/claude", "--dangerously-skip-permissions"),
            tools=(),
            forbidden=(),
            links=None,
            nix=NIX,
        ),
    ),
    "nix-beside": (request(), facts(nix=replace(NIX, alone=False, tools=(), variables=()))),
    "worktree": (
        request("shell"),
        facts(command=BASH, state=(), git=replace(REPOSITORY, shown=("/srv/shop.git",))),
    ),
    "places": (
        request("shell", set={"CI": "1", "MY_TOKEN": "tok-1"}),
        facts(
            command=("/usr/bin/bash",),
            state=(),
            tools=(),
            added=(
                AddedDirectory(path=f"{HOME}/work", writable=False),
                AddedDirectory(path=f"{HOME}/work/lib", writable=True),
                AddedDirectory(path=f"{PROJECT}/vendor", writable=False),
            ),
            hidden=HiddenPaths(
                files=(f"{HOME}/work/lib/.env", f"{PROJECT}/vendor/deep/.env"),
                directories=(f"{PROJECT}/deploy",),
                held=(f"{PROJECT}/vendor/deep",),
            ),
        ),
    ),
    "odd-names": (
        request("shell"),
        facts(
            command=("/usr/bin/bash",),
            state=(),
            directory="/srv/a 'b'\n$(c)\udcff",
            tools=(),
            git=replace(REPOSITORY, git_directory=None, common=None),
            guarded=facts().guarded.__class__(),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_whole_of_it(name: str) -> None:
    made = bwrap.command(planning.plan(*CASES[name]), "/usr/bin/bwrap", syscalls=b"filter")
    place = GOLDEN / f"{name}.txt"
    data = os.fsencode(made + "\n")
    if os.environ.get("NSM_TEST_WRITE_GOLDEN") == "1":
        place.write_bytes(data)
    assert data == place.read_bytes()


def test_no_other_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def place_of(plan: Plan, target: str) -> int:
    """The last mount there: the one that is seen."""
    return max(place for place, mount in enumerate(plan.mounts) if mount.target == target)


def seen(plan: Plan, path: str) -> Mount:
    """Find the mount that a path of the box belongs to, once all mounts are made."""
    return [mount for mount in plan.mounts if within(path, mount.target)][-1]


@pytest.mark.parametrize("name", CASES)
def test_home_is_memory_and_the_working_directory_shows(name: str) -> None:
    plan = planning.plan(*CASES[name])
    assert seen(plan, f"{HOME}/.bashrc").kind == "tmpfs"
    work = seen(plan, f"{plan.directory}/README")
    assert (work.kind, work.source) == ("bind", plan.directory)
    uncovered = plan.mounts[place_of(plan, plan.directory) + 1 :]
    assert not [m for m in uncovered if m.kind == "tmpfs" and within(plan.directory, m.target)]


@pytest.mark.parametrize("name", CASES)
def test_nothing_lies_over_the_mask_of_a_secret(name: str) -> None:
    plan = planning.plan(*CASES[name])
    for secret in KNOWN.secrets:
        there = seen(plan, f"{secret.path}/x")
        assert there.kind in ("mask", "tmpfs") or there.source == plan.directory
        if within(secret.path, plan.directory):
            assert there.kind == "mask"
            assert there.masks_file is not secret.is_directory


def test_of_a_store_that_is_alone_path_is_all_of_it() -> None:
    plan = planning.plan(*CASES["nixos"])
    values = {variable.name: variable.value for variable in plan.variables}
    assert values["PATH"] == "/nix/store/1-bash/bin:/nix/store/2-coreutils/bin"
    assert values["SHELL"] == "/nix/store/3-zsh/bin/zsh"
    assert [m.target for m in plan.mounts if within(m.target, "/usr")] == ["/usr/bin/env"]
    assert seen(plan, "/nix/store/later").kind == "ro-bind"
    assert seen(plan, "/nix/var/nix/daemon-socket/socket").kind == "bind"
    assert seen(plan, "/nix/var/nix/profiles/per-user/mia/profile").kind == "ro-bind"


def test_a_store_beside_the_system_adds_to_it() -> None:
    plan, without = (planning.plan(*CASES[name]) for name in ("nix-beside", "claude"))
    assert plan.variables == without.variables
    added = [mount.target for mount in plan.mounts if mount not in without.mounts]
    assert added[:2] == ["/nix/store", "/nix/var/nix"]
    told = {mount for mount in without.mounts if mount.why == "rules of the box, for the agent"}
    assert set(without.mounts) - told < set(plan.mounts)


def test_secrets_of_what_is_shown_elsewhere_are_masked_there() -> None:
    """A link leads to a directory with a secret in it: the mask is where the box has it."""
    shown = (HostPath(path=f"{HOME}/data", source=f"{HOME}/.config"),)
    known = replace(KNOWN, secrets=(replace(KNOWN.secrets[0], path=f"{HOME}/.config/gcloud"),))
    plan = planning.plan(request("safe"), facts(shown=shown, secrets=known))
    assert seen(plan, f"{HOME}/data/gcloud/credentials.db").kind == "mask"


def test_variables_are_those_on_the_list_and_no_others() -> None:
    given = {v.name: v for v in planning.plan(request(extra=("GH_TOKEN",)), facts()).variables}
    assert {name for name, v in given.items() if v.inherited} == {
        *("ANTHROPIC_API_KEY", "EDITOR", "GH_TOKEN", "LANG", "TERM", "USER"),
    }
    assert {name for name, v in given.items() if v.secret} == {"ANTHROPIC_API_KEY", "GH_TOKEN"}
    assert {name: v.value for name, v in given.items() if not v.inherited} == {
        "CLAUDE_CONFIG_DIR": f"{HOME}/.claude",
        "DISABLE_AUTOUPDATER": "1",
        "HOME": HOME,
        "NSM_AUTOSTART": "0",
        "NSM_SOCKET": "/run/nsm/box/control.sock",
        "PATH": "/run/nsm/bin:/run/nsm/tools",
        "SHELL": "/usr/bin/zsh",
        "TMPDIR": "/tmp",
        "XDG_RUNTIME_DIR": "/tmp",
    }


def test_what_is_asked_for_does_not_replace_the_box_s_own() -> None:
    names = ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "NSM_SOCKET")
    with_more = facts(variables={**VARIABLES, "NSM_SOCKET": "/run/user/1000/nsm/control.sock"})
    given = {v.name: v.value for v in planning.plan(request(extra=names), with_more).variables}
    assert [given[name] for name in names] == [
        *("/run/nsm/bin:/run/nsm/tools", HOME, "/tmp", "/tmp", "/run/nsm/box/control.sock")
    ]


def test_no_shell_where_the_caller_has_none() -> None:
    without = {name: value for name, value in VARIABLES.items() if name not in ("SHELL", "TERM")}
    given = {v.name for v in planning.plan(request(), facts(variables=without)).variables}
    assert not given & {"SHELL", "TERM"}


def test_what_is_shown_of_a_tool_is_bound_once() -> None:
    plan = planning.plan(request(), facts())
    assert [m.target for m in plan.mounts if m.source == NPM] == [NPM]
    links = {m.target: m.source for m in plan.mounts if m.kind == "symlink"}
    assert links["/run/nsm/bin/claude"] == f"{NPM}/@anthropic-ai/claude-code/cli.js"


def test_the_command_has_its_signals_back() -> None:
    plan = planning.plan(request(), facts())
    assert plan.command[:3] == ("/run/nsm/python", "-I", "-S")
    assert plan.asked == facts().command


def test_another_path_to_home_leads_there() -> None:
    plan = planning.plan(request(), facts(home_link="/home/alias"))
    there = seen(plan, "/home/alias")
    assert (there.kind, there.source) == ("symlink", HOME)


def test_what_matters_most_is_noted_first() -> None:
    """A small screen has room for no more."""
    made = facts(
        notes=("of Nix",), git=GitFacts(notes=("of git",)), guarded=Guarded(notes=("of guards",))
    )
    assert planning.plan(request(), made).notes == ("of guards", "of git", "of Nix")


def test_the_digest_is_of_what_a_box_can_do() -> None:
    first = planning.plan(request(), facts())
    more_said = facts(
        command=("/run/nsm/bin/claude", "--dangerously-skip-permissions", "-p", "hello"),
        variables={**VARIABLES, "ANTHROPIC_API_KEY": "another", "LANG": "C"},
        notes=("something",),
    )
    assert planning.plan(request(), more_said).digest == first.digest
    others = [
        planning.plan(request(), facts(directory=f"{HOME}/other")),
        planning.plan(request(extra=("GH_TOKEN",)), facts()),
        planning.plan(request(network=Network(mode="none")), facts()),
        planning.plan(request(), facts(own=replace(OWN, python="/opt/other"))),
        planning.plan(request("gemini"), facts()),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == len(others) + 1
