"""`nsm e2b serve` over HTTP, with requests as E2B's clients send them.

`tests/integrations/e2b-clients` has the clients themselves.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from e2b_serving import PATIENCE_S, e2b_server
from e2e_support import supervisor
from nsm.integrations.e2b.contexts import MAX_CONTEXTS
from nsm.integrations.e2b.requests import STREAM, frame, frames_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

ENVD, CODE = "49983", "49999"


class Answer(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Served:
    """A server, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], variables: dict[str, str]) -> None:
        self.process = process
        self.key = variables["E2B_API_KEY"]
        self.address = variables["E2B_API_URL"].removeprefix("http://")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.address, timeout=PATIENCE_S)

    def ask(self, method: str, path: str, body: bytes | object = b"", **headers: str) -> Answer:
        connection = self.connect()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, named)
        answer = connection.getresponse()
        found = Answer(
            answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
        )
        connection.close()
        return found

    def api(self, method: str, path: str, body: object = b"") -> Answer:
        return self.ask(method, path, body, X_API_KEY=self.key)

    @contextmanager
    def sandbox(self, **settings: Any) -> Generator[Box]:
        asked = {"templateID": "base", "timeout": 300, **settings}
        answer = self.api("POST", "/v2/sandboxes", asked)
        assert answer.status == 201, answer
        box = Box(self, answer.json)
        try:
            yield box
        finally:
            self.api("DELETE", f"/sandboxes/{box.id}")


class Box:
    """A sandbox, and requests to it."""

    def __init__(self, served: Served, made: dict[str, str]) -> None:
        self.served = served
        self.id = made["sandboxID"]
        self.token = made["envdAccessToken"]

    def headers(self, port: str = ENVD) -> dict[str, str]:
        return {"E2b_Sandbox_Id": self.id, "E2b_Sandbox_Port": port, "X_Access_Token": self.token}

    def ask(self, method: str, path: str, body: object = b"", **more: str) -> Answer:
        return self.served.ask(method, path, body, **{**self.headers(), **more})

    def call(self, method: str, message: object = None) -> Answer:
        return self.ask("POST", f"/{method}", message or {}, Content_Type="application/json")

    def run(self, code: str, **more: Any) -> list[Any]:
        answer = self.served.ask("POST", "/execute", {"code": code, **more}, **self.headers(CODE))
        assert answer.status == 200, answer
        return answer.lines

    @contextmanager
    def begun(
        self, path: str, body: bytes, port: str = ENVD
    ) -> Generator[http.client.HTTPResponse]:
        """An answer that is read piece by piece; the client goes with the block."""
        connection = self.served.connect()
        named = {name.replace("_", "-"): value for name, value in self.headers(port).items()}
        connection.request("POST", path, body, {**named, "Content-Type": STREAM})
        answer = connection.getresponse()
        try:
            yield answer
        finally:
            answer.close()
            connection.close()

    def start(self, *argv: str, **more: Any) -> Answer:
        message = {"process": {"cmd": argv[0], "args": argv[1:]}, "stdin": False, **more}
        return self.ask("POST", "/process.Process/Start", frame(message), Content_Type=STREAM)


@contextmanager
def serving(it: Supervisor, *options: str) -> Generator[Served]:
    with e2b_server(it, *options) as (process, variables):
        yield Served(process, variables)


@pytest.fixture(scope="module")
def served(shared: Supervisor) -> Generator[Served]:
    with serving(shared, "--max-sandboxes", "20") as it:
        yield it


@pytest.fixture(scope="module")
def box(served: Served) -> Generator[Box]:
    with served.sandbox() as it:
        yield it


def data_of(answer: Answer, name: str = "stdout") -> bytes:
    """All that a process has printed."""
    assert answer.status == 200, answer
    pieces = [
        message["event"]["data"].get(name, "")
        for message in frames_of(answer.body)
        if "data" in message["event"]
    ]
    return b"".join(map(base64.b64decode, pieces))


def end_of(answer: Answer) -> dict[str, Any]:
    return next(m["event"]["end"] for m in frames_of(answer.body) if "end" in m["event"])


