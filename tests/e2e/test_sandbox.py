"""Sessions that a program makes with settings and labels of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from nsm.wire.errors import BadRequestError, UnknownSessionError

if TYPE_CHECKING:
    from e2e_support import Supervisor


def test_a_sandbox_from_its_beginning_to_its_end(client: nsm.Client) -> None:
    with client.sandbox(
        files={"in.txt": "6", "deep/er": b"x"},
        labels={"job": "7"},
        memory_mb=128,
        idle_s=60,
        environ={"FOO": "bar"},
        network="off",
    ) as box:
        code = "import os; print(int(open('in.txt').read()) * 7, os.environ['FOO'])"
        assert box.run(code).stdout == "42 bar\n"
        assert box.exec(["sh", "-c", "cat deep/er; echo $FOO"]).collect().stdout == b"xbar\n"
        assert box.files.read("in.txt") == b"6"
        found = client.inspect(box.id)
        assert found.session.labels == {"job": "7"}
        assert found.policy is not None
        assert found.policy["limits"]["memory_mb"] == 128
        assert found.lifetime is not None
        assert found.lifetime["idle_timeout_s"] == 60
    assert client.sessions() == []
    # Nothing is made under its name again.
    with pytest.raises(UnknownSessionError):
        box.run("1")
    with pytest.raises(UnknownSessionError):
        box.exec(["true"])
    assert client.sessions() == []


def test_the_end_of_the_block_is_its_end_whatever_happens(client: nsm.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.sandbox():
        raise ZeroDivisionError
    with pytest.raises(nsm.NsmError), client.sandbox(files={"/usr/x": "1"}):
        pass
    assert client.sessions() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_mb": 1_000_000},
        {"memory_mb": 1},
        {"idle_s": 1e9},
        {"idle_s": 0.0},
        {"labels": {"a b": "c"}},
        {"labels": {"a": "\n"}},
        {"labels": {"a": "x" * 201}},
        {"labels": {f"l{number}": "" for number in range(17)}},
        {"environ": {"A=": "c"}},
        {"environ": {"A": "x" * 200_000}},
    ],
)
def test_more_than_is_configured_is_refused(client: nsm.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError), client.sandbox(**wrong):
        pass
    assert client.sessions() == []


def test_a_name_that_is_taken(client: nsm.Client) -> None:
    with client.sandbox(name="mine") as box:
        assert box.name == "mine"
        with (
            pytest.raises(BadRequestError, match="There is a session"),
            client.sandbox(name="mine"),
        ):
            pass
        assert box.run("print(1)").stdout == "1\n"


def test_labels_choose_sessions(shared: Supervisor, client: nsm.Client) -> None:
    for number in range(3):
        labels = {"job": str(number % 2), "owner": "me"}
        box = client.sandbox(env="bash", labels=labels)
        assert box.labels == labels
    listed = json.loads(shared.run("nsm", "ps", "--json", "--label", "job=0").stdout)
    assert [row["labels"] for row in listed] == [{"job": "0", "owner": "me"}] * 2
    chosen = ("--label", "job=0", "--label", "owner=you")
    assert json.loads(shared.run("nsm", "ps", "--json", *chosen).stdout) == []
    killed = json.loads(shared.run("nsm", "kill", "--json", "--label", "job=0").stdout)
    assert len(killed) == 2
    assert [row.labels["job"] for row in client.sessions()] == ["1"]
    assert len(client.kill_labelled({"owner": "me"}).killed) == 1
    assert shared.run("nsm", "ps", "--label", "wrong").returncode == 2


def test_sandboxes_with_variables_of_their_own_are_not_kept_ready(client: nsm.Client) -> None:
    kinds = len(client.pool().kinds)
    for number in range(3):
        with client.sandbox(environ={"SECRET": str(number)}) as box:
            assert box.run("import os; print(os.environ['SECRET'])").stdout == f"{number}\n"
    assert len(client.pool().kinds) <= kinds + 1


async def test_the_async_client(shared: Supervisor) -> None:
    async with shared.async_client() as client:
        async with client.sandbox(env="bash", files={"x": "1"}) as box:
            assert (await box.run("cat x")).stdout == "1"
            assert (await (await box.exec(["cat", "x"])).collect()).stdout == b"1"
            assert await box.files.read("x") == b"1"
        assert await client.sessions() == []
