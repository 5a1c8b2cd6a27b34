"""The service with a runner of the test: the SDK's client over real sockets."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from mcp_types import INVALID_REQUEST, TextContent

from fake_fdstore import Held
from fake_programs import FakePrograms
from fake_runner import ENVIRONMENTS, FakeRunner, a_project, echo
from http_support import sdk_client
from nsm.http import token as httptoken
from nsm.http.listen_address import Port
from nsm.http.listening import MAX_TURNED_AWAY
from nsm.wire.errors import BadProjectError, InternalError
from nsmd.http.service import HTTP_PORT, SCOPE, HeldPort, HttpService, bound
from nsmd.mcp.messages import MAX_VALUES
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.settings import HttpSettings, Settings
from nsmd.model.values import NetworkRule, ProjectMount
from nsmd.telemetry import Traffic

ERAS = ["legacy", "2026-07-28"]


class Place:
    """A service, and how to come to it.

    Attributes:
        happened: what its events told.
        something: set when they told something more.
        ending: the supervisor ends.
    """

    def __init__(self, service: HttpService, token_path: str, runner: FakeRunner) -> None:
        self.service = service
        self.token_path = token_path
        self.runner = runner
        self.happened: list[str] = []
        self.something = trio.Event()
        self.ending = False
        self.traffic = Traffic()

    def take(self, event: SupervisorEvent) -> None:
        self.happened.append(event.kind)
        self.something.set()
        self.something = trio.Event()

    @property
    def url(self) -> str:
        return str(self.service.facts()["url"])

    @property
    def token(self) -> str:
        return httptoken.ensure(self.token_path)

    def client(self, mode: str = "auto", **options: Any) -> Any:
        return sdk_client(self.url, self.token, mode, **options)

    async def post(self, body: object, **headers: str) -> httpx2.Response:
        """One request, whose answer has come."""
        sent = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        async with httpx2.AsyncClient(headers=sent, verify=False) as client:
            return await client.post(self.url, json=body)


Open = Callable[..., AbstractAsyncContextManager[Place]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def opened(
        runner: FakeRunner | None = None,
        *,
        check: Callable[[str], ProjectMount] = a_project,
        fails: bool = False,
        port: HeldPort | None = None,
        **settings: Any,
    ) -> AsyncGenerator[Place]:
        async def loaded() -> None:
            if fails:
                raise InternalError("The package is not there.")

        runner = runner or FakeRunner(echo)
        events, traffic = Events(), Traffic()
        path = str(tmp_path / "state" / "http-token")
        values: dict[str, Any] = {"enabled": True, "listen": "127.0.0.1:0"} | settings
        configured = HttpSettings(**values)
        service = HttpService(
            Settings(http=configured),
            path,
            runner=runner.service,
            programs=FakePrograms().service,
            check=check,
            loaded=loaded,
            ending=lambda: place.ending,
            events=events,
            traffic=traffic,
            port=port,
        )
        place = Place(service, path, runner)
        place.traffic = traffic
        events.subscribe(place.take)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.serve)
            yield place
            nursery.cancel_scope.cancel()

    return opened


def text_of(result: Any) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


RUN = {"env": "python", "code": "1 + 1", "session": "a"}


async def test_a_client_over_http_has_a_scope_of_its_own_and_no_project(opened: Open) -> None:
    async with opened() as place, place.client() as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "run"
        assert text_of(await client.call_tool("run", RUN)) == "1 + 1"
        asked = (await place.runner.next()).request.client
        assert (asked.scope, asked.project, asked.peer) == (SCOPE, None, None)
    assert place.happened.count("client_came") == place.happened.count("client_left") >= 1
    assert place.traffic.received > 500
    assert place.traffic.sent > 500


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_a_body_of_too_much_is_refused_unparsed(opened: Open, revision: str) -> None:
    lists: list[list[int]] = [[]] * MAX_VALUES
    params = {"name": "run", "arguments": {**RUN, "timeout_seconds": lists}}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    async with opened() as place:
        answer = await place.post(call, MCP_Protocol_Version=revision)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"
        told = answer.json()
        assert (told["id"], told["error"]["code"]) == (7, INVALID_REQUEST)
        assert f"holds more than {MAX_VALUES:,} values" in told["error"]["message"]


@pytest.mark.parametrize("mode", ERAS)
async def test_clients_are_kept_to_what_is_configured_whatever_they_say(
    opened: Open, mode: str
) -> None:
    network = ("pypi.org",)
    async with opened(project="~/p", network=network) as place, place.client(mode) as client:
        await client.call_tool("run", RUN)
        asked = (await place.runner.next()).request.client
        assert asked.project == a_project("~/p")
        assert asked.bound == NetworkRule(mode="allow", allow=("pypi.org",))
        assert place.runner.asked_projects == []


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_is_interrupted(opened: Open, mode: str) -> None:
    runner = FakeRunner()
    async with opened(runner) as place, place.client(mode) as client:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(client.call_tool, "run", RUN)
            execution = await runner.next()
            tasks.cancel_scope.cancel()
        await execution.interrupted.wait()
        assert not execution.abandoned.is_set()


@pytest.mark.parametrize("mode", ERAS)
async def test_code_goes_on_when_the_supervisor_ends(opened: Open, mode: str) -> None:
    """Sessions outlive it: what runs in them is not the next one's to miss."""
    runner = FakeRunner()
    async with trio.open_nursery() as tasks, opened(runner) as place:

        async def call() -> None:
            async with place.client(mode) as client:
                await client.call_tool("run", RUN)

        tasks.start_soon(call)
        execution = await runner.next()
        await trio.testing.wait_all_tasks_blocked()
        place.ending = True
        tasks.cancel_scope.cancel()
    await execution.abandoned.wait()
    assert not execution.interrupted.is_set()