def last_of(answer: Answer) -> dict[str, Any]:
    """The last frame of a stream, which has its error."""
    found: dict[str, Any] = json.loads(answer.body[answer.body.rindex(b"\2") + 5 :])
    return found


def test_code_runs_and_keeps_its_state(box: Box) -> None:
    lines = box.run("x = 20\nprint('hi')")
    assert [line["type"] for line in lines] == ["stdout", "number_of_executions"]
    assert lines[0]["text"] == "hi\n"
    result = box.run("x + 1")[0]
    assert (result["text"], result["is_main_result"]) == ("21", True)
    assert box.run("1/0")[0]["name"] == "ZeroDivisionError"
    assert box.run("echo é; false", language="bash")[-2]["value"] == "1"


BOTH = """
class Both:
    def _repr_html_(self): return '<b>'
    def _repr_png_(self): return b'png'
    def _repr_svg_(self): 1/0
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': 'both', 'text/unknown': 'x'}, {}
Both()
"""
"""A value in several formats, of which one fails and one is unknown."""

PYPLOT = """
import sys, types
class Figure:
    def savefig(self, file, **_): file.write(b'png')
pyplot = types.ModuleType('matplotlib.pyplot')
open_figures = [1]
pyplot.get_fignums = lambda: list(open_figures)
pyplot.figure = lambda number: Figure()
pyplot.close = lambda figure: open_figures.pop()
sys.modules['matplotlib.pyplot'] = pyplot
"""
"""Figures are those of `matplotlib.pyplot`, whoever made that module."""

PNG = base64.b64encode(b"png").decode()
LATE = "const a = 2; await new Promise((done) => setTimeout(done, 1)); a"


@pytest.mark.parametrize(
    ("language", "code", "told"),
    [
        ("python", "raise SystemExit(3)", {"value": "3"}),
        ("python", "1 +", {"name": "SyntaxError"}),
        ("python", "class E(Exception):\n    def __str__(self): 1/0\nraise E", {"name": "E"}),
        ("python", "input()", {"name": "EOFError"}),
        ("python", "import sys; sys.argv", {"text": "['']"}),
        ("python", "'é' * 200_000", {"text": repr("é" * 200_000)}),
        ("python", BOTH, {"text": "both", "html": "<b>", "png": PNG}),
        ("python", PYPLOT, {"png": PNG}),
        ("python-fresh", "x = 1; 'x' in globals()", {"text": "True", "is_main_result": True}),
        ("python-fresh", "import os; os.listdir('.')", {"text": "[]"}),
        ("python-fresh", "raise SystemExit(3)", {"name": "SystemExit", "value": "3"}),
        ("python-fresh", "1 +", {"name": "SyntaxError"}),
        ("python-fresh", "try: 1/0\nfinally: raise OSError('a\\nb')", {"value": "a\nb"}),
        ("python-fresh", "assert False", {"name": "AssertionError", "value": ""}),
        ("node", "const a = 1; let b = { x: [1] }; b", {"text": "{ x: [ 1 ] }"}),
        ("node", LATE, {"text": "2"}),
        ("node", "null.x", {"name": "TypeError"}),
        ("node", "x y", {"name": "SyntaxError"}),
        ("node", "throw 5", {"name": "Error"}),
        ("node", "require('os').platform()", {"text": "'linux'"}),
    ],
)
def test_values_and_errors_come_as_clients_read_them(
    box: Box, language: str, code: str, told: dict[str, str]
) -> None:
    name = {"node": "javascript"}.get(language, language)
    result = box.run(code, language=name)[0]
    assert result | told == result
    if "traceback" in result:
        assert "Session.post" not in result["traceback"]
        assert "python_context" not in result["traceback"]


@pytest.mark.parametrize(
    ("language", "code"), [("python", "import os; print(os.environ.get('A'))"), ("bash", "echo $A")]
)
def test_variables_are_for_one_execution(box: Box, language: str, code: str) -> None:
    assert box.run(code, language=language, env_vars={"A": "b"})[0]["text"] == "b\n"
    assert box.run(code, language=language)[0]["text"] in ("None\n", "\n")


