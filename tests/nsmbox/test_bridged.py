"""Boxes that may start programs of the host: exactly those, and by no way anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from box import plans
from box.attack import IN_BOX
from box.bridge import ON, TOOLS, asked, describe, furnish
from box.world import HOME, OTHER_PROJECT, PROJECT, World, open_world
from nsm.wire.host import ProgramRow, ProgramsReport
from nsmbox.host import bridge_programs
from nsmbox.model.plan import BoxError
from realjail import needs_bwrap
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]

FORGES = """\
import json, os, socket, struct, sys
sys.path.insert(0, "/run/nsm/lib")
import nsm
from nsm.wire.errors import NsmError

def tell(what, action):
    try:
        print(what, "->", json.dumps(action(), default=str))
    except NsmError as error:
        print(what, "refused:", error.code)

def connect(**more):
    return nsm.Client(autostart=False, reconnect=False, **more)

run = {"program": "wipe", "arguments": []}
for scope in ("cli", "mcp", "http", "box:/#0"):
    with connect(scope=scope) as client:
        tell(f"scope {scope}", lambda: client.call("bridge_run", run))
with connect(name="nsm") as client:
    for more in ({"granted": ["wipe"]}, {"programs": ["wipe"]}, {"again": True, "call_id": "0"},
                 {"writable": []}, {"scope": "cli"}):
        tell(f"with {[*more]}", lambda: client.call("bridge_run", run | more))
    for name in ("../tools/wipe", "wipe.md", "WIPE", "deploy\\0wipe", "", " wipe", "deploy,wipe"):
        tell(f"named {name!r}", lambda: client.call("bridge_run", run | {"program": name}))
    for name in (None, ["wipe"], {"name": "wipe"}, 1):
        tell(f"named {name!r}", lambda: client.call("bridge_run", run | {"program": name}))
    tell("help", lambda: client.call("bridge_help", {"program": "wipe"}))
    box = {"directory": os.getcwd(), "profile": "p", "digest": "0" * 64,
           "network": {"mode": "off", "allow": []}, "programs": ["wipe"]}
    tell("another box", lambda: client.call("box_open", box))
    tell("boxes", lambda: client.call("boxes"))
    tell("reload", lambda: client.call("config_reload"))
    for arguments in (["a;id"], ["$(id)"], ["-x"], ["a\\nb"], "a", [["a"]], ["a"] * 1001):
        told = {"program": "deploy", "arguments": arguments}
        tell(f"arguments {str(arguments)[:20]}", lambda: client.call("bridge_run", told))
    tell("programs", lambda: [p["name"] for p in client.call("bridge_programs")["programs"]])
