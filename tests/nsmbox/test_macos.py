"""Boxes on macOS: Seatbelt profiles, their text, and what an evaluator of them here allows.

There is no Mac here: what Seatbelt itself makes of a profile is not tested.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box import world as world_places
from box.plans import HOME, PROJECT, plan
from nsmbox.model.plan import BoxError, Mount, MountKind, Network, Plan, Variable
from nsmbox.start import macos

if TYPE_CHECKING:
    from box.world import World


GOLDEN = Path(__file__).parent / "golden" / "seatbelt.sb"
OWN = "/private/tmp/nsm-box"

Form = list["Form | str"]

TOKEN = re.compile(r'\s+|;[^\n]*|(#?"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+)')


def parsed(text: str) -> Form:
    """S-expressions; strings keep their quotes."""
    stack: list[Form] = [[]]
    end = 0
    for found in TOKEN.finditer(text):
        assert found.start() == end, text[end : found.start()]
        end = found.end()
        match found[1]:
            case None:
                continue
            case "(":
                stack.append([])
            case ")":
                form = stack.pop()
                stack[-1].append(form)
            case atom:
                stack[-1].append(atom)
    assert end == len(text)
    assert len(stack) == 1
    return stack[0]


def unquoted(atom: Form | str) -> str:
    assert isinstance(atom, str)
    text = atom.lstrip("#")[1:-1]
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def matches(condition: Form | str, subject: str) -> bool:
    assert isinstance(condition, list)
    kind, *rest = condition
    match kind:
        case "literal" | "global-name":
            return subject == unquoted(rest[0])
        case "subpath":
            above = unquoted(rest[0])
            return subject == above or subject.startswith(f"{above}/")
        case "sysctl-name-prefix":
            return subject.startswith(unquoted(rest[0]))
        case "regex":
            return re.search(unquoted(rest[0]), subject) is not None
        case "require-all":
            return all(matches(each, subject) for each in rest)
        case "extension" | "target":
            return False
        case "local" | "remote":
            return subject == rest[0]
        case _:
            raise AssertionError(condition)


def allows(profile: str, operation: str, subject: str) -> bool:
    """Return whether the last matching rule allows it."""
    decision = False
    for form in parsed(profile):
        assert isinstance(form, list)
        kind, *rest = form
        if kind == "version":
            continue
        assert kind in {"allow", "deny"}, form
        operations = [each for each in rest if isinstance(each, str)]
        conditions = [each for each in rest if not isinstance(each, str)]
        if operations != ["default"] and not any(
            fnmatchcase(operation, each) for each in operations
        ):
            continue
        if not conditions or any(matches(each, subject) for each in conditions):
            decision = kind == "allow"
    return decision


READ, WRITE, UNLINK = "file-read-data", "file-write-data", "file-write-unlink"


def example() -> Plan:
    """Plan with protected and hidden files in the project."""
    return plan(
        mounts=(
            Mount(kind="bind", target=f"{PROJECT}/.git", source=f"{PROJECT}/.git"),
            Mount(kind="ro-bind", target=f"{PROJECT}/.git/hooks", source=f"{PROJECT}/.git/hooks"),
            Mount(kind="mask", target=f"{PROJECT}/deploy/keys"),
            Mount(kind="dir", target="/run/nsm"),
            Mount(kind="dir", target="/run/nsm/bin"),
            Mount(kind="symlink", target="/run/nsm/bin/node", source=f"{HOME}/.nvm/v20/bin/node"),
            Mount(kind="ro-bind", target="/run/nsm/lib/nsmbox", source="/opt/nsm/lib/nsmbox"),
        ),
        variables=[("CLAUDE_CONFIG_DIR", f"{HOME}/.claude")],
    )


@pytest.fixture
def profile() -> str:
    return macos.start_of(example(), OWN, terminals=("/dev/ttys003",)).profile


def test_golden(profile: str) -> None:
    assert profile == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("operation", "subject"),
    [
        (READ, f"{PROJECT}/main.py"),
        (WRITE, f"{PROJECT}/main.py"),
        (WRITE, f"{PROJECT}/.git/index"),
        (READ, f"{PROJECT}/.git/hooks/pre-commit"),
        (READ, f"{HOME}/.claudebox/.claude.json"),
        (WRITE, f"{HOME}/.claudebox/.claude.json"),
        (READ, f"{HOME}/.nvm/v20/bin/node"),
        (WRITE, f"{OWN}/tmp/x"),
        (READ, "/usr/lib/libSystem.dylib"),
        (WRITE, "/dev/ttys003"),
        ("file-read-metadata", "/home/mia"),
        ("network-outbound", "ip"),
        ("process-exec", f"{PROJECT}/run"),
    ],
)
def test_the_plans_places_are_allowed(profile: str, operation: str, subject: str) -> None:
    assert allows(profile, operation, subject)


@pytest.mark.parametrize(
    ("operation", "subject"),
    [
        (READ, f"{HOME}/.ssh/id_ed25519"),
        (READ, f"{HOME}/.claude/.credentials.json"),
        (READ, f"{HOME}/work/other/main.py"),
        (READ, f"{HOME}/Library/Keychains/login.keychain-db"),
        (READ, "/Library/Keychains/System.keychain"),
        (READ, f"{PROJECT}/deploy/keys/id"),
        (WRITE, f"{PROJECT}/deploy/keys/id"),
        (WRITE, f"{PROJECT}/.git/hooks/pre-commit"),
        (UNLINK, f"{PROJECT}/.git"),
        (UNLINK, f"{PROJECT}/deploy"),
        (WRITE, f"{HOME}/.zshrc"),
        (WRITE, f"{HOME}/.nvm/v20/bin/node"),
        (WRITE, "/usr/local/bin/x"),
        (WRITE, "/private/tmp/other"),
        (READ, "/usr/bin/ssh"),
        ("process-exec", "/usr/bin/sudo"),
        (READ, "/dev/ttys001"),
        ("network-outbound", "/private/var/run/docker.sock"),
        ("mach-lookup", "com.apple.SecurityServer"),
        ("mach-lookup", "com.apple.pasteboard.1"),
        ("sysctl-read", "kern.procargs2"),
    ],
)
def test_all_else_is_refused(profile: str, operation: str, subject: str) -> None:
    assert not allows(profile, operation, subject)


def test_absent_files_cannot_be_made() -> None:
    kinds: dict[str, MountKind] = {
        ".claude": "ro-bind",
        ".mcp.json": "ro-file",
        ".opencode": "tmpfs",
    }
    stand_ins = tuple(
        Mount(kind=kind, target=f"{PROJECT}/{name}", stand_in=True, linkless=True, made=True)
        for name, kind in kinds.items()
    )
    plan = example()
    text = macos.start_of(replace(plan, mounts=(*plan.mounts, *stand_ins)), "/own").profile
    for path in (".claude", ".claude/settings.json", ".mcp.json", ".opencode/opencode.json"):
        assert not allows(text, "file-write-create", f"{PROJECT}/{path}"), path
    assert allows(text, "file-write-create", f"{PROJECT}/new")


def test_without_network() -> None:
    profile = macos.start_of(plan(network=Network(mode="none")), OWN).profile
    assert not allows(profile, "network-outbound", "ip")
    assert not allows(profile, "network-bind", "ip")
    assert not allows(profile, "network-outbound", "/private/var/run/mDNSResponder")


def test_a_list_of_hosts_is_refused() -> None:
    with pytest.raises(BoxError, match="supervisor") as refused:
        macos.start_of(plan(network=Network(mode="allow", allow=("a.example",))), OWN)
    assert refused.value.exit_code == 2


def test_variables_name_what_is_elsewhere() -> None:
    start = macos.start_of(example(), OWN)
    variables = dict(start.variables)
    assert variables["HOME"] == f"{OWN}{HOME}"
    assert variables["TMPDIR"] == f"{OWN}/tmp"
    assert variables["CLAUDE_CONFIG_DIR"] == f"{HOME}/.claudebox"
    assert variables["PATH"] == f"{OWN}/run/nsm/bin:/usr/local/bin:/usr/bin:/bin"
    assert variables["EDITOR"] == "vim"
    links = dict(start.links)
    assert links[f"{OWN}{HOME}/.claude"] == f"{HOME}/.claudebox"
    assert links[f"{OWN}{PROJECT}"] == PROJECT
    assert f"{OWN}{PROJECT}/.git" not in links
    assert links[f"{OWN}/run/nsm/bin/node"] == f"{HOME}/.nvm/v20/bin/node"
    assert start.files == ((f"{OWN}{HOME}/.gitconfig", b"[user]\n", 0o755),)


def test_nsms_own_words_of_the_command_lead_elsewhere() -> None:
    command = (
        "/run/nsm/lib/nsmbox/start/inside.py",
        "--",
        "/run/nsm/bin/node",
        f"{HOME}/.claude/x",
    )
    start = macos.start_of(replace(example(), command=command), OWN)
    assert start.command == (
        "/opt/nsm/lib/nsmbox/start/inside.py",
        "--",
        f"{OWN}/run/nsm/bin/node",
        f"{HOME}/.claude/x",
    )


def test_odd_names() -> None:
    directory = '/home/mia/a "b"\\c\nd (e)'
    profile = macos.start_of(plan(directory), OWN).profile
    assert allows(profile, WRITE, f"{directory}/x")
    assert not allows(profile, WRITE, f"{HOME}/a")


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(BoxError, match="UTF-8"):
        macos.start_of(plan("/home/mia/\udcff"), OWN)


def test_files_and_links_are_made(tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    macos.make(macos.start_of(example(), own))
    assert stat.S_IMODE(Path(own).stat().st_mode) == 0o700
    assert Path(f"{own}{HOME}/.gitconfig").read_bytes() == b"[user]\n"
    assert os.readlink(f"{own}{HOME}/.claude") == f"{HOME}/.claudebox"
    with pytest.raises(BoxError, match="cannot be made: File exists"):
        macos.make(macos.start_of(example(), own))


def test_the_printed_command_has_no_secrets() -> None:
    secret = Variable(name="OTHER_KEY", value="not-told-1", secret=True)
    inherited = Variable(name="API_KEY", value="not-told-2", secret=True, inherited=True)
    given = example()
    text = macos.command(replace(given, variables=(*given.variables, secret, inherited)))
    assert "not-told" not in text
    assert 'API_KEY="$API_KEY"' in text


AS_ON_MACOS = """\
import sys