def test_fresh_code_knows_nothing_of_other_code(served: Served, box: Box) -> None:
    """Several pieces run at once, beside the contexts."""
    box.run("kept = 1")
    code = "kept = 'kept' in globals(); print(kept)\nimport sys; print('no', file=sys.stderr)"
    with ThreadPoolExecutor(5) as pool:
        for lines in pool.map(lambda _: box.run(code, language="Python-Fresh"), range(20)):
            assert [line["text"] for line in lines] == ["False\n", "no\n"]
    page = "class Page:\n    def _repr_html_(self): return '<b>'\ndisplay(Page()); Page()"
    lines = box.run(page, language="python-fresh")
    assert [(line.get("html"), line.get("is_main_result")) for line in lines] == [
        ("<b>", False),
        ("<b>", True),
    ]
    failed = "import sys\nprint('before', file=sys.stderr)\n1/0"
    stderr, error = box.run(failed, language="python-fresh")
    assert stderr["text"] == "before\n"
    assert error["value"] == "division by zero"
    assert error["traceback"].startswith("Traceback ")
    assert box.run("kept")[0]["text"] == "1"
    for path, asked, status in (
        ("/execute", {"code": "1", "language": "python-fresh", "env_vars": {"A": "b"}}, 501),
        ("/contexts", {"language": "python-fresh"}, 501),
    ):
        assert served.ask("POST", path, asked, **box.headers(CODE)).status == status
    with served.sandbox(envVars={"FOO": "bar"}) as other:
        lines = other.run("import os; print(os.environ['FOO'])", language="python-fresh")
        assert lines[0]["text"] == "bar\n"


def test_contexts_are_apart(box: Box) -> None:
    def ask(method: str, path: str, body: object = b"") -> Answer:
        return box.served.ask(method, path, body, **box.headers(CODE))

    context = ask("POST", "/contexts", {"language": "python", "cwd": "/tmp"}).json
    assert box.run("import os; y = 1; os.getcwd()", context_id=context["id"])[0]["text"] == "'/tmp'"
    assert context in ask("GET", "/contexts").json
    assert box.run("y")[0]["name"] == "NameError"
    assert ask("POST", f"/contexts/{context['id']}/restart").status == 200
    assert box.run("y", context_id=context["id"])[0]["name"] == "NameError"
    assert ask("DELETE", f"/contexts/{context['id']}").status == 204
    assert ask("DELETE", f"/contexts/{context['id']}").status == 404


def test_parallel_requests_make_no_more_contexts_than_there_may_be(served: Served) -> None:
    with served.sandbox() as own, ThreadPoolExecutor(MAX_CONTEXTS + 3) as pool:

        def make(_: int) -> int:
            asked = {"language": "bash"}
            return served.ask("POST", "/contexts", asked, **own.headers(CODE)).status

        statuses = list(pool.map(make, range(MAX_CONTEXTS + 3)))
    assert (statuses.count(201), statuses.count(429)) == (MAX_CONTEXTS, 3)


def test_code_whose_client_goes_is_interrupted(box: Box) -> None:
    box.run("kept = 1")
    code = "print('begun')\nimport time\nwhile True: time.sleep(1000)"
    with box.begun("/execute", json.dumps({"code": code}).encode(), CODE) as answer:
        assert json.loads(answer.readline())["text"] == "begun\n"
    assert box.run("kept")[0]["text"] == "1"


def test_processes(box: Box) -> None:
    answer = box.start("/bin/bash", "-l", "-c", "printf '\\377\\n'; echo err >&2; exit 3")
    assert data_of(answer) == b"\xff\n"
    assert data_of(answer, "stderr") == b"err\n"
    assert end_of(answer)["exitCode"] == 3
    assert end_of(box.start("sh", "-c", "kill -9 $$"))["status"] == "signal: killed"
    assert last_of(box.start("no-such-program"))["error"]["code"] == "not_found"