"""


@pytest.fixture(scope="module")
def served(box_tools: Path) -> Generator[tuple[World, Supervisor]]:
    with open_world(box_tools) as world:
        furnish(world)
        with world.supervisor(ON) as supervisor:
            yield world, supervisor


def execute(program: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    given = {"program": program, "args": list(arguments)}
    return "tools/call", {"name": "execute", "arguments": given}


def text_of(result: dict[str, Any]) -> str:
    return "".join(part["text"] for part in result["content"])


def test_an_agent_has_exactly_the_programs_that_its_box_was_given(
    served: tuple[World, Supervisor],
) -> None:
    world, _ = served
    tools, listed, done, other = asked(
        world,
        ("tools/list", {}),
        ("tools/call", {"name": "list_programs", "arguments": {}}),
        execute("deploy", "staging"),
        execute("wipe"),
        start=("nsm", "box", "--yes", "--bridge", "deploy,restart-db", "--", "env"),
    )
    assert {tool["name"] for tool in tools["tools"]} >= {"run", "list_programs", "help", "execute"}
    assert "deploy" in text_of(listed)
    assert "restart-db" in text_of(listed)
    assert "wipe" not in text_of(listed)
    assert f"{HOME}/bin" not in json.dumps([tools, listed, done, other])
    assert text_of(done).rstrip() == "deploying staging as SECRET of ada: ssh key"
    assert not done.get("isError")
    assert other["isError"]
    assert text_of(other).startswith("Program 'wipe' not found. Available: deploy, restart-db")
    assert "staging" in world.host(f"{HOME}/deployed").read_text()
    assert not world.host(f"{HOME}/wiped").exists()


def test_without_programs_there_is_no_bridge_in_a_box(served: tuple[World, Supervisor]) -> None:
    world, _ = served
    tools, called = asked(
        world,
        ("tools/list", {}),
        execute("deploy", "x"),
        start=("nsm", "box", "--yes", "--bridge", "", "--", "env"),
    )
    assert [tool["name"] for tool in tools["tools"]] == ["run"]
    assert "deploy" not in json.dumps(tools)
    assert "deploying" not in json.dumps(called)
    done = world.box("sh", "-c", "nsm bridge ls; nsm bridge run deploy x; echo $?")
    assert done.stdout.splitlines()[-1] != "0"
    assert "deploying" not in done.stdout


def test_nothing_else_is_started_whatever_is_said_to_the_socket(
    served: tuple[World, Supervisor],
) -> None:
    world, supervisor = served
    before = world.host(f"{HOME}/deployed")
    known = before.read_text() if before.exists() else ""
    done = world.box("env", IN_BOX, "-I", "-c", FORGES, options=("--bridge", "deploy"))
    lines = done.stdout.splitlines()
    assert lines[-1] == 'programs -> ["deploy"]', done.stdout + done.stderr
    assert len(lines) == 32
    assert [line for line in lines[:-1] if " refused: " not in line] == []
    assert not world.host(f"{HOME}/wiped").exists()
    assert (before.read_text() if before.exists() else "") == known
    assert supervisor.process.poll() is None


def test_code_in_a_session_of_a_box_reaches_no_program(served: tuple[World, Supervisor]) -> None:
    world, _ = served
    code = """\
import os, socket
print(os.path.exists("/run/nsm/box"), [name for name in os.environ if "NSM" in name])
with open("/proc/net/unix") as table:
    print(len(table.readlines()) - 1)
"""
    done = world.box("nsm", "run", "-e", "python", code, options=("--bridge", "deploy"))
    assert done.stdout.splitlines()[:1] == ["False []"], done.stdout + done.stderr
    assert int(done.stdout.splitlines()[1]) <= 4


def test_programs_that_a_box_can_write_are_not_started_for_it(
    served: tuple[World, Supervisor],
) -> None:
    world, _ = served
    evil = "#!/bin/sh\ntouch ~/evil\n"
    world.write(f"{PROJECT}/bin/evil", evil, 0o755)
    world.write(f"{PROJECT}/bin/interpreter", "#!/bin/sh\ntouch ~/evil\n", 0o755)
    world.write(f"{HOME}/bin/interpreted", f"#!{PROJECT}/bin/interpreter\n", 0o755)
    world.link(f"{HOME}/bin/linked", f"{PROJECT}/bin/evil")
    world.link(f"{HOME}/bin/through", f"{PROJECT}/bin")
    describe(world, "in-project", f"{PROJECT}/bin/evil")
    describe(world, "linked", "~/bin/linked")
    describe(world, "through", "~/bin/through/evil")
    describe(world, "interpreted", "~/bin/interpreted")
    describe(world, "kept", f"{HOME}/.claudebox/evil")
    world.write(f"{HOME}/.claudebox/evil", evil, 0o755)
    # Described where the box writes, and found by a link.
    world.write(f"{PROJECT}/described.md", world.host(f"{TOOLS}/wipe.md").read_text())
    world.host(f"{TOOLS}/wipe.md").unlink()
    world.link(f"{TOOLS}/wipe.md", f"{PROJECT}/described.md")
    names = ["in-project", "linked", "through", "interpreted", "kept", "wipe"]
    started = " ".join(names)
    script = f"for name in {started}; do nsm bridge run $name; echo $name $?; done"
    options = ("--profile", "claude", "--bridge", ",".join(names))
    done = world.box("run", "sh", "-c", script, options=options)
    assert done.stdout.splitlines() == [f"{name} 125" for name in names], done.stderr
    assert done.stderr.count("lies where the client that asks can write") == len(names)
    assert not world.host(f"{HOME}/evil").exists()
    assert not world.host(f"{HOME}/wiped").exists()
    # The same, for a box that is elsewhere.
    away = world.box(
        "nsm",
        "bridge",
        "run",
        "in-project",
        options=("--bridge", "in-project"),
        directory=OTHER_PROJECT,
    )
    assert (away.returncode, world.host(f"{HOME}/evil").exists()) == (0, True), away.stderr
    world.host(f"{HOME}/evil").unlink()
    for name in names[:-1]:
        world.host(f"{TOOLS}/{name}.md").unlink()
    world.host(f"{TOOLS}/wipe.md").unlink()
    describe(world, "wipe", "~/bin/wipe")


def test_the_definitions_are_not_there_in_a_box_and_none_can_be_made(
    served: tuple[World, Supervisor],
) -> None:
    world, _ = served
    script = f"""\