async def test_a_lost_connection_cancels_no_call_of_the_handshakes_revisions(opened: Open) -> None:
    """MCP 2025-06-18, Streamable HTTP: disconnection is no cancellation."""
    runner = FakeRunner()
    call = {"method": "tools/call", "params": {"name": "run", "arguments": RUN}}
    async with opened(runner) as place:
        session = await handshake(place)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(
                lambda: place.post({"jsonrpc": "2.0", "id": 2, **call}, mcp_session_id=session)
            )
            execution = await runner.next()
            tasks.cancel_scope.cancel()
        while place.happened.count("client_left") < place.happened.count("client_came"):
            await place.something.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not execution.interrupted.is_set()
        assert not execution.abandoned.is_set()


async def handshake(place: Place, revision: str = "2025-06-18") -> str:
    params = {
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    answer = await place.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    assert answer.status_code == 200
    session = answer.headers["mcp-session-id"]
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await place.post(told, mcp_session_id=session)).status_code == 202
    return str(session)


async def test_the_session_idle_for_longest_ends_for_a_new_client(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsmd.http.asgi_app.MAX_SESSIONS", 2)
    async with opened() as place:
        sessions = [await handshake(place) for _ in range(2)]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await place.post(ping, mcp_session_id=sessions[0])).status_code == 200
        sessions += [await handshake(place) for _ in range(1)]
        answers = [await place.post(ping, mcp_session_id=each) for each in sessions]
        assert [answer.status_code for answer in answers] == [200, 404, 200]
        for _ in range(5):
            await handshake(place)


