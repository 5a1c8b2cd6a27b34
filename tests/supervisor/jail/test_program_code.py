"""A program compiled for the Python that will run it."""

from __future__ import annotations

import logging
import marshal
import sys
from pathlib import Path
from types import CodeType

import pytest
import trio

import sandbox_agent
from nsmd.jail.program_code import ProgramCode, source_of

OTHER = "/usr/bin/python3"


def agent_code() -> ProgramCode:
    return ProgramCode(sandbox_agent, "/run/nsm/agent.py")


def code_of(compiled: bytes) -> CodeType:
    code = marshal.loads(compiled[16:])
    assert isinstance(code, CodeType)
    return code


def file_names(code: CodeType) -> set[str]:
    nested = [c for c in code.co_consts if isinstance(c, CodeType)]
    return {code.co_filename}.union(*(file_names(c) for c in nested))


async def test_for_our_own_python_nothing_of_the_host_is_in_it() -> None:
    compiled = await agent_code().for_python(sys.executable)
    assert file_names(code_of(compiled)) == {"/run/nsm/agent.py"}


@pytest.mark.parametrize("python", [sys.executable, OTHER])
async def test_that_python_runs_it(python: str, tmp_path: Path) -> None:
    if not Path(python).exists():
        pytest.skip("not here: no system Python")
    file = tmp_path / "agent.py"
    file.write_bytes(await agent_code().for_python(python))
    command = [python, "-I", str(file), "--no-such-option", "x"]
    told = await trio.run_process(command, capture_stderr=True, check=False)
    assert b"no-such-option" in told.stderr


async def test_another_python_is_asked_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> "{count}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    code = agent_code()
    results: list[bytes] = []

    async def ask() -> None:
        results.append(await code.for_python(str(python)))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert count.read_text() == "\n"
    assert file_names(code_of(results[0])) == {"/run/nsm/agent.py"}
    assert len(set(results)) == 1


async def test_where_compiling_fails_the_source_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await agent_code().for_python("/opt/gone/python3") == source_of(sandbox_agent)
    assert "/opt/gone/python3" in caplog.text