ls -A {TOOLS} 2>&1
mkdir -p {TOOLS}
printf -- '---\\nname: mine\\ndescription: d\\ncommand: /bin/sh\\n---\\n' >{TOOLS}/mine.md
ls {TOOLS}
nsm bridge run mine -c id; echo $?
"""
    options = ("--bridge", "deploy")
    done = world.box("sh", "-c", script, options=options)
    assert "No such file" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["mine.md", "125"]  # in memory of its own
    assert not world.host(f"{TOOLS}/mine.md").exists()
    # Started right above them, they are hidden, and stay where they are.
    script = """\
ls -A nsm/tools; echo x >nsm/tools/mine.md; mv nsm away; mv nsm/tools away; ls
"""
    above = world.box("sh", "-c", script, options=options, directory=f"{HOME}/.config")
    assert "deploy" not in above.stdout
    assert "away" not in above.stdout
    assert not world.host(f"{TOOLS}/mine.md").exists()
    assert world.host(f"{TOOLS}/deploy.md").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a,deploy,b,c", "programs 'a', 'b', 'c' not found. Available: deploy, restart-db, wipe"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("deplyo", "program 'deplyo' not found. Available: deploy, restart-db, wipe"),
                ("deploy,broken", "the definition of program 'broken' has a mistake: "),
            )
        ),
    ],
)
def test_missing_programs_are_named_at_launch(
    served: tuple[World, Supervisor], given: str, words: str
) -> None:
    world, _ = served
    world.write(f"{TOOLS}/broken.md", "---\nname: broken\ndescription: x\ncommand: relative\n---\n")
    done = world.box("echo", "started", options=("--bridge", given))
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    world.host(f"{TOOLS}/broken.md").unlink()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bridge", "deploy"), "may start programs of the host"),
        (("--network", "example.org"), "has a network that is a list"),
        (("--network", "example.org", "--secret", "github"), "has secrets"),
    ],
)
def test_a_box_that_needs_a_supervisor_does_not_begin_without(
    shared_world: World, options: tuple[str, ...], words: str
) -> None:
    done = shared_world.box("echo", "started", options=options)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_a_list_and_a_check_tell_what_a_box_may_start(served: tuple[World, Supervisor]) -> None:
    world, _ = served
    with world.popen("nsm", "box", "--yes", "--bridge", "restart-db,deploy", "--", "cat") as box:
        box.stdin.write(b"up\n")  # type: ignore[union-attr]
        box.stdin.flush()  # type: ignore[union-attr]
        assert box.stdout is not None
        assert box.stdout.readline() == b"up\n"
        listed = world.run("nsm", "box", "--list")
        rows = json.loads(world.run("nsm", "box", "--list", "--json").stdout)
        box.communicate()
    assert " deploy,restart-db " in listed.stdout
    assert [row["programs"] for row in rows] == [["deploy", "restart-db"]]
    checked = world.run("nsm", "box", "--check", "--bridge", "deploy")
    assert "of the host: deploy" in checked.stdout
    checked = world.run("nsm", "box", "--check", "--bridge", "deplyo")
    assert checked.returncode == 1
    assert "program 'deplyo' not found. Available: deploy, restart-db, wipe" in checked.stdout


@pytest.mark.slow
def test_a_person_is_asked_again_for_a_program_more(world: World) -> None:
    furnish(world)

    def start(bridge: str) -> Terminal:
        options = ("--bridge", bridge) if bridge else ()
        command = world.command("nsm", "box", *options, "--", "echo", "it runs")
        return Terminal(command, world.variables)

    with world.supervisor(ON):
        with start("") as terminal:
            terminal.see("Start it?")
            assert "can start" not in terminal.text
            terminal.type("y\r")
            assert terminal.end() == 0
        with start("deploy") as terminal:
            terminal.see("+ can start deploy, outside of the box", "Start it?")
            assert "can start   on this computer, outside of the box:  deploy" in terminal.text
            terminal.type("y\r")
            assert terminal.end() == 0
        with start("") as terminal:  # fewer
            assert terminal.end() == 0
            assert "Start it?" not in terminal.text
        with start("deploy,wipee") as terminal:  # nobody is asked to agree to what is not there
            assert terminal.end() == 1
            assert "Start it?" not in terminal.text
            assert "'wipee' not found" in terminal.text


DEPLOY = ProgramRow(
    name="deploy",
    description="Deploys.",
    timeout_s=300.0,
    max_args=None,
    allow_options=False,
    command="/usr/local/bin/deploy",
    cwd=None,
    env=(),
    source=f"{plans.HOME}/.config/nsm/tools/deploy.md",
)


def test_a_bridge_that_is_off_is_said() -> None:
    with pytest.raises(BoxError, match="the bridge is off") as refused:
        bridge_programs.check(("deploy",), ProgramsReport(False, (), ()))
    assert "enabled = true" in refused.value.hint


def test_programs_that_a_box_can_write_are_told(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(f"{plans.PROJECT}/deploy.sh")
    given = replace(plans.plan(), programs=("deploy", "make", "linked", "away"))
    rows = [
        DEPLOY._replace(command=f"{plans.PROJECT}/bin/deploy"),
        DEPLOY._replace(name="make", command="/usr/bin/make", cwd=f"{plans.PROJECT}/sub"),
        DEPLOY._replace(name="linked", command=str(link)),
        DEPLOY._replace(name="away", command=f"{plans.PROJECT}-other/deploy", cwd=plans.HOME),
        DEPLOY._replace(name="not-granted", command=f"{plans.PROJECT}/x"),
    ]
    lies = f"it lies in {plans.PROJECT}, where the box could have written it."
    assert list(bridge_programs.notes(given, rows)) == [
        f"deploy is not started for this box: {lies}",
        f"make works in {plans.PROJECT}/sub: what it reads there, the box may have written.",
        f"linked is not started for this box: {lies}",
    ]


def test_without_a_supervisor_they_are_not_looked_for() -> None:
    found = bridge_programs.row(("deploy",), running=False, client="nsm box")
    assert found.status == "warn"
    assert "deploy: not looked for" in found.detail


def test_a_mac_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert bridge_programs.row(("deploy",), running=True, client="nsm box").status == "fail"
    with pytest.raises(BoxError, match="for Linux alone"):
        bridge_programs.look(replace(plans.plan(), programs=("deploy",)), client="nsm box")
