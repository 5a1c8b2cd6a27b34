"""The blocking client whose supervisor goes away, and another one that is asked in its place."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor, answer
from nsm.client import blocking, retry
from nsm.startup import start
from nsm.wire.errors import CannotStartError, DisconnectedError, NotRunningError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nsm.wire.messages import Event
    from nsm.wire.status import ReloadReport


class Generations:
    """Supervisors on one path, one after the other; each has its own handlers."""

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack
        self.all: list[FakeSupervisor] = []

    def add(self, **handlers: Any) -> FakeSupervisor:
        """Another one listens from now on."""
        going = handlers.pop("going", 0)
        capabilities = handlers.pop("capabilities", ("again",))
        supervisor = FakeSupervisor(self.path, **handlers)
        supervisor.capabilities = capabilities
        supervisor.going = going
        self._stack.enter_context(supervisor)
        self.all.append(supervisor)
        return supervisor

    def crash(self, **handlers: Any) -> FakeSupervisor:
        """The last one is gone without a word, and another one is there."""
        last = self.all[-1]
        last.stop_listening()
        supervisor = self.add(**handlers)
        last.close()
        return supervisor

    def client(self, **options: Any) -> nsm.Client:
        return self._stack.enter_context(
            nsm.Client(socket_path=self.path, autostart=False, **options)
        )


@pytest.fixture
def generations(tmp_path: Path) -> Iterator[Generations]:
    tmp_path.chmod(0o700)
    with ExitStack() as stack:
        yield Generations(str(tmp_path / "s"), stack)


def dying(generations: Generations, **next_handlers: Any) -> Any:
    """A handler during which the supervisor is replaced by another one."""

    def handler(exchange: Exchange) -> dict[str, Any]:
        generations.crash(**next_handlers)
        exchange.hang_up()
        return {}

    return handler


nothing = answer()
killed = answer(killed=[], errors=[])
open_file = answer(file=1, path="/workspace/a", size=0, permissions=0o600)
reload = answer(waits_for=[], waits_s=0.0)


def test_a_reload_may_take_long(generations: Generations, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine gives up other answers, and whoever the old program had taken asks again."""
    supervisor = generations.add(reload=reload)
    supervisor.hang_up_after = "reload"
    client = generations.client()
    supervisor.going = 1
    monkeypatch.setattr(blocking, "ANSWER_TIMEOUT_S", 1e-6)
    told: list[ReloadReport] = []
    client.reload(told.append)
    assert len(supervisor.hellos) == 2
    assert not told  # nothing runs that is waited for


def test_who_reloads_is_told_what_is_waited_for(generations: Generations) -> None:
    deploy = {"program": "deploy", "client": "claude-code", "scope": "box:shop"}
    supervisor = generations.add(reload=answer(waits_for=[deploy], waits_s=10))
    supervisor.hang_up_after = "reload"
    told: list[ReloadReport] = []
    generations.client().reload(told.append)
    assert [each.program for report in told for each in report.waits_for] == ["deploy"]


@pytest.mark.parametrize(
    ("op", "known", "answered"),
    [
        ("run", "execution_id", samples.run_result),
        ("run_in", "execution_id", samples.run_result),
        ("bridge_run", "call_id", samples.program_result),
    ],
)
def test_code_under_way_is_asked_for_again_under_its_id(
    generations: Generations, op: str, known: str, answered: Callable[..., dict[str, Any]]
) -> None:
    generations.add(**{op: dying(generations, **{op: answer(**answered(stdout="42\n"))})})
    arguments = {"env": "python", "target": "a", "code": "6 * 7"}
    if op == "bridge_run":
        arguments = {"program": "deploy"}
    wire = generations.client().call(op, arguments)
    assert wire["stdout"] == "42\n"
    ((first,), (second,)) = (supervisor.requests for supervisor in generations.all)
    assert "again" not in first.args
    assert second.args == {**first.args, "again": True}
    assert len(first.args[known]) == 32
    assert [hello.scope for hello in generations.all[1].hellos] == ["cli"]


