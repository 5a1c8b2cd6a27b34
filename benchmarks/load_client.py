"""A client in a process of its own that repeats one call for as long as it is told to.

load_client.py exec SOCKET     one statement in a live session of this client's own
load_client.py fresh SOCKET    one statement in a fresh jail, which is thrown away
load_client.py map SOCKET      one program in a fresh interpreter of a session
load_client.py kernel FILE     one statement in the Jupyter kernel of a connection file
load_client.py cold PYTHON     a cold start of bubblewrap and Python that runs one statement

Writes a line when it is connected. Then each line on its input is a number of seconds, answered by
a line of JSON: how many seconds it took, and milliseconds of each call. It ends with its input.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import nsm

CODE = "print(1 + 1)"
"""Code for fresh jails. Cold starts, which do not capture output, run code that prints nothing."""

ENDING_AT_ONCE = 2
"""Cold jails that may still be ending while the next one starts."""


def main() -> int:
    """Connect, then work when told to."""
    kind, place = sys.argv[1:]
    with KINDS[kind](place) as call:
        call()
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(repeat(call, float(line))), flush=True)
    return 0


def repeat(call: Callable[[], object], seconds: float) -> dict[str, object]:
    """Call again and again for some seconds."""
    samples_ms: list[float] = []
    started_s = now_s = time.perf_counter()
    ends_s = started_s + seconds
    while now_s < ends_s:
        began_s = now_s
        call()
        now_s = time.perf_counter()
        samples_ms.append(round((now_s - began_s) * 1000, 3))
    return {"took_s": now_s - started_s, "samples_ms": samples_ms}


@contextmanager
def session_calls(socket_path: str) -> Generator[Callable[[], object]]:
    """Calls in one live session."""
    import nsm  # noqa: PLC0415 - clients of other kinds do without

    with nsm.Client(socket_path=socket_path, autostart=False) as client:
        name = f"load-{os.getpid()}"
        yield lambda: succeed(client.run("pass", env="python", session=name))
        client.kill([name])


@contextmanager
def fresh_calls(socket_path: str) -> Generator[Callable[[], object]]:
    """Calls that each have a jail of their own."""
    import nsm  # noqa: PLC0415 - clients of other kinds do without

    with nsm.Client(socket_path=socket_path, autostart=False) as client:
        yield lambda: succeed(client.run(CODE, env="python"))


@contextmanager
def programs(socket_path: str) -> Generator[Callable[[], object]]:
    """Results of programs in fresh interpreters, as many at once as there are processors."""
    import nsm  # noqa: PLC0415 - clients of other kinds do without

    with (
        nsm.Client(socket_path=socket_path, autostart=False) as client,
        client.map(itertools.repeat(CODE), session=f"load-{os.getpid()}", env="python") as results,
    ):
        yield lambda: succeed(next(results))


def succeed(result: nsm.RunResult | nsm.FreshResult) -> None:
    """Calls that fail are not counted, they end everything."""
    assert result.exit_code == 0, result


@contextmanager
def kernel_calls(connection_file: str) -> Generator[Callable[[], object]]:
    """Calls in one live kernel."""
    module: Any = importlib.import_module("jupyter_client.blocking")
    client = module.BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield lambda: client.execute("pass", reply=True, timeout=60)
    client.stop_channels()


@contextmanager
def cold_calls(python: str) -> Generator[Callable[[], object]]:
    """Cold starts."""
    from peers.cold import Cold  # noqa: PLC0415 - clients of other kinds do without

    cold = Cold(python)

    def call() -> None:
        cold.once()
        cold.reap(left=ENDING_AT_ONCE)

    yield call
    cold.reap()


KINDS = {
    "exec": session_calls,
    "fresh": fresh_calls,
    "map": programs,
    "kernel": kernel_calls,
    "cold": cold_calls,
}


if __name__ == "__main__":
    sys.exit(main())
