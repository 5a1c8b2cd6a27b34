# pyright: basic, reportMissingImports=false
"""A client in a process of its own that runs small programs in one way, and checks each verdict.

    evals_client.py WAY PLACE NUMBER

The place is an interpreter for cold jails, an image for verifiers, else a supervisor's socket. It
speaks as `load_client.py` does, but a line on its input is how many of the programs run at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from shlex import join
from subprocess import DEVNULL, PIPE
from typing import Any

import nsm
from small_programs import LIMIT_S, SmallProgram, Verdict, programs

Ended = tuple[int | None, str]
"""Exit code of a program, and what it printed."""

Run = Callable[[str, float | None], Awaitable[Ended]]
"""Runs code with a time limit."""

TIMED_OUT = 124


async def main() -> None:
    """Connect, then run all programs when told to; all verdicts have to be right."""
    way, place, count = sys.argv[1:]
    chosen = list(programs(int(count)))
    if run := None if way == "map" else await WAYS[way](place):
        await run("", None)
    print("ready", flush=True)
    for line in sys.stdin:
        began_s, at_once = time.perf_counter(), round(float(line))
        found: dict[int, Verdict] = {}
        if run:
            waiting = enumerate(chosen)
            await asyncio.gather(*[work(run, waiting, found) for _ in range(at_once)])
        else:
            fresh = (nsm.FreshProgram(each.code, each.timeout_s) for each in chosen)
            with nsm.Client(socket_path=place, autostart=False, project=None) as client:
                for result in client.map(fresh, session="evals", env="python", at_once=at_once):
                    found[result.number] = verdict(result.exit_code, result.stdout)
        took_s = time.perf_counter() - began_s
        wrong = [(each, found[n]) for n, each in enumerate(chosen) if found[n] != each.expected]
        assert not wrong, f"{len(wrong)} of {count} verdicts are wrong, such as {wrong[0]}"
        print(json.dumps({"took_s": took_s, "samples_ms": [0] * len(found)}), flush=True)


async def work(
    run: Run, waiting: Iterator[tuple[int, SmallProgram]], found: dict[int, Verdict]
) -> None:
    """Run one program after the other."""
    for number, program in waiting:
        try:
            found[number] = verdict(*await run(program.code, program.timeout_s))
        except TimeoutError:
            found[number] = "timeout"


def verdict(exit_code: int | None, stdout: str) -> Verdict:
    """Judge what a program did."""
    if exit_code == TIMED_OUT:
        return "timeout"
    return "pass" if exit_code == 0 and stdout.endswith("ok\n") else "fail"


async def one_shot(socket_path: str) -> Run:
    """Each in a jail of its own."""
    client = nsm.AsyncClient(socket_path=socket_path, autostart=False, project=None)
    await client.__aenter__()  # until the process ends

    async def run(code: str, limit_s: float | None) -> Ended:
        done = await client.run(code, env="python", timeout_s=limit_s)
        return done.exit_code, done.stdout

    return run


async def cold(python: str) -> Run:
    """Each in a jail of bubblewrap's, as somebody grades without nsm."""
    from peers.cold import jail  # noqa: PLC0415 - as below: other ways do without

    command = [*jail(python), "--die-with-parent", "--", python, "-I", "-S", "-"]

    async def run(code: str, limit_s: float | None) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            async with asyncio.timeout(limit_s):
                stdout, _ = await process.communicate(code.encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return process.returncode, stdout.decode()

    return run


async def inspect_ai(_place: str) -> Run:
    """`exec` of inspect_ai's sandboxes."""
    from nsm.integrations.inspect_ai import NsmConfig, NsmSandboxEnvironment  # noqa: PLC0415

    made = await NsmSandboxEnvironment.sample_init("evals", NsmConfig(fresh=True), {})
    sandbox: Any = made["default"]

    async def run(code: str, limit_s: float | None) -> Ended:
        done = await sandbox.exec(["python3", "-c", code], timeout=limit_s)
        return done.returncode, done.stdout

    return run


async def nemo_gym(_place: str) -> Run:
    """`exec` of NeMo Gym's sandboxes."""
    from nemo_gym.sandbox.providers.base import SandboxSpec  # noqa: PLC0415

    from nsm.integrations.nemo_gym import NsmSandboxProvider  # noqa: PLC0415

    provider = NsmSandboxProvider(fresh=True)
    handle = await provider.create(SandboxSpec())

    async def run(code: str, limit_s: float | None) -> Ended:
        done = await provider.exec(handle, join(["python3", "-c", code]), timeout_s=limit_s)
        timed_out = done.error_type == "timeout"
        return TIMED_OUT if timed_out else done.return_code, done.stdout or ""

    return run


async def smolagents(_place: str) -> Run:
    """Steps of smolagents' executors, which have one time limit each."""
    from smolagents.monitoring import AgentLogger, LogLevel  # noqa: PLC0415
    from smolagents.utils import AgentError  # noqa: PLC0415

    from nsm.integrations.smolagents import NsmExecutor  # noqa: PLC0415

    quiet = AgentLogger(level=LogLevel.OFF)  # it prints errors
    executors = {
        limit_s: NsmExecutor(logger=quiet, fresh=True, timeout_s=limit_s)
        for limit_s in (None, LIMIT_S)
    }

    async def run(code: str, limit_s: float | None) -> Ended:
        try:
            done = await asyncio.to_thread(executors[limit_s].run_code_raise_errors, code)
        except AgentError as error:
            return TIMED_OUT if "The time limit" in error.message else 1, ""
        return 0, done.logs

    return run


async def verifiers(image: str) -> Run:
    """`run` of verifiers' runtimes, which knows no time limits."""
    from nsm.integrations.verifiers import NsmImageConfig, NsmImageRuntime  # noqa: PLC0415

    runtime = NsmImageRuntime(NsmImageConfig(image=image, fresh=True))
    await runtime.start()

    async def run(code: str, limit_s: float | None) -> Ended:
        async with asyncio.timeout(limit_s):
            done = await runtime.run(["python3", "-c", code], {})
        return done.exit_code, done.stdout

    return run


WAYS: dict[str, Callable[[str], Awaitable[Run]]] = {
    "one-shot": one_shot,
    "cold": cold,
    "inspect-ai": inspect_ai,
    "nemo-gym": nemo_gym,
    "smolagents": smolagents,
    "verifiers": verifiers,
}

if __name__ == "__main__":
    asyncio.run(main())
