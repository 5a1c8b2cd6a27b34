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

from box.facts_made import HOME, KNOWN, OWN, PROJECT, REPOSITORY, VARIABLES, facts, request
from nsmbox.host.added_directories import AddedDirectory
from nsmbox.host.facts import BoxRequest, Facts, HostPath
from nsmbox.host.nix_host import HostNix
from nsmbox.model.plan import Mount, Network, Plan
from nsmbox.planning import bwrap, planning
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


def test_secrets_of_what_is_shown_elsewhere_are_masked_there() -> None:
    """A link leads to a directory with a secret in it: the mask is where the box has it."""
    shown = (HostPath(path=f"{HOME}/data", source=f"{HOME}/.config"),)
    known = replace(KNOWN, secrets=(replace(KNOWN.secrets[0], path=f"{HOME}/.config/gcloud"),))
    plan = planning.plan(request("safe"), facts(shown=shown, secrets=known))
    assert seen(plan, f"{HOME}/data/gcloud/credentials.db").kind == "mask"


def test_variables_asked_for_do_not_replace_the_boxs_own() -> None:
    names = ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "NSM_SOCKET")
    with_more = facts(variables={**VARIABLES, "NSM_SOCKET": "/run/user/1000/nsm/control.sock"})
    given = {v.name: v.value for v in planning.plan(request(extra=names), with_more).variables}
    assert [given[name] for name in names] == [
        *("/run/nsm/bin:/run/nsm/tools", HOME, "/tmp", "/tmp", "/run/nsm/box/control.sock")
    ]


def test_another_path_to_home_leads_there() -> None:
    plan = planning.plan(request(), facts(home_link="/home/alias"))
    there = seen(plan, "/home/alias")
    assert (there.kind, there.source) == ("symlink", HOME)


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
