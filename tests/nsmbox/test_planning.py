"""Facts become plans, and plans the arguments of bwrap: what is in them, and in which order.

`golden/` has a whole one for each kind of box, as `--dry-run` prints it. After a change that is
meant, `NSM_TEST_WRITE_GOLDEN=1 pytest tests/nsmbox/test_planning.py` writes new ones, for you to
read the difference.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from box.facts_made import HOME, KNOWN, OWN, PROJECT, REPOSITORY, VARIABLES, facts, request
from box.plans import plan
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


ODD = [
    "",
    "plain",
    'it\'s "so" $HOME `id` \\n !!',
    "two\nlines\tand \\ a 'quote'",
    "\x1b[2J\x07",
    "caf\u00e9 \u202e",
    os.fsdecode(b"\xff\xfe0\n1"),
    "--",
    "\x7fdel0",
]


@pytest.mark.parametrize("word", ODD)
def test_bash_reads_each_word_as_it_was(word: str) -> None:
    script = b"printf '%s.' " + os.fsencode(bwrap.quoted(word))
    assert not [c for c in os.fsdecode(script) if not c.isprintable()], "a terminal obeys nothing"
    told = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert told == os.fsencode(word) + b"."


def test_a_pasted_command_gives_bwrap_the_same_arguments() -> None:
    """In the place of bwrap, a program that tells its arguments and reads its descriptors."""
    made = plan(
        directory="/srv/a 'b'\n\udcffc",
        mounts=[Mount(kind="ro-file", target="/note", data=b"text\n\0 \xff")],
        variables=[("API_KEY", "hidden"), ("URL", "https://u:p@h/"), ("ODD", "x\n'y'")],
    )
    tells = "import os, sys; print(sys.argv, os.environ.get('API_KEY'))\n"
    tells += "for at, word in enumerate(sys.argv):\n"
    tells += "    if word == '--ro-bind-data': print(os.read(int(sys.argv[at + 1]), 99))\n"
    text = bwrap.command(made, "/nowhere/bwrap", syscalls=None)
    assert "hidden" not in text
    assert "p@h" not in text
    text = text.replace("/nowhere/bwrap", f"/usr/bin/env python3 -c {bwrap.quoted(tells)}", 1)
    done = subprocess.run(["bash", "-c", os.fsencode(text)], capture_output=True, check=True)
    told = done.stdout.decode()
    assert "--chdir', \"/srv/a 'b'\\n\\udcffc\"" in told
    assert "'--setenv', 'ODD', \"x\\n'y'\"" in told
    assert "b'text\\n\\x00 \\xff'" in told
    assert f"'--', {', '.join(map(repr, made.command))}]" in told