async def test_clients_are_told_of_changes_on_the_stream_that_they_opened(opened: Open) -> None:
    async with opened() as place:
        session = await handshake(place)
        await place.post(
            {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, mcp_session_id=session
        )
        async with await stream_of(place, session) as stream:
            place.runner.change(ENVIRONMENTS[:1])
            got = b""
            while b"notifications/tools/list_changed" not in got:
                data = await stream.receive_some(65536)
                assert data, got
                got += data


async def connected(place: Place) -> trio.SocketStream:
    """A connection on which nothing was sent yet."""
    host, port = place.url.split("/")[2].rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def stream_of(place: Place, session: str) -> trio.SocketStream:
    """An open one, for what a client did not ask about."""
    stream, host = await connected(place), place.url.split("/")[2]
    await stream.send_all(
        f"GET /mcp HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {place.token}\r\n"
        f"Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n".encode()
    )
    assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 200")
    await trio.testing.wait_all_tasks_blocked()
    return stream


# Streams that break off, and are taken up again.


class Cut:
    """A way to a service that the test can cut."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self.host = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        self._listener = listener
        self._streams: list[trio.SocketStream] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}/mcp"

    async def serve(self, place: Place) -> None:
        port = int(place.url.split(":")[2].split("/")[0])

        async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in source:
                    await sink.send_all(data)
            await trio.aclose_forcefully(source)
            await trio.aclose_forcefully(sink)

        async def forward(client: trio.SocketStream) -> None:
            server = await trio.open_tcp_stream("127.0.0.1", port)
            self._streams += [client, server]
            async with client, server, trio.open_nursery() as tasks:
                tasks.start_soon(copy, client, server)
                tasks.start_soon(copy, server, client)

        await trio.serve_listeners(forward, [self._listener])

    async def cut(self) -> None:
        """All connections that there are."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def test_the_sdks_client_takes_up_a_stream_that_broke_off(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsmd.http.asgi_app.RETRY_MS", 10)
    heard: list[str] = []
    events = {"first\n": trio.Event(), "second\n": trio.Event()}

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        assert message is not None
        heard.append(message)
        events[message].set()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    way = Cut(listener)
    texts: list[str] = []
    async with opened(FakeRunner(), hosts=(way.host,)) as place, trio.open_nursery() as nursery:
        nursery.start_soon(way.serve, place)

        async def call() -> None:
            async with sdk_client(way.url, place.token, "legacy") as client:
                result = await client.call_tool("run", RUN, progress_callback=hear)
                texts.append(text_of(result))

        async with trio.open_nursery() as tasks:
            tasks.start_soon(call)
            execution = await place.runner.next()
            execution.print("first\n")
            await events["first\n"].wait()
            await way.cut()
            execution.print("second\n")
            await events["second\n"].wait()
            assert heard == ["first\n", "second\n"]
            # Then the client says the event again that it had before it came the first time.
            await way.cut()
            execution.finish("whole\n")
        nursery.cancel_scope.cancel()
    assert texts == ["whole\n"]
    assert not execution.interrupted.is_set()


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25"])
async def test_an_answer_given_meanwhile_ends_the_resumed_stream(
    opened: Open, revision: str
) -> None:
    async with opened(FakeRunner()) as place:
        headers = {
            "Authorization": f"Bearer {place.token}",
            "Accept": "application/json, text/event-stream",
            "Mcp-Session-Id": await handshake(place, revision),
            "Mcp-Protocol-Version": revision,
        }
        params = {"name": "run", "arguments": RUN, "_meta": {"progressToken": 1}}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        body = json.dumps(call)
        fields = {**headers, "Host": place.url.split("/")[2], "Content-Length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with await connected(place) as stream:
            request = f"POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\n{head}\r\n{body}"
            await stream.send_all(request.encode())
            execution = await place.runner.next()
            execution.print("first\n")
            got = ""
            while "first" not in got:
                got += (await stream.receive_some()).decode()
        execution.finish("whole\n")
        async with httpx2.AsyncClient(headers=headers, verify=False) as client:
            resumed = await client.get(place.url, headers={"Last-Event-ID": ids_of(got)[-1]})
            (result,) = [
                json.loads(line[6:])
                for line in resumed.text.splitlines()
                if line.startswith("data: {")
            ]
            assert result["id"] == 2
            assert result["result"]["content"][0]["text"] == "whole\n"
            (end,) = ids_of(resumed.text)
            over = await client.get(place.url, headers={"Last-Event-ID": end})
            assert over.status_code == 410
            assert "no longer kept" in over.json()["error"]["message"]
            assert (await client.delete(place.url)).status_code == 200
            gone = await client.get(place.url, headers={"Last-Event-ID": end})
            assert gone.status_code == 404


def ids_of(events: str) -> list[str]:
    return [line[4:] for line in events.splitlines() if line.startswith("id: ")]


# A port that an earlier supervisor has listened at.


@pytest.mark.parametrize("now", ["the same", "another", "a socket", "off", "taken"])
async def test_a_port_is_let_go_once_nobody_is_to_listen_there(
    opened: Open, now: str, tmp_path: Path
) -> None:
    """Else clients would wait there, and nobody ever would answer."""
    earlier, taken = bound(Port("127.0.0.1", 0)), bound(Port("127.0.0.1", 0))
    there = Port(*earlier.getsockname())
    store = Held()
    store.keep(HTTP_PORT, [earlier.fileno()])
    listen = {
        "the same": f"127.0.0.1:{there.number}",
        "another": "127.0.0.2:0",
        "a socket": f"unix:{tmp_path}/s",
        "taken": f"127.0.0.1:{taken.getsockname()[1]}",
    }
    settings = {"listen": listen[now]} if now in listen else {"enabled": False}
    port = HeldPort(store, [earlier.detach()])
    with taken:
        async with opened(port=port, **settings) as place:
            assert (place.url == "") == (now in ("off", "taken"))
            assert len(store.held) == (now in ("the same", "another"))
            if now == "the same":
                with pytest.raises(OSError, match="in use"):
                    bound(there)
            else:
                bound(there).close()
    port.close()
    store.close()


# What is not let in, over a real port.


async def raw(place: Place, request: str) -> bytes:
    """Whatever is answered, until the connection is closed."""
    async with await connected(place) as stream:
        host = place.url.split("/")[2]
        await stream.send_all(request.format(token=place.token, host=host).encode())
        got = b""
        while data := await stream.receive_some(65536):
            got += data
        return got


BODY = (
    json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).replace("{", "{{").replace("}", "}}")
)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: evil.example\r\nAuthorization: Bearer {token}", 403),
        (
            "Host: evil.example:80\r\nOrigin: http://evil.example\r\nAuthorization: Bearer {token}",
            403,
        ),
        ("Host: {host}\r\nOrigin: http://evil.example\r\nAuthorization: Bearer {token}", 403),
        ("Host: {host}\r\nOrigin: null\r\nAuthorization: Bearer {token}", 403),
        ("Host: {host}\r\nAuthorization: Bearer {token}x", 401),
        ("Host: {host}", 401),
        ("Host: {host}\r\nOrigin: http://{host}\r\nAuthorization: Bearer {token}", 406),
    ],
)
async def test_web_pages_and_clients_without_the_token_are_refused(
    opened: Open, headers: str, status: int
) -> None:
    async with opened() as place:
        length = len(BODY.replace("{{", "{").replace("}}", "}"))
        more = f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {length}"
        got = await raw(place, f"POST /mcp HTTP/1.1\r\n{headers}\r\n{more}\r\n\r\n{BODY}")
        assert got.startswith(b"HTTP/1.1 %d" % status), got
        assert status == 406 or b"nsm" not in got


