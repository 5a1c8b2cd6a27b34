"""The docstrings' examples run, against a supervisor that runs their Python in this process."""

from __future__ import annotations

import io
import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import nsm
import nsm.client.asynchronous
import nsm.client.blocking
import samples
from fakesupervisor import Exchange, FakeSupervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = re.compile(r"^( *)Example::\n\n((?:\1 {4}.*\n|\n)+)", re.MULTILINE)


def examples() -> Iterator[tuple[str, str]]:
    for where in (nsm, nsm.client.blocking, nsm.client.asynchronous, nsm.Client.run):
        assert where.__doc__ is not None
        for block in BLOCK.finditer(where.__doc__):
            yield where.__name__, textwrap.dedent(block[2])


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSupervisor]:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    namespaces: dict[str | None, dict[str, Any]] = {}

    def run(exchange: Exchange) -> dict[str, Any]:
        out = io.StringIO()

        def print_there(*values: object) -> None:
            text = " ".join(map(str, values)) + "\n"
            out.write(text)
            if "stream" in exchange.args:
                exchange.output("stdout", text)

        namespace = namespaces.setdefault(exchange.args.get("session"), {})
        exec(exchange.args["code"], namespace | {"print": print_there}, namespace)
        return samples.run_result(stdout=out.getvalue())

    def kill(_exchange: Exchange) -> dict[str, Any]:
        return {"killed": [], "errors": []}

    with FakeSupervisor(path, run=run, kill=kill) as supervisor:
        yield supervisor


@pytest.mark.parametrize(("where", "code"), [*examples()])
def test_an_example_runs(
    supervisor: FakeSupervisor, where: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code, {"nsm": nsm})
    assert supervisor.requests
    if "nsm.client.blocking" not in where:
        assert capsys.readouterr().out
