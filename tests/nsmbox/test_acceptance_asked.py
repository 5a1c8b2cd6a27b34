"""Boxes: what a person is told and asked, profiles, and Nix."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from box.looking import look
from box.world import HOME, PROJECT, SECRET, SECRETS, World
from processes import ending
from realjail import needs_bwrap
from terminal import Terminal

pytestmark = [pytest.mark.jail, needs_bwrap]

STORE = Path("/nix/store")


@pytest.mark.slow
def test_a_check_says_what_is_missing(world: World) -> None:
    done = world.run("claudebox", "--check")
    text = done.stdout.lower()
    for word in ("bwrap", "user namespaces", "claude", "git", "dns", "certificates", "socket"):
        assert word in text, word
    world.host(f"{HOME}/.npm-global/bin/claude").unlink()
    missing = world.run("claudebox", "--check")
    assert missing.returncode == 1
    assert "npm install" in missing.stdout + missing.stderr


def test_a_person_is_asked_once(world: World) -> None:
    command = world.command("claudebox", "run", "echo", "it runs")
    with Terminal(command, world.variables) as terminal:
        terminal.see("~/.claudebox", "~/project", "ANTHROPIC_API_KEY", "Start it?")
        terminal.type("y\r")
        terminal.see("it runs")
        assert terminal.end() == 0
        assert "sk-ant-of-ada" not in terminal.text
    with Terminal(command, world.variables) as terminal:
        terminal.see("it runs")
        assert terminal.end() == 0
        assert "Start it?" not in terminal.text


def test_safe_shows_of_home_what_is_listed(world: World) -> None:
    world.write(f"{HOME}/.config/tool/settings", "of the tool\n")
    world.write(f"{HOME}/notes", "notes\n")
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nshow = ["~/.config/tool", "~/notes"]\n')
    listed = [f"{HOME}/.config/tool/settings", f"{HOME}/notes"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = look(
            world,
            *("nsm", "box", "--yes", "--profile", "safe", "--", "env"),
            texts=listed,
            kinds=[f"{HOME}/{path}" for path in SECRETS],
            writes=[f"{HOME}/.config/tool", PROJECT],
            ports=[server.getsockname()[1]],
        )
    assert told["texts"] == dict(zip(listed, ["of the tool\n", "notes\n"], strict=True))
    assert set(told["kinds"].values()) == {"ENOENT"}
    assert told["writes"] == {f"{HOME}/.config/tool": "EROFS", PROJECT: "written"}
    assert told["ports"] == ["connected"]
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nshow = ["~/.ssh"]\n')
    done = world.run(
        "nsm", "box", "--yes", "--profile", "safe", "--", "cat", f"{HOME}/.ssh/id_ed25519"
    )
    assert SECRET not in done.stdout


@pytest.mark.skipif(not STORE.is_dir(), reason="not here: there is no /nix/store")
def test_the_store_is_shown_read_only_and_live(world: World) -> None:
    store = world.directory / "store"
    (store / "one").mkdir(parents=True)
    world.show(store, "/nix/store")
    shown = (
        "touch /nix/store/x 2>/dev/null || echo read-only; ls /nix/store; read line; ls /nix/store"
    )
    with ending(world.popen("nsm", "box", "--yes", "--", "sh", "-c", shown, stderr=None)) as box:
        assert box.stdout is not None
        assert [box.stdout.readline(), box.stdout.readline()] == [b"read-only\n", b"one\n"]
        (store / "two").mkdir()
        assert box.communicate(b"\n")[0] == b"one\ntwo\n"