async def test_a_new_token_ends_what_the_old_one_had_let_in(opened: Open) -> None:
    async with opened() as place:
        before, session = place.token, await handshake(place)
        async with await stream_of(place, session) as stream:
            httptoken.rotate(place.token_path)
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            old = await place.post(ping, authorization=f"Bearer {before}")
            assert old.status_code == 401
            with trio.fail_after(120):
                while await stream.receive_some(100):
                    pass
        # Its session is there for who has the new one.
        assert (await place.post(ping, mcp_session_id=session)).status_code == 200


async def test_clients_without_the_token_do_not_use_up_connections(opened: Open) -> None:
    async with opened(max_connections=2) as place, trio.open_nursery() as tasks:
        strangers = [await connected(place) for _ in range(5)]
        async with place.client() as client:
            assert text_of(await client.call_tool("run", RUN)) == "1 + 1"
        assert place.service.facts()["displaced"] >= 3
        for stranger in strangers:
            await stranger.aclose()
        tasks.cancel_scope.cancel()


async def test_new_connections_beyond_the_limit_are_told_and_bounded(opened: Open) -> None:
    async with opened(max_connections=1) as place, AsyncExitStack() as stack:
        stack.push_async_callback((await stream_of(place, await handshake(place))).aclose)
        told = list[bytes]()
        for _ in range(MAX_TURNED_AWAY + 1):
            stream = await connected(place)
            stack.push_async_callback(stream.aclose)
            told.append(bytes(await stream.receive_some(12)))
        assert told == [b"HTTP/1.1 503"] * MAX_TURNED_AWAY + [b""]
        assert place.service.facts()["refused"]["number"] == MAX_TURNED_AWAY + 1


# Where.


async def test_a_unix_socket_is_its_users(opened: Open, short: Path) -> None:
    path = str(short / "s")
    async with opened(listen=f"unix:{path}") as place:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert place.url == "http://localhost/mcp"
        async with place.client(socket=path) as client:
            assert text_of(await client.call_tool("run", RUN)) == "1 + 1"
    assert not os.path.exists(path)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("s")
    directory.chmod(0o700)
    return directory


async def test_a_socket_in_a_directory_of_others_is_refused(opened: Open, short: Path) -> None:
    inner = short / "d"
    inner.mkdir()
    inner.chmod(0o777)
    async with opened(listen=f"unix:{inner}/x/s") as place:
        assert place.url == ""
    (inner / "x").mkdir(mode=0o700)
    async with opened(listen=f"unix:{inner}/x/s") as place:
        facts = place.service.facts()
        assert facts["url"] == ""
        assert "everybody may write to" in facts["problem"]


async def test_a_taken_port_is_a_problem_of_http_alone(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with opened(listen=f"127.0.0.1:{port}") as place:
            facts = place.service.facts()
            assert (facts["url"], facts["token"]) == ("", False)
            where = f"127.0.0.1:{port}"
            assert f"{where} cannot be listened at: Address already in use." in facts["problem"]
            assert "`nsm reload` tries again" in facts["problem"]
            assert "`nsm http token --rotate`" in facts["problem"]


async def test_a_project_that_cannot_be_mounted_is_told(opened: Open) -> None:
    def refuse(path: str) -> ProjectMount:
        raise BadProjectError(f"{path} is not there.")

    async with opened(project="/gone", check=refuse) as place, place.client() as client:
        assert place.service.facts()["problem"] == "project: /gone is not there."
        await client.call_tool("run", RUN)
        assert (await place.runner.next()).request.client.project is None


async def test_every_request_is_answered_where_the_package_is_missing(opened: Open) -> None:
    async with opened(fails=True) as place:
        answer = await place.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert answer.status_code == 503
        assert place.service.facts()["problem"].startswith("The package is not there.")
