"""Secrets that sessions use and never have, and rules for requests, with real programs."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from certificates import TestAuthority
from e2e_support import Supervisor, supervisor, wait_gone
from nsm.wire.errors import NsmError
from secret_server import SecretServer, secret_server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import nsm

    Reads = Callable[[str], str]

pytestmark = pytest.mark.jail

VALUE = "ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz"

CONFIG = """
[secrets.github]
from = "file: {directory}/token"
hosts = ["{host}"]
as = ["env: GITHUB_TOKEN"]

[secrets.header]
from = "command: cat {directory}/token"
hosts = ["{host}"]
as = ["header: Authorization: Bearer"]

[secrets.broken]
from = "command: false"
hosts = ["{host}"]
as = ["env: BROKEN"]

[environments.reads]
preset = "bash"
network = ["GET https://{host}/*", "*:*"]
secrets = ["github"]

[environments.no-secret]
preset = "bash"
network = ["GET https://{host}/plain", "*:*"]
"""


class Place(NamedTuple):
    """A supervisor with secrets, a client of it, and the server that they are for."""

    supervisor: Supervisor
    variables: dict[str, str]
    client: nsm.Client
    server: SecretServer
    directory: Path

    def run(self, code: str, *secrets: str, env: str = "bash") -> str:
        """Run code in the session `work` of that environment; return what it prints.

        Args:
            secrets: for a new session, which may reach the server.
        """
        new: dict[str, Any] = {"network": self.server.host, "secrets": secrets} if secrets else {}
        result = self.client.run(code, env=env, session=f"work-{env}", **new)
        assert result.exit_code == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def helper(self) -> int:
        return self.client.secrets.list().grants[0].helper_pid


@contextmanager
def secret_place(*, days: float = 1) -> Generator[Place]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as name:
        directory = Path(name)
        authority = TestAuthority(directory)
        (directory / "token").write_text(f"{VALUE}\n")
        (directory / "git").mkdir()
        own = directory / "own"
        own.mkdir()
        variables = {"SSL_CERT_FILE": str(authority.bundle)}
        certificate = authority.certificate(days=days)
        with secret_server(certificate, repositories=directory / "git") as server:
            config = CONFIG.format(directory=directory, host=server.host)
            with supervisor(own, config=config, variables=variables) as it, it.client() as client:
                yield Place(it, variables, client, server, directory)


@pytest.fixture(scope="module")
def world() -> Generator[Place]:
    with secret_place() as made:
        yield made


@pytest.fixture
def place(world: Place) -> Generator[Place]:
    """The world without sessions, and a server that has seen nothing yet."""
    world.server.seen.clear()
    world.server.go_on.clear()
    yield world
    world.client.kill_all()


CURL = 'curl -sS -H "Authorization: $GITHUB_TOKEN"'

SLOW = f"""
mkfifo /tmp/pipe; {CURL} -N {{url}} >/tmp/pipe 2>/tmp/says & curl=$!
exec 3</tmp/pipe; head -n 1 <&3
"""
"""Begins a response of two lines, and prints the first one."""

ENDS = 'cat <&3; wait $curl; echo " $?"'


def kill(pid: int) -> None:
    """Kill a helper; a connection that it gets in its last moment ends with it."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    wait_gone([pidfd])


