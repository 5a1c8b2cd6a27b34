"""`nsm doctor` in a box: each thing that may be wrong there, with a supervisor made of handlers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import answer
from nsm.cli.verbs import doctor
from nsm.jail import proxyvariables
from nsm.wire.errors import ForbiddenError, NsmError

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import Exchange, FakeSupervisor
    from nsm.checks import HostCheck

ENVIRONMENT = samples.environment_row()

BROKEN = samples.environment_row(
    name="old", available=False, program="", problem="its program is gone"
)


@pytest.fixture
def supervisor(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    """One in which all is well, for a box without programs of the host."""
    monkeypatch.delenv("https_proxy", raising=False)
    supervisor.handlers |= {
        "envs": answer(environments=[ENVIRONMENT, BROKEN]),
        "run": answer(**samples.run_result()),
        "bridge_programs": refusing(ForbiddenError("not given")),
    }
    return supervisor


def refusing(error: NsmError) -> Any:
    def handler(_exchange: Exchange) -> dict[str, Any]:
        raise error

    return handler


def found(name: str, tools: str = "/nowhere") -> HostCheck:
    return next(check for check in doctor.checks_in_box(tools) if check.name == name)


def test_each_part_has_a_row(supervisor: FakeSupervisor, tmp_path: Path) -> None:
    for name in ("nsm", "nsm-mcp"):
        (tmp_path / name).touch(mode=0o755)
    states = {check.name: check.status for check in doctor.checks_in_box(str(tmp_path))}
    assert states == {
        "box": "ok",
        "programs": "ok",
        "supervisor": "ok",
        "environment old": "warn",
        "code": "ok",
        "bridge": "ok",
        "network": "ok",
    }
    assert supervisor.requests[1].args["code"] == "1"
    assert found("programs").status == "warn"


def test_a_box_without_network_and_one_whose_proxy_is_gone(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(proxyvariables, "PROXY_PORT", 1)
    assert found("network").status == "warn"
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    assert "none, as was asked for" in found("network").detail


def test_the_verb_in_a_box(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    monkeypatch.setattr(doctor, "in_a_box", lambda: True)
    assert json.loads(nsm("doctor", "--json").out)["ok"] is True
    supervisor.close()
    code, out, _ = nsm("doctor")
    assert (code, "fail  supervisor" in out) == (1, True)
