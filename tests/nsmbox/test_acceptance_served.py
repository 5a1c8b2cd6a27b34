"""Boxes with a supervisor: nsm inside, and a list of hosts."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from box.attack import IN_BOX
from box.bridge import asked
from box.world import HOME, World, open_world
from processes import ending
from realjail import needs_bwrap

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


class Handler(BaseHTTPRequestHandler):
    """A server on the host."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"here is {self.path}".encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Generator[int]:
    """Port of a server on the host's loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_the_doctor_in_a_box_says_what_reaches_in_there(
    served: tuple[World, Supervisor],
) -> None:
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