def pid_of(stream: http.client.HTTPResponse) -> int:
    """Process id in the first message of a stream."""
    head = stream.read(5)
    message = json.loads(stream.read(int.from_bytes(head[1:], "big")))
    return int(message["event"]["start"]["pid"])


def test_a_process_with_input_and_a_terminal(box: Box) -> None:
    message = {
        "process": {"cmd": "sh", "args": ["-c", "read line; stty size; echo got $line"]},
        "pty": {"size": {"cols": 91, "rows": 31}},
    }
    with box.begun("/process.Process/Start", frame(message)) as stream:
        pid = pid_of(stream)
        selector = {"process": {"pid": pid}}
        listed = box.call("process.Process/List").json["processes"]
        assert [each["config"]["cmd"] for each in listed if each["pid"] == pid] == ["sh"]
        size = {"size": {"cols": 50, "rows": 20}}
        assert box.call("process.Process/Update", {**selector, "pty": size}).status == 200
        text = base64.b64encode(b"hello\n").decode()
        sent = box.call("process.Process/SendInput", {**selector, "input": {"pty": text}})
        assert sent.status == 200
        shown = data_of(Answer(200, {}, stream.read()), "pty")
    assert b"20 50" in shown
    assert b"got hello" in shown
    gone = box.call("process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGKILL"})
    assert (gone.status, gone.json["code"]) == (404, "not_found")


def test_a_process_goes_on_when_its_client_goes(box: Box) -> None:
    message = {"process": {"cmd": "cat"}, "stdin": True}
    with box.begun("/process.Process/Start", frame(message)) as stream:
        selector = {"process": {"pid": pid_of(stream)}}
    found: list[Answer] = []

    def follow() -> None:
        asked = frame(selector)
        found.append(box.ask("POST", "/process.Process/Connect", asked, Content_Type=STREAM))

    follower = threading.Thread(target=follow)
    follower.start()
    start = frame({"start": selector})
    data = frame({"data": {"input": {"stdin": base64.b64encode(b"late\n").decode()}}})
    sent = box.ask("POST", "/process.Process/StreamInput", start + data, Content_Type=STREAM)
    assert sent.status == 200
    assert box.call("process.Process/CloseStdin", selector).status == 200
    follower.join(PATIENCE_S)
    # The follower may have come before the input, after it, or when all was over.
    assert found[0].status == 200


def test_a_process_is_ended_at_its_clients_deadline(box: Box) -> None:
    message = {"process": {"cmd": "sleep", "args": ["1000"]}, "stdin": False}
    answer = box.ask(
        "POST",
        "/process.Process/Start",
        frame(message),
        Content_Type=STREAM,
        Connect_Timeout_Ms="200",
    )
    assert last_of(answer)["error"]["code"] == "deadline_exceeded"


def test_files(box: Box) -> None:
    content = bytes(range(256)) * 4096
    octets = {"Content_Type": "application/octet-stream"}
    written = box.ask("POST", "/files?path=d/a%20b", content, **octets)
    assert written.json[0]["name"] == "a b"
    assert box.ask("GET", "/files?path=d/a%20b").body == content
    entry = box.call("filesystem.Filesystem/Stat", {"path": "d/a b"}).json["entry"]
    assert (entry["type"], entry["size"]) == ("FILE_TYPE_FILE", str(len(content)))
    listed = box.call("filesystem.Filesystem/ListDir", {"path": "d", "depth": 1}).json["entries"]
    assert [each["name"] for each in listed] == ["a b"]
    for path, status in (("d", 400), ("none", 404), ("", 400), ("a%00b", 400)):
        assert box.ask("GET", f"/files?path={path}").status == status
    made = [box.call("filesystem.Filesystem/MakeDir", {"path": "m/n"}) for _ in range(2)]
    assert [each.status for each in made] == [200, 409]
    assert made[1].json["code"] == "already_exists"
    moved = {"source": "d/a b", "destination": "m/o/c"}
    assert box.call("filesystem.Filesystem/Move", moved).status == 200
    assert box.call("filesystem.Filesystem/Remove", {"path": "m"}).status == 200
    assert box.call("filesystem.Filesystem/Stat", {"path": "m"}).json["code"] == "not_found"


