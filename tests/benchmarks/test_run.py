"""The program itself: it ends what it started, and goes on without what is not there."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = [sys.executable, str(ROOT / "benchmarks/run.py")]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmarks find `private_supervisor`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tools")])


def test_an_interrupted_run_says_so_and_leaves_nothing_behind() -> None:
    """tests/conftest.py looks for what is left."""
    with subprocess.Popen(
        [*RUN, "--only", "commands", "--rounds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read(len("bench: commands ..."))
        assert said == b"bench: commands ..."
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
    assert process.returncode == 130, rest
    assert b"everything that was started is ended" in rest


def test_a_peer_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tools: None
) -> None:
    monkeypatch.setitem(sys.modules, "jupyter_client.manager", None)
    from bench import Bench
    from measure import LeftOut
    from parts import part

    with ExitStack() as stack:
        (finding,) = part("exec")(Bench(rounds=1, most_sessions=1, stack=stack))
    assert isinstance(finding, LeftOut)
    assert "make bench" in finding.why


def test_boxes_are_left_out_where_root_measures(
    monkeypatch: pytest.MonkeyPatch, tools: None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    from bench import Bench
    from measure import LeftOut
    from parts import part

    with ExitStack() as stack:
        (finding,) = part("box")(Bench(rounds=1, most_sessions=1, stack=stack))
    assert isinstance(finding, LeftOut)
    assert "ordinary user" in finding.why


@pytest.mark.parametrize(
    "arguments",
    [["--rounds", "0"], ["--only", "nothing"], ["--sessions", "5000"], ["--compare", "missing"]],
)
def test_wrong_usage_is_told_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tools: None
) -> None:
    import run

    with pytest.raises(SystemExit) as exit_:
        run.main(arguments)
    assert exit_.value.code == 2
    assert arguments[0] in capsys.readouterr().err