from nsmbox.cli.claudebox import main

sys.platform = "darwin"
sys.exit(main())
"""


def test_dry_run(world: World) -> None:
    """Facts and plan are the real ones; no supervisor is asked and nothing is made."""
    program = [sys.executable, "-c", AS_ON_MACOS, "--dry-run", "--version"]
    done = world.run(*program, variables={"OTHER_TOKEN": "not told"})
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "/usr/bin/sandbox-exec -p '(version 1)\n(deny default)" in text
    assert f'(allow file-write* (subpath "{world_places.PROJECT}"))' in text
    assert f"CLAUDE_CONFIG_DIR={world_places.HOME}/.claudebox" in text
    assert "bwrap" not in text
    assert "sk-ant-of-ada" not in text
    assert 'ANTHROPIC_API_KEY="$ANTHROPIC_API_KEY"' in text
    parsed = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_without_its_program_it_says_so(world: World) -> None:
    """The box's own files are made and removed: there is no `sandbox-exec` here."""
    temporary = world.make_directory(f"{world_places.HOME}/tmp")
    done = world.run(
        *(sys.executable, "-c", AS_ON_MACOS, "--yes", "--version"),
        variables={"TMPDIR": f"{world_places.HOME}/tmp"},
    )
    assert done.returncode == 1
    assert "/usr/bin/sandbox-exec cannot be executed: No such file or directory" in done.stderr
    assert list(temporary.iterdir()) == []