def has_in_memory(pid: int, text: bytes) -> bool:
    """Return whether a process has a text in its memory."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1][0] != "r" or "[v" in line:
                continue
            try:
                memory.seek(begin)
                if text in memory.read(end - begin):
                    return True
            except (OSError, OverflowError):
                continue
    return False


@pytest.mark.parametrize("way", ["", "--noproxy '*'"], ids=["proxy", "name"])
def test_a_session_uses_a_secret_and_never_has_it(place: Place, way: str) -> None:
    stand_in = place.run("echo $GITHUB_TOKEN", "github")
    forms = "plain gzip base64 escaped url chunked header".split()
    urls = " ".join(map(place.server.url, forms))
    out = place.run(f'curl -sSi {way} -H "Authorization: Bearer $GITHUB_TOKEN" {urls}')
    requests = place.server.seen
    assert [path for _, path, _, _ in requests] == [f"/{form}" for form in forms]
    assert {headers["authorization"] for _, _, headers, _ in requests} == {f"Bearer {VALUE}"}
    shown = f"Bearer {stand_in}"
    assert out.count(shown) == 4
    assert base64.b64encode(f"so: {shown}".encode()).decode() in out
    assert "".join(f"\\u{ord(c):04x}" for c in shown) in out
    assert "".join(f"%{ord(c):02X}" for c in shown) in out
    refused = place.run(f'curl -sS {way} -u "me:$GITHUB_TOKEN" {place.server.url("br")}')
    assert "cannot search" in refused
    # The record of all of this, too.
    told = place.supervisor.run("nsm", "audit", "--json").stdout
    told += place.supervisor.run("nsm", "logs", "-n", "9", "work-bash").stdout
    told += place.supervisor.log.read_text()
    assert VALUE not in told
    (grant,) = place.client.secrets.list().grants
    assert grant.uses == len(forms) + 1
    helper = grant.helper_pid
    others = {place.supervisor.pid, *place.supervisor.descendants()} - {helper}
    assert not [pid for pid in others if pid and _has(pid, VALUE.encode())]
    if os.getuid() == 0:  # nobody else may look
        assert has_in_memory(helper, VALUE.encode())


def _has(pid: int, text: bytes) -> bool:
    try:
        return has_in_memory(pid, text)
    except OSError:  # it has ended, or is not ours to look at
        return False


def test_requests_that_would_leak_a_secret_are_refused(place: Place) -> None:
    url, host = place.server.url("x"), place.server.host
    out = place.run(
        f"""
        curl -sS "{url}?token=$GITHUB_TOKEN"
        curl -sS -H "X: $GITHUB_TOKEN" http://{host}/
        curl -sS --noproxy '*' -H "X: $GITHUB_TOKEN" http://{host}/ || echo "no plain one"
        curl -sS -H "Host: other.example" {url}
        curl -sS --resolve other.example:{place.server.port}:127.0.0.1 \
            --connect-to other.example:{place.server.port}:{host} \
            https://other.example:{place.server.port}/ 2>&1 || echo "no connection"
        """,
        "github",
    )
    assert "is in the URL" in out
    assert "with https:// only. Send it with https:// to a host of the secret" in out
    assert f"its host is not {host.partition(':')[0]}" in out
    assert "no connection" in out
    assert "no plain one" in out
    assert place.server.seen == []


@pytest.mark.parametrize(
    ("network", "secrets", "expected"),
    [
        ("off", ["github"], "need a list of allowed hosts"),
        ("full", ["github"], "need a list of allowed hosts"),
        ("example.org", ["github"], "none of these may be reached"),
        ("{}", ["nothing"], "no secret 'nothing'"),
        ("{}", ["broken"], "secret broken: false failed"),
        ("{}", ["github", "../x"], "names of secrets"),
    ],
)
def test_secrets_that_cannot_be_granted(
    place: Place, network: str, secrets: list[str], expected: str
) -> None:
    with pytest.raises(NsmError, match=re.escape(expected)):
        place.client.run(
            "1", env="python", network=network.format(place.server.host), secrets=secrets
        )
    assert place.client.secrets.list().grants == ()


@pytest.mark.slow
def test_the_command_line_tests_a_secret(place: Place) -> None:
    done = place.supervisor.run("nsm", "secrets", "test", "github")
    assert f"{len(VALUE)} characters; code sees a text such as ghp_" in done.stdout
    assert VALUE not in done.stdout
    done = place.supervisor.run("nsm", "secrets", "test", "broken")
    assert done.returncode == 1
    assert "false failed (exit code 1)" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("denied", [False, True])
def test_a_helper_and_a_supervisor_that_die_have_successors(denied: bool) -> None:
    """Code has the same stand-in and trusts the same certificate; a response goes on, unless its
    host is denied.
    """
    with secret_place() as place:
        server = place.server
        asks = f"{CURL} -N {server.url('plain')}"
        stand_in = place.run(asks, "github")
        kill(place.helper())
        assert place.run(asks) == stand_in
        assert place.run(SLOW.format(url=server.url("slow"))) == stand_in
        helper = place.helper()
        own = place.supervisor
        own.kill()
        with supervisor(own.directory, variables=place.variables) as it, it.client() as client:
            later = place._replace(supervisor=it, client=client)
            assert later.helper() == helper
            if denied:
                client.network("work-bash", "deny", [server.host])
                client.network("work-bash", "allow", [server.host])
            else:
                server.go_on.set()
            assert later.run("cat <&3") == ("" if denied else stand_in)
            assert later.run(asks) == stand_in
            pidfd = os.pidfd_open(helper)
            client.kill_all()
            wait_gone([pidfd])


WEBSOCKET = """
import base64, os, socket, ssl
host, port = {host!r}.split(":")
link = socket.create_connection(("127.0.0.1", 3128))
link.sendall(f"CONNECT {{host}}:{{port}} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
assert b" 200 " in link.recv(4096)
link = ssl.create_default_context().wrap_socket(link, server_hostname=host)
link.sendall("\\r\\n".join((
    "GET /websocket HTTP/1.1", f"Host: {{host}}:{{port}}", "Upgrade: websocket",
    "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + "A" * 22 + "==",
    "Authorization: " + os.environ["GITHUB_TOKEN"], "", "")).encode())
link.sendall(b"\\x82\\x84\\0\\0\\0\\0echo")
data = b""
while not data.endswith(b"echo"):
    data += link.recv(4096)
head, _, frames = data.partition(b"\\r\\n\\r\\n")
print(head.split()[1].decode(), frames[2:-6].decode(), frames[-4:].decode())
"""

NODE = """
const http = require("http"), https = require("https"), tls = require("tls");
const [host, port] = "{host}".split(":");
const proxy = {{ host: "127.0.0.1", port: 3128 }};
const connect = http.request({{ ...proxy, method: "CONNECT", path: "{host}" }});
connect.on("connect", (_, socket) => {{
  const secure = tls.connect({{ socket, servername: host }}, () => {{
    https.get({{ createConnection: () => secure, host, port, path: "/plain",
      headers: {{ Authorization: process.env.GITHUB_TOKEN }} }},
      (response) => response.pipe(process.stdout));
  }});
}});
connect.end();
"""


ATTACKS = """
import os, socket, ssl
host, port = {host!r}.split(":")

def tunnel(early=b""):
    link = socket.create_connection(("127.0.0.1", 3128))
    link.sendall(f"CONNECT {{host}}:{{port}} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode() + early)
    return link

def rest(link):
    data = b""
    try:
        while piece := link.recv(65536):
            data += piece
    except OSError:
        pass
    return data

def within_tls(name, data):
    link = tunnel()
    link.recv(4096)
    context = ssl.create_default_context()
    context.check_hostname = False
    try:
        link = context.wrap_socket(link, server_hostname=name)
        link.sendall(data)
    except OSError as error:
        return b"no TLS"
    return rest(link)

hello = b"\\x16\\x03\\x01\\x02\\x00" + bytes(100)
for early in (b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x16" * 65000, bytes(65000), hello, hello * 600):
    link = tunnel(early)
    link.shutdown(socket.SHUT_WR)
    assert b"HTTP/1.1 200 OK" not in rest(link)
for name in (None, "other.example"):
    assert within_tls(name, b"") == b"no TLS"
token = os.environ["GITHUB_TOKEN"]
head = f"GET /plain HTTP/1.1\\r\\nHost: {{host}}:{{port}}\\r\\nAuthorization: {{token}}\\r\\n"
for data, status in (
    (b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", b"400"),
    (b"\\0nonsense\\r\\n\\r\\n", b"400"),
    (b"GET / HTTP/1.1\\r\\nX: " + b"x" * 70000, b"431"),
    (head.encode() + b"Content-Length: 1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n", b"400"),
    (head.encode() + b"Connection: close\\r\\n\\r\\n", b"200"),
):
    answer = within_tls(host, data)
    assert answer.split(b" ")[1] == status, answer
print("withstood")
"""


@pytest.mark.slow
def test_clients_that_attack(place: Place) -> None:
    place.run("1", "github", env="python")
    helper = place.helper()
    out = place.run(ATTACKS.format(host=place.server.host), env="python")
    assert out == "withstood"
    assert place.helper() == helper
    assert [headers["authorization"] for _, _, headers, _ in place.server.seen] == [VALUE]


@pytest.mark.slow
def test_real_programs(place: Place) -> None:
    """Each gets its answer; the server saw the value, and the session does not."""
    server, directory = place.server, place.directory
    repository = directory / "git" / "sample.git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    subprocess.run(["git", "-C", repository, "config", "http.receivepack", "true"], check=True)
    stand_in = place.run("echo $GITHUB_TOKEN", "github")
    basic = f"Basic {base64.b64encode(f'me:{VALUE}'.encode()).decode()}"
    pushes = f"""
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git clone -q "https://me:$GITHUB_TOKEN@{server.host}/git/sample.git" /tmp/sample 2>&1
    cd /tmp/sample && head -c 3000000 /dev/urandom >big && git add big && git commit -qm one
    git push -q origin HEAD:main && git ls-remote origin main
    """
    out = place.run(pushes)
    head = subprocess.run(
        ["git", "-C", repository, "rev-parse", "main"], check=True, capture_output=True, text=True
    )
    assert f"{head.stdout.strip()}\trefs/heads/main" in out
    assert server.last() == basic

    index = f"https://me:$GITHUB_TOKEN@{server.host}/simple/"
    out = place.run(f"python3 -m pip index versions --index-url {index} nsm-sample 2>&1; :")
    if "No module named pip" not in out:
        assert "nsm-sample (1.0)" in out, out
        assert server.last() == basic

    npm = f"""
    npm view nsm-sample description --registry https://{server.host}/npm/ \
        --//{server.host}/npm/:_authToken=$GITHUB_TOKEN 2>&1
    """
    if shutil.which("npm"):
        assert "a sample" in place.run(npm)
        assert server.last() == f"Bearer {VALUE}"
    if shutil.which("node"):
        script = NODE.format(host=server.host)
        assert place.run(f"node -e '{script}'") == stand_in
        assert server.last() == VALUE

    fetches = f"""
    import os, urllib.request as r
    request = r.Request("{server.url("plain")}", headers={{"Authorization": os.environ["T"]}})
    print(r.urlopen(request).read().decode())
    """
    code = "\n".join(line.strip() for line in fetches.splitlines())
    out = place.run(f"T=$GITHUB_TOKEN python3 -c '{code}'")
    assert out == stand_in
    out = place.run(WEBSOCKET.format(host=server.host), "github", env="python")
    assert out.split()[0] == "101"
    assert out.split()[1].startswith("ghp_")
    assert VALUE not in out
    assert out.split()[2] == "echo"
    assert server.last() == VALUE


@pytest.mark.slow
def test_a_server_with_an_expired_certificate() -> None:
    with secret_place(days=-1) as place:
        out = place.run(f"curl -sS {place.server.url('plain')}", "github")
        assert "certificate has expired" in out
        assert place.server.seen == []


@pytest.mark.slow
def test_many_connections_at_once(place: Place) -> None:
    asks = f"""
    for i in $(seq 500); do echo "url = {place.server.url("plain")}"; done >/tmp/urls
    curl -sS -k -H "Authorization: $GITHUB_TOKEN" -H "Connection: close" \
        --parallel --parallel-immediate --parallel-max 300 -K /tmp/urls 2>/dev/null |
        grep -o -- "$GITHUB_TOKEN" | wc -l
    """  # with -k, since curl reads all certificates again for each connection
    out = place.run(asks, "github")
    assert out == "500"
    (grant,) = place.client.secrets.list().grants
    assert grant.uses == 500


# Rules for requests.


@pytest.fixture
def reads(place: Place) -> Reads:
    """Run code in a session whose rules let it read only."""
    return partial(place.run, env="reads")


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
def test_programs_of_python_and_curl(place: Place, env: str) -> None:
    """A request that a rule allows gets its answer; another one is refused, and told why.

    `requests` is in pip, if nowhere else.
    """
    server = place.server
    stand_in = place.run("echo ${GITHUB_TOKEN:-none}", env=env)
    refused = REFUSED.format(server.host.partition(":")[0])
    out = place.run(
        f"cat >/tmp/ask.py <<'E'\n{PYTHON}\nE\npython3 /tmp/ask.py {server.url('plain')}", env=env
    )
    first, second, *more = out.splitlines()
    assert (first, second) == (stand_in, refused)
    assert more in ([], [f"200 {stand_in}", refused, f"200 {stand_in}"])
    curl = "curl -sS -w ' %{http_code}' -H \"Authorization: ${GITHUB_TOKEN:-none}\""
    assert place.run(f"{curl} {server.url('plain')}", env=env) == f"{stand_in} 200"
    assert place.run(f"{curl} -d x {server.url('plain')}", env=env).endswith(" 403")
    seen = [(method, headers["authorization"]) for method, _, headers, _ in server.seen]
    assert set(seen) == {("GET", VALUE if env == "reads" else "none")}


def test_a_server_that_trickles(place: Place, reads: Reads) -> None:
    stand_in = reads("echo $GITHUB_TOKEN")
    for form in ("trickle", "chunked"):
        assert reads(f"{CURL} {place.server.url(form)}") == stand_in
    assert reads(SLOW.format(url=place.server.url("slow"))) == stand_in
    place.server.go_on.set()
    assert reads(ENDS) == f"{stand_in}\n 0"


def test_a_helper_that_is_killed_in_the_middle_of_a_response(place: Place, reads: Reads) -> None:
    """The program sees the end, and the next helper keeps to the same rules."""
    plain = place.server.url("plain")
    stand_in = reads(SLOW.format(url=place.server.url("slow")))
    kill(place.helper())
    assert int(reads(ENDS)) in {18, 56}, reads("cat /tmp/says")  # partial file, reset
    assert reads(f"{CURL} {plain}") == stand_in
    assert "no rule for" in reads(f"{CURL} -d x {plain}")


def test_a_secret_that_is_revoked_in_the_middle_of_a_response(place: Place, reads: Reads) -> None:
    """The rest of it is searched for the value all the same."""
    stand_in = reads(SLOW.format(url=place.server.url("slow")))
    place.client.secrets.revoke("github")
    place.server.go_on.set()
    assert reads(ENDS) == f"{stand_in}\n 0"
    assert "was revoked" in reads(f"{CURL} {place.server.url('plain')}")
    assert reads(f"curl -sS {place.server.url('plain')}") == "none"


@pytest.mark.parametrize("env", ["reads", "no-secret"])
def test_a_session_keeps_its_rules_over_a_restart(place: Place, env: str) -> None:
    plain = place.server.url("plain")
    answer = place.run(f"{CURL} {plain}; kept=1", env=env)
    assert place.supervisor.run("nsm", "reload").returncode == 0
    assert place.run(f"echo $kept; {CURL} {plain}", env=env) == f"1\n{answer}"
    assert "no rule for" in place.run(f"{CURL} -d x {plain}", env=env)


def test_a_helper_that_cannot_start_again(place: Place, reads: Reads) -> None:
    """The wider pattern leads nowhere: the host is out of reach until the helper can run."""
    plain = place.server.url("plain")
    stand_in = reads(f"{CURL} {plain}")
    token = place.directory / "token"
    token.rename(f"{token}.gone")
    kill(place.helper())
    seen = len(place.server.seen)
    assert reads(f"{CURL} {plain} 2>/dev/null || echo no answer") == "no answer"
    assert len(place.server.seen) == seen
    token.with_name("token.gone").rename(token)
    assert reads(f"{CURL} {plain}") == stand_in
