"""Many one-shots at once, in real jails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import supervisor

if TYPE_CHECKING:
    from pathlib import Path

BURST = 50


@pytest.mark.slow
def test_fifty_one_shots_at_once_where_ten_sessions_may_be(short_dir: Path) -> None:
    answers: dict[int, str] = {}

    async def burst(socket_path: str) -> None:
        async with nsm.AsyncClient(socket_path=socket_path, autostart=False) as client:

            async def one(number: int) -> None:
                result = await client.run(f"echo {number}; ls /workspace", env="bash")
                answers[number] = result.stdout

            async with trio.open_nursery() as nursery:
                for number in range(BURST):
                    nursery.start_soon(one, number)

    with supervisor(short_dir, config="[session]\nmax_sessions = 10\n") as it:
        trio.run(burst, it.socket)
        assert answers == {number: f"{number}\n" for number in range(BURST)}
        with it.client() as client:
            (kind,) = client.pool().kinds
            # The first ten; the others waited for their turn.
            assert (kind.env, kind.hits + kind.misses) == ("bash", 10)
            assert kind.wanted > 2
            assert kind.memory_bytes is None or kind.memory_bytes > 100_000
