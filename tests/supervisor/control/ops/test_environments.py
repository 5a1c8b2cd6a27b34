"""Operations on environments that Nix builds, with a nix that does as it is told."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from artifact_files import write_artifact
from control_bench import Bench, Peer, bench
from fake_nix import FakeNix
from nsm.wire.messages import Cancel
from nsmd.control.ops import environments

ANSWER_TIMEOUT_S = 120


@pytest.fixture
def nix(tmp_path: Path) -> FakeNix:
    return FakeNix(tmp_path / "bin")


def opened(nix: FakeNix, tmp_path: Path) -> AbstractAsyncContextManager[Bench]:
    return bench(search_path=str(nix.folder), directory=str(tmp_path / "state"))


def science(nix: FakeNix, tmp_path: Path, *before: tuple[str, Any]) -> str:
    path = str(write_artifact(tmp_path / "store", "science"))
    return nix.builds("science", *before, ("out", path))


async def test_a_build_goes_on_without_its_client(nix: FakeNix, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    reference = science(nix, tmp_path, ("gate", str(gate)))
    async with opened(nix, tmp_path) as it:
        peer = await it.connect()
        id_ = await peer.start("env_add", reference=reference, wait=True)
        await peer.next()
        await cancelled(peer, id_)
        row = (await peer.answer(id_))["environment"]
        assert row["state"] in ("queued", "building")
        gone = await it.connect()
        await gone.start("env_log", target="science", follow=True)
        await gone.stream.aclose()
        envs = {row["name"]: row for row in (await peer.call("envs"))["environments"]}
        assert "so far" in envs["science"]["problem"]
        follow = await peer.start("env_log", target="science", follow=True)
        async with await trio.open_file(gate, "w"):
            pass
        assert (await peer.answer(follow))["environment"]["state"] == "ready"


async def cancelled(peer: Peer, id_: int) -> None:
    await peer.send(Cancel(id_))


async def test_following_a_log_ends_when_the_client_wants(nix: FakeNix, tmp_path: Path) -> None:
    reference = nix.builds("slow", ("log", ["first"]), ("hang", None))
    async with opened(nix, tmp_path) as it:
        peer = await it.connect()
        await peer.call("env_add", reference=reference)
        id_ = await peer.start("env_log", target="slow", follow=True)
        text = ""
        while "it hangs now" not in text:
            text += (await peer.next_event())["text"]
        await cancelled(peer, id_)
        assert (await peer.answer(id_))["environment"]["state"] == "building"
        removed = await peer.call("env_remove", targets=["slow", "nothing"])
        assert [row["name"] for row in removed["removed"]] == ["slow"]
        assert [row["target"] for row in removed["errors"]] == ["nothing"]
        assert (await peer.call("env_list"))["environments"] == []


async def test_following_a_log_sees_an_end_that_comes_while_it_reads(
    nix: FakeNix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, over, read = tmp_path / "gate", threading.Event(), environments.read_log
    os.mkfifo(gate)
    reads: list[int] = []

    def slow(path: str, offset: int) -> bytes:
        reads.append(offset)
        if len(reads) == 1:
            gate.write_text("go on")
        over.wait(ANSWER_TIMEOUT_S)
        return read(path, offset)

    monkeypatch.setattr(environments, "read_log", slow)
    reference = science(nix, tmp_path, ("gate", str(gate)))
    async with opened(nix, tmp_path) as it:
        peer, other = await it.connect(), await it.connect()
        await peer.call("env_add", reference=reference)
        id_ = await peer.start("env_log", target="science", follow=True)
        await other.call("env_add", reference=reference, wait=True)
        over.set()
        with trio.fail_after(ANSWER_TIMEOUT_S):
            assert (await peer.answer(id_))["environment"]["state"] == "ready"