def test_files_of_a_host_are_not_reached(box: Box, served: Served) -> None:
    for path in ("/root/.ssh", "../../../../../etc/shadow", f"/proc/{served.process.pid}/environ"):
        assert box.ask("GET", f"/files?path={path}").status >= 400
    assert box.ask("POST", "/files?path=/etc/x", b"x").status == 403


def test_watches(box: Box) -> None:
    box.call("filesystem.Filesystem/MakeDir", {"path": "w"})
    made = box.call("filesystem.Filesystem/CreateWatcher", {"path": "w"}).json
    box.ask("POST", "/files?path=w/f", b"x")
    names: set[str] = set()
    while "f" not in names:  # a moment later
        events = box.call("filesystem.Filesystem/GetWatcherEvents", made).json["events"]
        names |= {event["name"] for event in events}
    assert box.call("filesystem.Filesystem/RemoveWatcher", made).status == 200
    assert box.call("filesystem.Filesystem/GetWatcherEvents", made).status == 404


def test_sandboxes_are_listed_and_found_again(served: Served) -> None:
    with served.sandbox(metadata={"k": "v w"}, envVars={"A": "b"}) as one, served.sandbox():
        rows = served.api("GET", "/v2/sandboxes?metadata=k%3Dv%2520w").json
        assert [row["sandboxID"] for row in rows] == [one.id]
        assert rows[0]["metadata"] == {"k": "v w"}
        page = served.api("GET", "/v2/sandboxes?limit=1")
        assert len(page.json) == 1
        rest = served.api("GET", f"/v2/sandboxes?nextToken={page.headers['x-next-token']}")
        assert one.id in {row["sandboxID"] for row in [*page.json, *rest.json]}
        again = Box(served, served.api("POST", f"/v2/sandboxes/{one.id}/connect", {}).json)
        assert data_of(again.start("sh", "-c", "echo $A")) == b"b\n"
        longer = {"timeout": 999999}
        assert served.api("POST", f"/sandboxes/{one.id}/timeout", longer).status == 400
        assert served.api("POST", f"/sandboxes/{one.id}/pause").status == 501
        assert one.ask("GET", "/health").status == 204
    assert served.api("GET", f"/sandboxes/{one.id}").status == 404
    assert served.api("DELETE", f"/sandboxes/{one.id}").status == 404
    gone = one.ask("GET", "/health")
    assert gone.status == 502
    assert "was not found" in gone.json["message"]
    assert one.start("true").status == 502


def test_a_sandbox_ends_in_time(served: Served) -> None:
    with served.sandbox() as box:
        message = {"process": {"cmd": "sleep", "args": ["1000"]}, "stdin": False}
        with box.begun("/process.Process/Start", frame(message)) as stream:
            assert served.api("POST", f"/sandboxes/{box.id}/timeout", {"timeout": 0}).status == 204
            error = last_of(Answer(200, {}, stream.read()))["error"]
        assert error["code"] == "unavailable"
        assert "was not found" in error["message"]


def test_there_are_at_most_so_many(shared: Supervisor) -> None:
    with serving(shared, "--max-sandboxes", "1", "--key", "few") as served, served.sandbox():
        answer = served.api("POST", "/v2/sandboxes", {"templateID": "base"})
        assert answer.status == 429
        assert "--max-sandboxes" in answer.json["message"]


