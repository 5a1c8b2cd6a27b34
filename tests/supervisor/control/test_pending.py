"""Code for an environment that is being made, over the control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from control_bench import bench
from nsm.wire.errors import NsmError
from nsm.wire.messages import Cancel
from nsmd.environments.on_demand import PATIENCE_S, EnvironmentPendingError
from virtual_time import virtual_time

if TYPE_CHECKING:
    from nsmd.manager.run_service import RunService
    from nsmd.sessions.execution import Execution

pytestmark = virtual_time


class Making:
    """Steps until an environment exists."""

    def __init__(self, run_service: RunService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settled = trio.Event()
        self.asked = trio.Event()
        self._submit = run_service.submit
        monkeypatch.setattr(run_service, "submit", self._try)

    def _try(self, *arguments: Any) -> Execution:
        self.asked.set()
        if not self.settled.is_set():
            raise EnvironmentPendingError("python", "it is being built", self.settled)
        return self._submit(*arguments)


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_waited_for(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        making = Making(it.run_service, monkeypatch)
        peer = await it.connect()
        call = await peer.start("run", env="python", code="x", stream=stream)
        await making.asked.wait()
        assert await peer.call("ping") == {}
        making.settled.set()
        assert (await peer.answer(call))["stdout"] == "x"


@pytest.mark.parametrize("stream", [False, True])
async def test_not_for_ever(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        Making(it.run_service, monkeypatch)
        peer = await it.connect()
        began = trio.current_time()
        with pytest.raises(NsmError, match=r"it is being built\. The code was not run") as error:
            await peer.call("run", env="python", code="x", stream=stream)
        assert error.value.code == "environment-unavailable"
        assert trio.current_time() - began == pytest.approx(PATIENCE_S)


@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_cancels_waits_no_more(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        making = Making(it.run_service, monkeypatch)
        peer = await it.connect()
        began = trio.current_time()
        call = await peer.start("run", env="python", code="x", stream=stream)
        await making.asked.wait()
        await peer.send(Cancel(call))
        with pytest.raises(NsmError, match="it is being built"):
            await peer.answer(call)
        assert trio.current_time() - began < PATIENCE_S
