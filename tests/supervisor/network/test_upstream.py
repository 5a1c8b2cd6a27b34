"""The upstream proxy: who is reached through it, its answers, and its login."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio
import trio.testing

from certificates import TestAuthority
from netbench import Names, open_netbench, open_upstream, open_world
from nsmd.model.host_rules import Address, AllowList, Host
from nsmd.model.settings import UpstreamSettings
from nsmd.model.values import NetworkRule
from nsmd.network import trust, upstream
from nsmd.network.decisions import RefusedError
from nsmd.network.host_check import usable_addresses
from nsmd.network.secrets.vault import SourceError
from nsmd.network.upstream import Upstream, find_upstream, is_excepted, no_proxy_of
from realjail import SYSTEM_PATH, needs_bwrap


@pytest.mark.parametrize(
    ("host", "port", "excepted", "expected"),
    [
        ("a.test", 443, "a.test", True),
        ("b.a.test", 443, "a.test", True),
        ("b.a.test", 443, ".a.test", True),
        ("b.a.test", 443, "*.a.test", True),
        ("ba.test", 443, "a.test", False),
        ("a.test", 443, "x.test A.test.", True),
        ("a.test", 443, "a.test:443", True),
        ("a.test", 443, "a.test:80", False),
        ("a.test", 443, "*", True),
        ("a.test", 443, " , ", False),
        (ip_address("10.1.2.3"), 80, "10.0.0.0/8", True),
        (ip_address("10.1.2.3"), 80, "10.1.2.3:80", True),
        (ip_address("11.1.2.3"), 80, "10.0.0.0/8,a.test", False),
        (ip_address("::1"), 80, "::1", True),
        (ip_address("fd00::1"), 80, "[fd00::/8]", True),
    ],
)
def test_hosts_without_the_proxy(host: Host, port: int, excepted: str, expected: bool) -> None:
    assert is_excepted(host, port, no_proxy_of({"NO_PROXY": excepted})) is expected


def test_the_loopback_of_this_machine_is_reached_without_it() -> None:
    used = Upstream({"http": "p.test", "https": "p.test"})
    for host in ("host.nsm.internal", "localhost", ip_address("127.0.0.9"), ip_address("::1")):
        assert used.proxy_for(host, 443, plain=False) == ""
    assert used.proxy_for(ip_address("10.0.0.1"), 443, plain=True) == "p.test"


NAMES = Names({"out.test": ["1.1.1.1"], "in.test": ["10.0.0.1"], "both.test": ["1.1.1.1", "::1"]})


@pytest.mark.parametrize(
    ("allow", "host", "refused"),
    [
        ("out.test", "out.test", ""),
        ("*", "out.test", ""),
        ("in.test", "in.test", "10.0.0.1 is private"),
        ("in.test,10.0.0.0/8", "in.test", ""),
        ("both.test", "both.test", "::1 is loopback"),  # nobody knows which one it takes
        ("unknown.test", "unknown.test", ""),
        ("*.test", "unknown.test", ""),
        ("*", "unknown.test", "cannot tell whether its address is public"),
        ("*,other.test", "unknown.test", "cannot tell whether its address is public"),
        ("*", ip_address("169.254.169.254"), "is link-local"),
        ("*", ip_address("9.9.9.9"), ""),
        ("out.test", "other.test", "other.test:443 is not allowed"),
    ],
)
async def test_rules_that_hold_where_the_proxy_looks_names_up(
    allow: str, host: Host, refused: str
) -> None:
    allowed = AllowList.of(allow.split(","))
    expected = pytest.raises(RefusedError, match=refused) if refused else nullcontext()
    with expected:
        await usable_addresses(allowed, host, 443, NAMES, upstream=True)


async def test_a_resolver_that_hangs_keeps_only_wide_patterns_from_the_proxy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hanging(_: str) -> Sequence[Address]:
        await trio.sleep_forever()

    assert autojump_clock
    assert not await usable_addresses(
        AllowList.of(["a.test"]), "a.test", 443, hanging, upstream=True
    )
    assert trio.current_time() < 5
    with pytest.raises(RefusedError, match="cannot tell"):
        await usable_addresses(AllowList.of(["*"]), "a.test", 443, hanging, upstream=True)


async def refusal(url: str, **options: str) -> str:
    names = Names({"proxy.test": ["127.0.0.1"]})
    with pytest.raises(RefusedError) as refused:
        await Upstream({}, origin="HTTPS_PROXY").connect(url, "a.test", 443, names, **options)
    assert "secret" not in refused.value.detail
    assert "HTTPS_PROXY" in refused.value.detail
    return refused.value.detail


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("socks5://proxy.test", "socks5://, where nsm can use http:// only"),
        ("https://proxy.test", "https://, where nsm can use http:// only"),
        ("http://proxy.test:x", "an invalid URL"),
        ("http://eve:secret@0x7f.1", "an invalid URL"),
        ("http://eve:secret@proxy.test:1", "proxy.test:1 (of HTTPS_PROXY) does not answer: "),
        ("nobody.test:80", "nobody.test:80 (of HTTPS_PROXY) has no address"),
    ],
)
async def test_proxies_that_nsm_cannot_use(url: str, words: str) -> None:
    assert words in await refusal(url)


ASKS = b"HTTP/1.1 407 secret\r\nProxy-Authenticate: "


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ASKS + b"Basic realm=x\r\n\r\nsecret", "does not accept the login (407)"),
        (
            ASKS + b"Negotiate\r\nProxy-Authenticate: NTLM\r\n\r\n",
            "asks for a login by Negotiate, NTLM, where nsm can use Basic only",
        ),
        (b"HTTP/1.1 403 secret\r\n\r\n", "does not lead to a.test:443: it answers 403"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "answers with something other than HTTP"),
        (b"HTTP/1.1 2", "answers with something other than HTTP"),
        (b"", "hangs up when it is asked for a.test:443"),
        (b"A" * 100_000, "answers with something other than HTTP"),
    ],
)
async def test_answers_of_a_proxy(answer: bytes, words: str) -> None:
    async with open_upstream(0, answer=answer) as proxy:
        assert words in await refusal(f"http://eve:secret@127.0.0.1:{proxy.port}")
        assert proxy.asked == ["CONNECT a.test:443 eve:secret"]
        if b"Basic" in answer:
            assert "~/.netrc" in await refusal(f"http://127.0.0.1:{proxy.port}")


async def test_a_host_may_speak_first_through_the_proxy() -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-first"
    async with open_world() as world, open_upstream(world.port, answer=answer) as proxy:
        url = f"127.0.0.1:{proxy.port}"
        stream = await Upstream({}).connect(url, "a.test", 22, Names())
        async with stream:
            assert await stream.receive_some() == b"SSH-2.0-first"


async def test_a_proxy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "ANSWER_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "for a.test:443 within 0.05 s" in await refusal(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("settings", "variables", "shown", "login"),
    [
        ({}, {}, "", ""),
        ({"upstream": "off"}, {"HTTPS_PROXY": "http://p.test:1"}, "", ""),
        ({}, {"https_proxy": "http://eve:a%40b@p.test:1"}, "p.test:1, of the variables", "eve:a@b"),
        ({}, {"ALL_PROXY": "socks5://p.test"}, "one that has a URL with socks5://", ""),
        ({"upstream": "p.test:1"}, {"HTTPS_PROXY": "q.test"}, "p.test:1, of `[net", "ada:in netrc"),
        (
            {"upstream": "p.test", "upstream_login": "environment: LOGIN"},
            {"LOGIN": "ada:of:source", "NO_PROXY": "x.test"},
            "p.test:80, of `[network] upstream`",
            "ada:of:source",
        ),
    ],
)
async def test_where_the_proxy_and_its_login_come_from(
    tmp_path: Path, settings: dict[str, str], variables: dict[str, str], shown: str, login: str
) -> None:
    (tmp_path / ".netrc").write_text('machine p.test login ada password "in netrc"\n')
    found = find_upstream(
        UpstreamSettings(no_proxy=("y.test",), **settings), variables, str(tmp_path)
    )
    assert found.shown.startswith(shown)
    assert bool(found.shown) == bool(shown)
    await found.read_logins()
    others = found.variables({**variables, "HOME": "/"})
    told = others.get("HTTPS_PROXY", "")
    assert others["HOME"] == "/"
    assert "q.test" not in str(others)
    assert upstream.read_proxy_url(told)[2] == login if login else "@" not in told
    if "NO_PROXY" in variables:
        assert others["no_proxy"] == "y.test,x.test"


async def test_a_source_that_fails_is_asked_again_only_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def read_login(place: str) -> str:
        asked.append(place)
        if len(asked) == 1:
            raise SourceError("the keyring is locked")
        return "eve:pw"

    async with open_upstream(0, answer=b"HTTP/1.1 407 x\r\n\r\n") as proxy:
        used = Upstream({}, read_login=read_login)

        async def why(words: str) -> None:
            with pytest.raises(RefusedError, match=words):
                await used.connect(f"127.0.0.1:{proxy.port}", "a.test", 443, Names())

        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(why, "127.0.0.1:.* needs a login: the keyring is .*netrc")
        assert asked == ["127.0.0.1"]
        for age_s, times in ((0, 2), (0, 3), (99, 4), (99, 4)):
            monkeypatch.setattr(upstream, "LEAST_AGE_S", age_s)
            monkeypatch.setattr(used, "_failure", ("", 0.0))
            await why("does not accept the login")
            assert len(asked) == times
        assert set(proxy.asked) == {"CONNECT a.test:443 eve:pw"}


@needs_bwrap
async def test_code_in_jails_goes_through_the_proxy_and_never_sees_its_login() -> None:
    rule = NetworkRule(
        mode="allow", allow=("named.test", "far.test:*", "near.test:*", "host.nsm.internal:*")
    )
    names = Names({"near.test": ["10.0.0.9"]})
    async with (
        open_world() as world,
        open_upstream(world.port, login="eve:hunter2") as proxy,
        open_netbench({"bash": rule}, names=names) as bench,
    ):
        url = f"http://eve:hunter2@127.0.0.1:{proxy.port}"
        bench.gateway.upstream = Upstream({"http": url, "https": url}, origin="HTTPS_PROXY")
        said = await bench.text(
            "curl -sS --noproxy '*' http://named.test/n; echo\n"
            "curl -sS http://far.test/a; echo; curl -sSp http://far.test:81/b; echo\n"
            "curl -sS http://near.test/; curl -sS http://other.test/\n"
            f"curl -sS http://host.nsm.internal:{world.port}/c; echo; env\n"
            "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'",
            env="bash",
        )
        assert [f"world: GET /{path}" in said for path in "nabc"] == [True] * 4
        assert "10.0.0.9 is private" in said
        assert "other.test:80 is not allowed" in said
        asked = ("named.test:80", "far.test:80", "far.test:81")
        assert proxy.asked == [f"CONNECT {each} eve:hunter2" for each in asked]
        bench.gateway.upstream = Upstream({"http": url.replace("hunter2", "hunter3")})
        ran = await bench.run("curl -sS http://far.test/", env="bash")
        wrong = f"{ran.outcome.stdout}{ran.denials}"
        assert f"127.0.0.1:{proxy.port} (of HTTPS_PROXY" in wrong
        assert wrong.count("does not accept the login (407)") == 2
        told = "".join((said, wrong, *(d.detail for d in bench.network().decisions_since())))
        assert not [each for each in ("hunter", "eve:", "ZXZl") if each in told]


def test_certificates_of_the_company(tmp_path: Path) -> None:
    own, added, named, left = (
        TestAuthority(make(tmp_path / name)).bundle.read_text()
        for name in ("own", "added", "named", "left")
    )
    folded = added.replace("\n", "\r\n")
    for path, text in {
        "etc/ssl/certs/ca-certificates.crt": own + added,
        "usr/local/share/ca-certificates/deep/added.crt": folded,
        "usr/local/share/ca-certificates/left.crt": left,  # not yet of the store
        "named.pem": f"a comment\n{named}{own}",
    }.items():
        make((tmp_path / path).parent)
        (tmp_path / path).write_text(text)
    root = f"{tmp_path}/"
    assert trust.added_certificates({}, root=root).split() == added.split()
    variables = {"SSL_CERT_FILE": f"{root}named.pem", "NODE_EXTRA_CA_CERTS": f"{root}none"}
    assert trust.added_certificates(variables, root=root).split() == (added + named).split()
    assert not trust.added_certificates({}, root=f"{root}left/")


def make(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


needs_java = pytest.mark.skipif(
    shutil.which("java", path=SYSTEM_PATH) is None, reason="not here: java"
)
GET = """cat >Get.java <<'END'
import java.net.URI;
import java.net.http.*;
public class Get {
    public static void main(String[] words) throws Exception {
        var asked = HttpRequest.newBuilder(URI.create(words[0])).build();
        System.out.println(HttpClient.newHttpClient()
            .send(asked, HttpResponse.BodyHandlers.ofString()).body());
    }
}
END
"""


@needs_bwrap
@pytest.mark.parametrize(
    "fetch",
    [
        "curl -sS {}/",
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"{}\").read().decode())'",
        pytest.param(GET + "java -Xmx64m Get.java {}/", marks=[pytest.mark.slow, needs_java]),
    ],
)
async def test_code_trusts_the_company_s_certificates(fetch: str, tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate())

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\ninside")
            await stream.aclose()

    rules = {"bash": NetworkRule(mode="allow", allow=("host.nsm.internal:*",))}
    async with trio.open_nursery() as nursery, open_netbench(rules) as bench:
        serve = partial(trio.serve_ssl_over_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(serve, answer, 0, context)
        url = f"https://host.nsm.internal:{listener.transport_listener.socket.getsockname()[1]}"
        code = f"{fetch.replace('{}', url)} 2>&1 ||:"
        assert "certificat" in await bench.text(code, env="bash")
        bench.gateway.certificates = authority.bundle.read_text()
        said = await bench.text(code, env="bash", session="b")
        assert said.splitlines()[-1] == "inside"
        nursery.cancel_scope.cancel()