def test_a_client_gives_up_after_several_losses(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_LOSSES", 2)

    def hang_up(exchange: Exchange) -> dict[str, Any]:
        exchange.hang_up()
        return {}

    supervisor = generations.add(run=hang_up)
    with pytest.raises(DisconnectedError, match="before it answered"):
        generations.client().run("x", env="python")
    assert len(supervisor.requests) == 3


def test_a_request_that_changes_something_is_not_sent_twice(generations: Generations) -> None:
    second: dict[str, Any] = {"kill": killed}
    generations.add(kill=dying(generations, **second))
    client = generations.client()
    with pytest.raises(DisconnectedError, match="'kill' was carried out is unknown"):
        client.kill("a")
    assert generations.all[1].requests == []
    client.kill("b")  # the client is of use all the same
    assert [request.args for request in generations.all[1].requests] == [{"targets": ["b"]}]


def test_between_calls_nobody_notices(generations: Generations) -> None:
    generations.add(run=answer(**samples.run_result()))
    client = generations.client()
    client.run("x", env="python")
    second = generations.crash(run=answer(**samples.run_result()), kill=killed)
    client.kill("a")  # it cannot have arrived at the first
    client.run("y", env="python")
    assert [request.op for request in second.requests] == ["kill", "run"]
    assert "again" not in second.requests[1].args


def test_events_say_that_output_may_be_missing(generations: Generations) -> None:
    def printing(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "two")
        return samples.run_result(stdout="onetwo")

    def first(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one")
        seen.wait()
        return dying(generations, run=printing)(exchange)  # type: ignore[no-any-return]

    events: list[tuple[str, dict[str, Any]]] = []
    seen = threading.Event()

    def note(event: Event) -> None:
        events.append((event.event, event.data))
        seen.set()

    generations.add(run=first)
    client = generations.client()
    arguments = {"env": "python", "code": "x", "stream": True}
    client.call("run", arguments, on_event=note)
    assert events == [
        ("output", {"stream": "stdout", "text": "one"}),
        (retry.RECONNECTED, {}),
        ("output", {"stream": "stdout", "text": "two"}),
    ]


def test_a_supervisor_that_was_shut_down_is_not_replaced(generations: Generations) -> None:
    ended = ShuttingDownError("it was shut down")

    def farewell(exchange: Exchange) -> dict[str, Any]:
        exchange.say_goodbye(ended)
        return {}

    supervisor = generations.add(run=farewell, ping=nothing)
    client = generations.client()
    with pytest.raises(ShuttingDownError, match="it was shut down"):
        client.run("x", env="python")
    client.ping()
    assert [request.op for request in supervisor.requests] == ["run", "ping"]


def test_without_another_supervisor_the_client_says_so(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "RECONNECT_S", 0.0)
    supervisor = generations.add(ping=nothing)
    client = generations.client()
    client.ping()
    supervisor.close()
    with pytest.raises(NotRunningError):
        client.ping()
    generations.add(ping=nothing)
    client.ping()


def test_where_no_supervisor_can_start_it_says_at_once_what_became_of_the_code(
    generations: Generations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSM_SUPERVISOR", "/nowhere/nsm-supervisor")

    def gone(exchange: Exchange) -> dict[str, Any]:
        generations.all[-1].stop_listening()
        exchange.hang_up()
        return {}

    generations.add(run=gone)
    client = nsm.Client(socket_path=generations.path)
    with client, pytest.raises(CannotStartError, match="Whether the code was run is unknown"):
        client.run("1", env="python")
    generations.add()
    with nsm.Client(socket_path=generations.path) as client:
        generations.all[-1].stop_listening()
        generations.all[-1].close()
        with pytest.raises(CannotStartError, match="The code was not run"):
            client.run("1", env="python")
        with pytest.raises(CannotStartError) as caught:
            client.status()
        assert caught.value.message.endswith("not there, or not executable")


def test_a_file_on_its_way_is_not_continued(generations: Generations) -> None:
    generations.add(file_open=open_file, file_write=dying(generations))
    pieces = iter([b"data", b""])
    with pytest.raises(DisconnectedError, match="while a file was on its way"):
        generations.client().files("a").write_from("a", lambda _count: next(pieces))


def test_a_supervisor_that_goes_before_its_hello_is_passed_over(generations: Generations) -> None:
    generations.add(kill=killed)
    client = generations.client()
    last = generations.crash(going=2, kill=killed)
    client.kill("a")  # it has not arrived anywhere before
    assert [request.op for request in last.requests] == ["kill"]
    last.going = 2
    generations.client().kill("b")
    assert last.going == 0
