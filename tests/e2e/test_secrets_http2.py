"""Secrets over HTTP/2, with real clients in a session and Node's server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from e2e_support import supervisor
from nsm.wire.errors import BadRequestError
from secret_server import NAME, TestAuthority

if TYPE_CHECKING:
    from collections.abc import Generator

    import nsm

pytestmark = [pytest.mark.jail, pytest.mark.node]

VALUE = "ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz"
SERVER = Path(__file__).parents[1] / "support" / "http2_server.mjs"

CONFIG = """
[secrets.github]
from = "file: {directory}/token"
hosts = ["{host}"]
as = ["env: GITHUB_TOKEN"]

[environments.reads]
preset = "bash"
network = {{ allow = ["GET https://{host}/repos/x/*", "b.example.org"], intercept = true }}
"""


class NodeServer:
    """Node's server on this machine's loopback."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.host = f"{NAME}:{self.next()['port']}"

    def url(self, path: str) -> str:
        return f"https://{self.host}/{path}"

    def next(self) -> dict[str, Any]:
        """The next thing that it says: its port, then each request."""
        assert self._process.stdout is not None
        row: dict[str, Any] = json.loads(self._process.stdout.readline())
        return row


class Http2Place(NamedTuple):
    """A client of a supervisor with secrets, and the server that they are for."""

    client: nsm.Client
    server: NodeServer
    directory: Path

    def run(self, code: str, env: str = "bash") -> str:
        name = f"work-{env}"
        live = [row.name for row in self.client.sessions()]
        settings = {} if name in live else {"network": self.server.host, "secrets": ["github"]}
        result = self.client.run(code, env=env, session=name, **settings)  # type: ignore[arg-type]
        assert result.exit_code == 0, result.stdout + result.stderr
        return result.stdout.strip()


