"""A box uses a secret that it never sees."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from box.world import HOME, PROJECT, World, open_world
from certificates import NAME, TestAuthority
from realjail import needs_bwrap
from secret_server import SecretServer, secret_server

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]

VALUE = "ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz"

SEARCHES = """\
import os, re, sys
parts = [part.encode() for part in sys.argv[1:]]
found, looked = [[], []], 0

def look(where, data):
    # The whole values are in no variable of this program.
    for places, first, second in zip(found, parts[::2], parts[1::2]):
        for match in re.finditer(re.escape(first), data):
            if data[match.end() : match.end() + len(second)] == second:
                places.append(where)

def files():
    for top in ("/tmp", "/run", "/home", "/dev/shm", "/var", "/etc"):
        for directory, _, names in os.walk(top):
            for name in names:
                path = os.path.join(directory, name)
                if os.path.isfile(path):
                    yield path
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        yield from (f"/proc/{pid}/{name}" for name in ("environ", "cmdline"))

for path in files():
    try:
        with open(path, "rb") as file:
            look(path, file.read())
        looked += 1
    except OSError:
        pass
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if line.split()[1][0] == "r" and "[v" not in line:
                    try:
                        memory.seek(begin)
                        look(f"memory of {pid}", memory.read(end - begin))
                        looked += 1
                    except (OSError, OverflowError):
                        pass
    except OSError:
        pass
print(looked > 100, *found)
"""
"""Searches files, environments and the memory of all processes for texts, each in two parts."""


@contextmanager
def secret_world(tools: Path) -> Generator[tuple[World, Supervisor, SecretServer]]:
    """A world with a secret, and a server that it is for."""
    with open_world(tools) as world:
        authority = TestAuthority(world.directory)
        world.write(f"{HOME}/authority.pem", authority.bundle.read_text())
        world.variables["SSL_CERT_FILE"] = f"{HOME}/authority.pem"
        world.write(f"{HOME}/.config/token", f"{VALUE}\n", 0o600)
        world.write(f"{PROJECT}/search.py", SEARCHES)
        with secret_server(authority.certificate()) as server:
            config = f"""
            [secrets.github]
            from = "command: cat {HOME}/.config/token"
            hosts = ["{server.host}"]
            as = ["env: GITHUB_TOKEN"]
            [secrets.other]
            from = "command: false"
            hosts = ["{NAME}:1"]
            as = ["env: OTHER"]
            """
            with world.supervisor(config) as supervisor:
                yield world, supervisor, server


def test_a_box_uses_a_secret_and_never_has_it(box_tools: Path) -> None:
    with secret_world(box_tools) as (world, _, server):
        network = ("--network", server.host)
        options = (*network, "--secret", "github")
        first, second = VALUE[:20], VALUE[20:]
        script = f"""
        set -e
        printf '%s\\n' "$GITHUB_TOKEN"
        curl -sS --fail -H "Authorization: Bearer $GITHUB_TOKEN" {server.url("plain")}; echo
        unset SSL_CERT_FILE CURL_CA_BUNDLE
        curl -sS --fail -u "me:$GITHUB_TOKEN" {server.url("base64")}; echo
        A=canary-in B=environment
        CANARY=$A$B python3 search.py {first} {second} $A $B
        cat /run/nsm/policy.json
        """
        done = world.box("bash", "-c", script, options=options)
        assert done.returncode == 0, done.stdout + done.stderr
        stand_in, plain, encoded, searched, *policy = done.stdout.splitlines()
        assert stand_in != VALUE
        assert (stand_in[:4], len(stand_in)) == ("ghp_", len(VALUE))
        assert plain == f"Bearer {stand_in}"
        assert server.seen[0][2]["authorization"] == f"Bearer {VALUE}"
        assert server.seen[1][2]["authorization"].startswith("Basic ")
        assert encoded
        assert searched.startswith("True [] ['/proc/"), "the search finds what there is"
        assert json.loads("\n".join(policy))["secrets"] == ["github"]
        # The next box has another stand-in, and that of the first is worth nothing.
        script = f'curl -sS -H "Authorization: Bearer {stand_in}" {server.url("plain")}'
        again = world.box("bash", "-c", script, options=options)
        assert again.stdout == f"Bearer {stand_in}"
        assert server.last() == f"Bearer {stand_in}"
        told = audited(world)
        assert VALUE not in told
        used = [row for row in map(json.loads, told.splitlines()) if row["event"] == "secret_used"]
        assert [(row["secrets"], row["method"], row["path"]) for row in used] == [
            (["github"], "GET", "/plain"),
            (["github"], "GET", "/base64"),
        ]


def audited(world: World) -> str:
    """The lines of the audit log. Ends the supervisor, which writes the last of them then."""
    assert world.run("nsm", "shutdown").returncode == 0
    return world.run("nsm", "audit", "--json").stdout


@pytest.mark.slow
def test_a_box_with_rules_for_requests(box_tools: Path) -> None:
    with secret_world(box_tools) as (world, _, server):
        script = f"""
        curl -sS -o /dev/null -w '%{{http_code}} ' {server.url("plain")}
        curl -sS -o /dev/null -w '%{{http_code}}\n' {server.url("other")}
        """
        rule = f"GET https://{server.host}/plain"
        done = world.box("bash", "-c", script, options=("--network", rule))
        assert (done.returncode, done.stdout) == (0, "200 403\n"), done.stderr
        assert [path for _, path, _, _ in server.seen] == ["/plain"]
        told = audited(world)
        rows = [row for row in map(json.loads, told.splitlines()) if row["event"][:6] == "secret"]
        assert [(row["verdict"], row["path"]) for row in rows] == [("rule", "/other")]


@pytest.mark.slow
def test_a_box_with_secrets_needs_their_hosts(box_tools: Path) -> None:
    with secret_world(box_tools) as (world, _, server):
        for options, expected in (
            (("--secret", "github"), "secrets need a list of allowed hosts"),
            (("--network", server.host, "--secret", "none"), "no secret 'none'"),
            (("--network", "example.org", "--secret", "github"), "none of these may be reached"),
            (("--network", f"{NAME}:1", "--secret", "other"), "secret other: false failed"),
        ):
            done = world.box("true", options=options)
            assert done.returncode != 0
            assert expected in done.stderr, done.stderr