def test_another_key_knows_nothing_of_it(shared: Supervisor, box: Box) -> None:
    with serving(shared, "--key", "other") as other:
        assert other.api("GET", "/v2/sandboxes").json == []
        assert other.api("GET", f"/sandboxes/{box.id}").status == 404
        assert other.api("DELETE", f"/sandboxes/{box.id}").status == 404
        stranger = Box(other, {"sandboxID": box.id, "envdAccessToken": box.token})
        assert stranger.start("true").status == 401
    assert box.ask("GET", "/health").status == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X_API_KEY": "e2b_00"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_strangers_are_refused_before_their_body(
    served: Served, headers: dict[str, str], status: int
) -> None:
    """The body that is announced never comes, and the answer does not wait for it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named = {"Host": served.address, "Content-Length": "1000000", **named}
    host, _, port = served.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        client.sendall(f"POST /v2/sandboxes HTTP/1.1\r\n{lines}\r\n".encode())
        assert client.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"templateID": 1}',
        b"[" * 100_000,
        b'{"templateID": "base", "timeout": "1"}',
    ],
)
def test_garbage_is_refused(served: Served, body: bytes) -> None:
    assert served.api("POST", "/v2/sandboxes", body).status == 400


@pytest.mark.parametrize(
    "asked",
    [
        {"templateID": "nothing"},
        {"templateID": "base", "timeout": 10**6},
        {"templateID": "base", "metadata": {"": "x"}},
        {"templateID": "base", "metadata": {str(n): "x" for n in range(20)}},
        {"templateID": "base", "envVars": {"A": 1}},
        {"templateID": "base", "autoPause": True},
        {"templateID": "base", "volumeMounts": [{"name": "x", "path": "/x"}]},
        {"templateID": "base", "network": {"allowOut": ["example.org"]}},
    ],
)
def test_more_than_can_be_had_is_refused(served: Served, asked: dict[str, Any]) -> None:
    answer = served.api("POST", "/v2/sandboxes", asked)
    assert 400 <= answer.status < 600, answer
    assert answer.status not in (500, 502, 503), answer
    assert answer.json["message"]


@pytest.mark.parametrize("body", [b"\0", b"\0\0\0\0\5{}", b"\1\0\0\0\2{}", b"\0\0\0\0\2[]", b""])
def test_broken_frames_get_an_error(box: Box, body: bytes) -> None:
    answer = box.ask("POST", "/process.Process/Start", body, Content_Type=STREAM)
    assert last_of(answer)["error"]["code"] in ("invalid_argument", "unimplemented")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("process.Process/Nothing", {}),
        ("process.Process/SendInput", {"process": {"pid": "1"}}),
        ("process.Process/SendSignal", {"signal": [1]}),
        ("process.Process/SendSignal", {"signal": "SIGNAL_SIGKILL"}),
        ("filesystem.Filesystem/Stat", {"path": 1}),
        ("filesystem.Filesystem/Stat", {}),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "x"}),
        ("filesystem.Filesystem/Move", {"source": "none", "destination": "x"}),
    ],
)
def test_bad_calls_get_an_error_of_connect(box: Box, method: str, message: dict[str, Any]) -> None:
    answer = box.call(method, message)
    assert 400 <= answer.status < 502, answer
    assert answer.status != 500, answer
    assert set(answer.json) == {"code", "message"}


@pytest.mark.slow
def test_a_server_that_is_started_again_finds_its_sandboxes(short_dir: Path) -> None:
    with supervisor(short_dir) as it:
        with serving(it) as first:
            box = Box(first, first.api("POST", "/v2/sandboxes", {"templateID": "base"}).json)
            assert data_of(box.start("sh", "-c", "echo x >kept")) == b""
        with serving(it) as second:
            again = Box(second, {"sandboxID": box.id, "envdAccessToken": box.token})
            assert data_of(again.start("cat", "kept")) == b"x\n"
            assert second.api("DELETE", f"/sandboxes/{box.id}").status == 204


@pytest.mark.slow
def test_a_supervisor_that_is_killed_and_comes_back(short_dir: Path) -> None:
    with supervisor(short_dir, keep=True) as it, serving(it) as served:
        box = Box(served, served.api("POST", "/v2/sandboxes", {"templateID": "base"}).json)
        box.run("kept = 5")
        it.kill()
        # The next call of the server's client starts another one, which takes up the sessions.
        with supervisor(short_dir):
            assert box.run("kept")[0]["text"] == "5"
            assert served.api("DELETE", f"/sandboxes/{box.id}").status == 204
