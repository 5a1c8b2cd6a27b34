"""Boxes with a supervisor: nsm inside, a list of hosts, and secrets that a box never sees."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from box.attack import IN_BOX
from box.bridge import asked
from box.world import HOME, PROJECT, World, open_world
from certificates import NAME, TestAuthority
from host_server import host_server
from processes import ending
from realjail import needs_bwrap
from secret_server import SecretServer, secret_server

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]

USES_NSM = """\
nsm run -e python -s mine 'kept = 6 * 7'
nsm run -e python -s mine 'print(kept)'
nsm run -e bash 'cat /project/README.md'
nsm ps
nsm kill theirs; echo "kill theirs: $?"
nsm shutdown; echo "shutdown: $?"
nsm run -e python -s theirs 'print(secret)'; echo "theirs: $?"
"""

FETCHES = """\
import sys, urllib.error, urllib.request, os
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=120).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.reason)
    except OSError as error:
        print("failed:", error)
"""

FETCHES_AS_TOLD = """\
import sys, urllib.request
for url in map(str.strip, sys.stdin):
    try:
        print(urllib.request.urlopen(url, timeout=50).read().decode(), flush=True)
    except OSError as error:
        print(error, flush=True)
"""

FETCHES_AT_ONCE = """\
import os, selectors, socket, sys, urllib.parse
url, proxy = sys.argv[1], urllib.parse.urlsplit(os.environ["http_proxy"])
answers, done = {}, 0
waiting = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((proxy.hostname, proxy.port))
    answers[client] = b""
    waiting.register(client, selectors.EVENT_WRITE)
while waiting.get_map():
    for key, _ in waiting.select():
        client = key.fileobj
        if key.events == selectors.EVENT_WRITE:
            client.send(f"GET {url} HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n".encode())
            waiting.modify(client, selectors.EVENT_READ)
        elif data := client.recv(4096):
            answers[client] += data
        else:
            waiting.unregister(client)
print(sum(answer.endswith(b"here is /x") for answer in answers.values()))
"""

DIRECTLY = """\
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
    print("connected")
except OSError as error:
    print("failed")
"""


@pytest.fixture(scope="module")
def served(box_tools: Path) -> Generator[tuple[World, Supervisor]]:
    with open_world(box_tools) as world, world.supervisor() as supervisor:
        yield world, supervisor


@pytest.fixture(scope="module")
def port() -> Generator[int]:
    """Port of a server on the host's loopback."""
    with host_server() as made:
        yield made


@pytest.mark.slow
def test_the_doctor_in_a_box_says_what_reaches_in_there(served: tuple[World, Supervisor]) -> None:
    world, _ = served
    done = world.box("nsm", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines if line[:1] != " " and line[:4] != "warn"] == [
        ["ok", name] for name in ("box", "programs", "supervisor", "code", "bridge", "network")
    ]
    assert any("code" in line and "runs in" in line and "python" in line for line in lines)
    script = """
    nsm doctor --json >with.json; NSM_SOCKET=/nowhere nsm doctor; echo "without: $?"
    cat with.json
    """
    done = world.box("sh", "-c", script, options=("--net", "a.example"))
    before, _, after = done.stdout.partition("without: 1\n")
    assert "fail  supervisor" in before
    assert "no supervisor" in before
    found = json.loads(after)
    assert found["ok"] is True
    network = next(check for check in found["checks"] if check["name"] == "network")
    assert "the hosts of a list" in network["detail"]


def test_code_in_a_box_runs_in_sessions_of_its_own(served: tuple[World, Supervisor]) -> None:
    world, supervisor = served
    assert os.stat(f"/proc/{supervisor.pid}").st_uid == world.uid
    theirs = world.run("nsm", "run", "-e", "python", "-s", "theirs", "secret = 'of the host'")
    assert theirs.returncode == 0, theirs.stderr
    done = world.run("claudebox", "--yes", "run", "sh", "-c", USES_NSM)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["42", "a project"], done.stdout + done.stderr
    listed = [line for line in lines if "python" in line]
    assert len(listed) == 1
    assert "mine" in listed[0]
    for word in ("kill theirs", "shutdown"):
        assert f"{word}: 0" not in lines
    assert "theirs: 1" in lines, done.stdout + done.stderr
    assert "of the host" not in done.stdout
    assert "NameError" in done.stderr
    # The host's session and its supervisor are as they were.
    again = world.run("nsm", "run", "-e", "python", "-s", "theirs", "print(secret)")
    assert again.stdout == "of the host\n", again.stderr
    assert supervisor.process.poll() is None