@contextmanager
def node_server(certificate: Path, repositories: Path) -> Generator[NodeServer]:
    node = shutil.which("node")
    assert node is not None
    with subprocess.Popen(
        [node, SERVER, certificate, repositories],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield NodeServer(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Http2Place]:
    directory = tmp_path_factory.mktemp("nsm")
    authority = TestAuthority(directory)
    (directory / "token").write_text(f"{VALUE}\n")
    for name in ("own", "git"):
        (directory / name).mkdir()
    with node_server(authority.certificate(), directory / "git") as server:
        config = CONFIG.format(directory=directory, host=server.host)
        variables = {"SSL_CERT_FILE": str(authority.bundle)}
        with (
            supervisor(directory / "own", config=config, variables=variables) as it,
            it.client() as client,
        ):
            yield Http2Place(client, server, directory)
            client.kill_all()


def test_curl_speaks_http2_with_a_secret(place: Http2Place) -> None:
    """A value goes out, and comes back as the stand-in, in body and trailers; a body of some
    windows goes up, and one comes down.
    """
    curl = 'curl -sS --http2 -H "Authorization: Bearer $GITHUB_TOKEN"'
    out = place.run(f"echo $GITHUB_TOKEN; {curl} -w ' %{{http_version}}' {place.server.url('x')}")
    stand_in, answer = out.split("\n")
    assert answer == f"Bearer {stand_in} 2"
    assert place.server.next() == {
        "path": "/x",
        "version": "2.0",
        "authorization": f"Bearer {VALUE}",
    }
    shown = place.run(f"{curl} -v {place.server.url('trailers')} 2>&1 | grep x-seen")
    assert shown == f"< x-seen: Bearer {stand_in}"
    sizes = f"""
    head -c 3000000 /dev/zero | {curl} --data-binary @- {place.server.url("upload")}; echo
    {curl} -o /tmp/big {place.server.url("big")}; wc -c </tmp/big; head -n 1 /tmp/big
    """
    assert place.run(sizes).splitlines() == ["3000000 bytes", "20000000", f"Bearer {stand_in}"]
    assert place.run("grep -cvx 'Bearer '$GITHUB_TOKEN /tmp/big; :") in {"0", "1"}  # the last line
    # Each answer in a file of its own: pieces of several get mixed on standard output.
    url = place.server.url("x")
    asks = "\n".join(f"url = {url}\noutput = /tmp/many/{number}" for number in range(150))
    many = f"""
    mkdir /tmp/many; {curl} --parallel --parallel-max 60 -K - <<'E'\n{asks}\nE
    grep -l $GITHUB_TOKEN /tmp/many/* | wc -l
    """
    assert place.run(many) == "150"


def test_rules_for_requests(place: Http2Place) -> None:
    """Without a secret, nsm reads the requests to a host and refuses what no rule allows."""
    server = place.server
    path = f"https://{server.host}/repos"
    out = place.client.run(
        f"""
        curl -sS {path}/x/y?z; echo " $?"
        curl -sS -w " %{{http_code}} " {path}/y
        curl -sS --http1.1 --path-as-is -o /dev/null -w "%{{http_code}} " {path}/x/../y
        curl -sS -X DELETE -o /dev/null -w "%{{http_code}}\n" {path}/x/y
        curl -sS -x "" {path}/x/y 2>/dev/null || echo no way around
        curl -sS http://{server.host}/repos/y
        curl -sS -H "Host: b.example.org" {path}/x/y
        """,
        env="reads",
    )
    assert out.stdout.splitlines()[:3] == [
        "none 0",
        f"nsm: nsm does not pass this request on: no rule for {NAME} allows its method and path",
        " 403 403 403",
    ]
    assert out.stdout.splitlines()[3] == "no way around"
    assert "nsm reads requests with https:// only" in out.stdout
    assert f"its host is not {NAME}" in out.stdout
    row = server.next()
    while row["path"] != "/repos/x/y":
        row = server.next()
    assert row["authorization"] == "none"
    rule = f"GET https://{server.host}/repos/x/*"
    live = place.client.run("true", env="reads", session="reads")
    assert live.exit_code == 0
    assert rule in place.client.network("reads").allow
    with pytest.raises(BadRequestError, match="cannot be changed"):
        place.client.network("reads", "allow", [f"GET https://{server.host}/repos/y"])


def test_refused_over_http2(place: Http2Place) -> None:
    url = place.server.url("x")
    out = place.run(
        f"""
        curl -sS --http2 "{url}?t=$GITHUB_TOKEN"
        curl -sS --http2 -H "Host: other.example" {url}
        curl -sS --http2 --http1.1 -w "%{{http_version}}" {url}
        """
    )
    assert "is in the URL" in out
    assert f"its host is not {NAME}" in out
    assert out.endswith("none1.1")


NODE = """
const http = require("http"), http2 = require("http2"), tls = require("tls");
const [host] = "{host}".split(":");
const connect = http.request(
  {{ host: "127.0.0.1", port: 3128, method: "CONNECT", path: "{host}" }});
connect.on("connect", (_, socket) => {{
  const secure = tls.connect({{ socket, servername: host, ALPNProtocols: ["h2"] }}, () => {{
    const session = http2.connect("https://{host}", {{ createConnection: () => secure }});
    let left = 3;
    const ask = (path) => {{
      const request = session.request(
        {{ ":path": path, authorization: process.env.GITHUB_TOKEN }});
      let text = "";
      request.on("data", (piece) => (text += piece));
      request.on("end", () => {{
        console.log(path, text);
        if (--left === 1) ask("/leave");
        if (left === 0) session.close(() => secure.destroy());
      }});
    }};
    ask("/a");
    ask("/b");
  }});
}});
connect.end();
"""


@pytest.mark.slow
def test_node_and_git_speak_http2(place: Http2Place) -> None:
    """The last of Node's requests gets its answer although the server says goodbye before it."""
    host = place.server.host
    stand_in = place.run("echo $GITHUB_TOKEN")
    out = place.run(f"node -e '{NODE.format(host=host)}'")
    assert sorted(out.splitlines()) == [f"/{path} {stand_in}" for path in ("a", "b", "leave")]

    repository = place.directory / "git" / "sample.git"
    subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
    subprocess.run(["git", "-C", repository, "config", "http.receivepack", "true"], check=True)
    pushes = f"""
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git config --global http.version HTTP/2
    git clone -q "https://me:$GITHUB_TOKEN@{host}/git/sample.git" /tmp/sample 2>&1
    cd /tmp/sample && head -c 3000000 /dev/urandom >big && git add big && git commit -qm one
    git push -q origin HEAD:main && git ls-remote origin main
    """
    out = place.run(pushes)
    head = subprocess.run(
        ["git", "-C", repository, "rev-parse", "main"], check=True, capture_output=True, text=True
    )
    assert f"{head.stdout.strip()}\trefs/heads/main" in out
    basic = f"Basic {base64.b64encode(f'me:{VALUE}'.encode()).decode()}"
    row = place.server.next()
    while row["authorization"] != basic:
        row = place.server.next()
    assert row["version"] == "2.0"


JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
  public static void main(String[] words) throws Exception {
    var request = HttpRequest.newBuilder(URI.create(words[0]))
        .header("Authorization", System.getenv("GITHUB_TOKEN")).build();
    var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.println(answer.version() + " " + answer.body());
  }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="not here: javac")
