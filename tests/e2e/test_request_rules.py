"""Rules for requests with real programs in a session, and what happens to them in the middle."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from certificates import TestAuthority
from e2e_support import Supervisor, supervisor, wait_gone
from secret_server import SecretServer, secret_server

if TYPE_CHECKING:
    from collections.abc import Generator

    import nsm

pytestmark = pytest.mark.jail

VALUE = "ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz"

CONFIG = """
[secrets.github]
from = "file: {directory}/token"
hosts = ["{host}"]
as = ["env: GITHUB_TOKEN"]

[environments.reads]
preset = "bash"
network = ["GET https://{host}/*", "*:*"]
secrets = ["github"]

[environments.no-secret]
preset = "bash"
network = ["GET https://{host}/plain", "*:*"]
"""

CURL = 'curl -sS -H "Authorization: $GITHUB_TOKEN"'

SLOW = f"""
mkfifo /tmp/pipe; {CURL} -N {{url}} >/tmp/pipe 2>/tmp/says & curl=$!
exec 3</tmp/pipe; head -n 1 <&3
"""
"""Begins a response of two lines, and prints the first one."""

ENDS = 'cat <&3; wait $curl; echo " $?"'


class RulesPlace(NamedTuple):
    """A client of a supervisor with rules for requests, and the server that they are for."""

    supervisor: Supervisor
    client: nsm.Client
    server: SecretServer

    def run(self, code: str, env: str = "reads") -> str:
        result = self.client.run(code, env=env, session=f"work-{env}", timeout_s=60)
        assert result.exit_code == 0, result.stdout + result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="module")
def world() -> Generator[RulesPlace]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield from _made(Path(path))


def _made(short_dir: Path) -> Generator[RulesPlace]:
    authority = TestAuthority(short_dir)
    (short_dir / "token").write_text(VALUE)
    (short_dir / "own").mkdir()
    variables = {"SSL_CERT_FILE": str(authority.bundle)}
    with secret_server(authority.certificate()) as server:
        config = CONFIG.format(directory=short_dir, host=server.host)
        with (
            supervisor(short_dir / "own", config=config, variables=variables) as it,
            it.client() as client,
        ):
            yield RulesPlace(it, client, server)


@pytest.fixture
def place(world: RulesPlace) -> Generator[RulesPlace]:
    """The world without sessions, and a server that has seen nothing yet."""
    world.server.seen.clear()
    world.server.go_on.clear()
    yield world
    world.client.kill_all()


PYTHON = """
import os, sys, urllib.error, urllib.request
url, more = sys.argv[1], {"Authorization": os.environ.get("GITHUB_TOKEN", "none")}
for data in (None, b"x"):
    try:
        request = urllib.request.Request(url, data, more)
        print(urllib.request.urlopen(request).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
try:
    import requests
except ImportError:
    try:
        from pip._vendor import requests
    except ImportError:
        sys.exit()
with requests.Session() as session:
    for method in ("GET", "POST", "GET"):
        answer = session.request(method, url, headers=more)
        print(answer.status_code, answer.text.strip())
"""

REFUSED = "403 nsm: nsm does not pass this request on: no rule for {} allows its method and path"


@pytest.mark.parametrize("env", ["reads", "no-secret"])
def test_programs_of_python_and_curl(place: RulesPlace, env: str) -> None:
    """A request that a rule allows gets its answer; another one is refused, and told why.

    `requests` is in pip, if nowhere else.
    """
    server = place.server
    stand_in = place.run("echo ${GITHUB_TOKEN:-none}", env)
    refused = REFUSED.format(server.host.partition(":")[0])
    out = place.run(
        f"cat >/tmp/ask.py <<'E'\n{PYTHON}\nE\npython3 /tmp/ask.py {server.url('plain')}", env
    )
    first, second, *more = out.splitlines()
    assert (first, second) == (stand_in, refused)
    assert more in ([], [f"200 {stand_in}", refused, f"200 {stand_in}"])
    curl = "curl -sS -w ' %{http_code}' -H \"Authorization: ${GITHUB_TOKEN:-none}\""
    assert place.run(f"{curl} {server.url('plain')}", env) == f"{stand_in} 200"
    assert place.run(f"{curl} -d x {server.url('plain')}", env).endswith(" 403")
    seen = [(method, headers["authorization"]) for method, _, headers, _ in server.seen]
    assert set(seen) == {("GET", VALUE if env == "reads" else "none")}


def test_a_server_that_trickles(place: RulesPlace) -> None:
    stand_in = place.run("echo $GITHUB_TOKEN")
    for form in ("trickle", "chunked"):
        assert place.run(f"{CURL} {place.server.url(form)}") == stand_in
    assert place.run(SLOW.format(url=place.server.url("slow"))) == stand_in
    place.server.go_on.set()
    assert place.run(ENDS) == f"{stand_in}\n 0"


def test_a_helper_that_is_killed_in_the_middle_of_a_response(place: RulesPlace) -> None:
    """The program sees the end, and the next helper keeps to the same rules."""
    plain = place.server.url("plain")
    stand_in = place.run(SLOW.format(url=place.server.url("slow")))
    os.kill(place.client.secrets.list().grants[0].helper_pid, signal.SIGKILL)
    assert int(place.run(ENDS)) in {18, 56}, place.run("cat /tmp/says")  # partial file, reset
    assert place.run(f"{CURL} {plain}") == stand_in
    assert "no rule for" in place.run(f"{CURL} -d x {plain}")


def test_a_secret_that_is_revoked_in_the_middle_of_a_response(place: RulesPlace) -> None:
    """The rest of it is searched for the value all the same."""
    stand_in = place.run(SLOW.format(url=place.server.url("slow")))
    place.client.secrets.revoke("github")
    place.server.go_on.set()
    assert place.run(ENDS) == f"{stand_in}\n 0"
    assert "was revoked" in place.run(f"{CURL} {place.server.url('plain')}")
    assert place.run(f"curl -sS {place.server.url('plain')}") == "none"


@pytest.mark.parametrize("env", ["reads", "no-secret"])
def test_a_session_keeps_its_rules_over_a_restart(place: RulesPlace, env: str) -> None:
    plain = place.server.url("plain")
    answer = place.run(f"{CURL} {plain}; kept=1", env)
    assert place.supervisor.run("nsm", "reload").returncode == 0
    assert place.run(f"echo $kept; {CURL} {plain}", env) == f"1\n{answer}"
    assert "no rule for" in place.run(f"{CURL} -d x {plain}", env)


def test_a_helper_that_cannot_start_again(place: RulesPlace) -> None:
    """The wider pattern leads nowhere: the host is out of reach until the helper can run."""
    plain = place.server.url("plain")
    stand_in = place.run(f"{CURL} {plain}")
    token = place.supervisor.directory.parent / "token"
    token.rename(f"{token}.gone")
    helper = place.client.secrets.list().grants[0].helper_pid
    pidfd = os.pidfd_open(helper)
    os.kill(helper, signal.SIGKILL)
    wait_gone([pidfd])
    seen = len(place.server.seen)
    assert place.run(f"{CURL} {plain} 2>/dev/null || echo no answer") == "no answer"
    assert len(place.server.seen) == seen
    token.with_name("token.gone").rename(token)
    assert place.run(f"{CURL} {plain}") == stand_in