def test_the_agent_is_told_of_nsm_and_attaches(served: tuple[World, Supervisor]) -> None:
    world, _ = served
    own: dict[str, Any] = {"mcpServers": {"mine": {"command": "x", "args": []}}, "theme": "dark"}
    world.write(f"{HOME}/.claudebox/.claude.json", json.dumps(own))
    call = {"name": "run", "arguments": {"env": "python", "code": "print(6 * 7)"}}
    (answer,) = asked(world, ("tools/call", call), start=("claudebox", "--yes", "run"))
    assert "42" in json.dumps(answer)
    kept = json.loads(world.host(f"{HOME}/.claudebox/.claude.json").read_text())
    assert kept["theme"] == "dark"
    assert kept["mcpServers"]["mine"] == own["mcpServers"]["mine"]
    assert kept["mcpServers"]["nsm"]["command"] == "/run/nsm/bin/nsm-mcp"


def test_a_list_of_hosts_is_all_that_is_reached(
    served: tuple[World, Supervisor], port: int
) -> None:
    world, _ = served
    allowed = f"http://host.nsm.internal:{port}/allowed"
    start = ("nsm", "box", "--yes", "--net", f"host.nsm.internal:{port}", "--", "env", IN_BOX)
    done = world.run(
        *(*start, "-I", "-c", FETCHES, allowed, "http://other.test/", f"{allowed}?again")
    )
    assert done.stdout.splitlines() == [
        "here is /allowed",
        "403 Host not allowed (nsm)",
        "here is /allowed?again",
    ], done.stdout + done.stderr
    assert world.run(*start, "-I", "-c", DIRECTLY, str(port)).stdout == "failed\n"


@pytest.mark.slow
def test_five_hundred_connections_at_once_are_all_served(
    served: tuple[World, Supervisor], port: int
) -> None:
    world, _ = served
    net, url = f"host.nsm.internal:{port}", f"http://host.nsm.internal:{port}/x"
    command = ("env", IN_BOX, "-I", "-c", FETCHES_AT_ONCE, url, "500")
    done = world.box(*command, options=("--net", net))
    assert done.stdout == "500\n", done.stderr


def fetched(box: subprocess.Popen[bytes], url: str) -> str:
    """Ask a box with `FETCHES_AS_TOLD` for a URL, and return its answer."""
    assert box.stdin is not None
    assert box.stdout is not None
    box.stdin.write(f"{url}\n".encode())
    box.stdin.flush()
    return box.stdout.readline().decode().strip()


@pytest.mark.slow
def test_names_that_lead_to_private_addresses_are_not_reached(world: World, port: int) -> None:
    """Nor those that do so only when they are asked for again."""
    private = {"loop": "127.0.0.1", "other": "127.0.0.2", "six": "::1", "lan": "10.1.2.3"}
    private |= {"zero": "0.0.0.0", "cloud": "169.254.169.254"}
    names = world.directory / "hosts"
    names.write_text("".join(f"{address} {name}.test\n" for name, address in private.items()))
    names.chmod(0o644)
    world.show(names, "/etc/hosts")
    refused = "HTTP Error 403: Address not allowed (nsm)"
    command = ("--", "env", IN_BOX, "-I", "-c", FETCHES_AS_TOLD)
    with world.supervisor():
        with ending(world.popen("nsm", "box", "--yes", "--net", "*:*", *command)) as box:
            for name in private:
                assert fetched(box, f"http://{name}.test:{port}/x") == refused, name
            assert fetched(box, f"http://[::ffff:127.0.0.1]:{port}/x") == refused
            box.communicate()
        allowed = f"loop.test:*,127.0.0.1:{port}"
        with ending(world.popen("nsm", "box", "--yes", "--net", allowed, *command)) as box:
            assert fetched(box, f"http://loop.test:{port}/x") == "here is /x"
            for address in ("10.1.2.3", "127.0.0.2"):
                names.write_text(f"{address} loop.test\n")
                assert fetched(box, f"http://loop.test:{port}/x") == refused
            box.communicate()


def test_sessions_of_a_box_reach_no_more_than_it(
    served: tuple[World, Supervisor], port: int
) -> None:
    world, _ = served
    code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/x').read())"
    start = ("nsm", "box", "--yes", "--net", "off", "--")
    done = world.run(*start, "sh", "-c", 'nsm run -e python --network full "$0"; echo $?', code)
    assert "here is" not in done.stdout
    assert done.stdout.splitlines()[-1] != "0"


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