def test_java_trusts_the_certificate(place: Http2Place) -> None:
    stand_in = place.run("echo $GITHUB_TOKEN")
    out = place.run(
        f"cat >/tmp/Ask.java <<'E'\n{JAVA}\nE\njava -Xmx64m /tmp/Ask.java {place.server.url('x')}"
    )
    assert out == f"HTTP_2 {stand_in}"


GO = """
package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
  request, _ := http.NewRequest("GET", os.Args[1], nil)
  request.Header.Set("Authorization", os.Getenv("GITHUB_TOKEN"))
  answer, err := http.DefaultClient.Do(request)
  if err != nil { panic(err) }
  body, _ := io.ReadAll(answer.Body)
  fmt.Println(answer.Proto, string(body))
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="not here: go")
def test_go_trusts_the_certificate(place: Http2Place) -> None:
    """Programs in Go, as `gh` is one, take the proxy and the certificate from variables."""
    source = place.directory / "ask.go"
    source.write_text(GO)
    program = place.directory / "git" / "program"
    variables = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(place.directory / "gocache")}
    subprocess.run(["go", "build", "-o", program, source], check=True, env=variables)
    stand_in = place.run("echo $GITHUB_TOKEN")
    gets = f"curl -sS -o /tmp/ask {place.server.url('program')} && chmod +x /tmp/ask"
    assert place.run(f"{gets} && /tmp/ask {place.server.url('x')}") == f"HTTP/2.0 {stand_in}"


@pytest.mark.slow
def test_cargo_uses_a_private_registry(place: Http2Place) -> None:
    cargo = Path.home() / ".cargo" / "bin" / "cargo"
    found = (
        subprocess.run(["rustup", "which", "cargo"], check=False, capture_output=True, text=True)
        if cargo.exists()
        else None
    )
    if found is None or found.returncode:
        pytest.skip("not here: cargo of rustup")
    shutil.copy(found.stdout.strip(), place.directory / "git" / "program")
    index = f"sparse+{place.server.url('cargo/')}"
    out = place.run(
        f"""
        curl -sS -o /tmp/cargo {place.server.url("program")} && chmod +x /tmp/cargo
        printf '#!/bin/sh\necho "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0"' \
            >/tmp/rustc  # cargo asks who it is, and compiles nothing here
        chmod +x /tmp/rustc
        export RUSTC=/tmp/rustc CARGO_HOME=/tmp/cargo-home
        export CARGO_REGISTRIES_MINE_TOKEN="Bearer $GITHUB_TOKEN"
        export CARGO_REGISTRIES_MINE_INDEX={index}
        export CARGO_REGISTRIES_MINE_CREDENTIAL_PROVIDER=cargo:token
        /tmp/cargo info --registry mine nsm-sample 2>&1 | tail -20; :
        """
    )
    assert "Downloaded nsm-sample v1.0.0" in out  # its content is none
    while (row := place.server.next())["path"] != "/cargo/ns/m-/nsm-sample":
        pass
    assert row["authorization"] == f"Bearer {VALUE}"
