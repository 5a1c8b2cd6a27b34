"""A supervisor that cannot start, while sessions of an earlier one are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import nsm
from e2e_support import end_supervisor, supervisor, write_program
from nsm.wire.errors import CannotStartError

pytestmark = pytest.mark.jail


def test_a_mistake_is_named_at_once_and_sessions_wait(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short_dir / "config" / "nsm" / "config.toml"
    config.parent.mkdir(parents=True)
    with supervisor(short_dir) as it:
        for name, value in it.variables.items():
            monkeypatch.setenv(name, value)
        with it.client() as client:
            client.run("x = 41", env="python", session="a")
            it.kill()
            config.write_text("[session]\nmax_session = 3\n")
            with pytest.raises(CannotStartError, match="The code was not run") as caught:
                client.run("x", env="python", session="a")
            assert "max_session" in caught.value.message
            said = it.run("nsm", "ps")
            assert "sessions of an earlier one are kept" in said.stderr
            assert "max_session" in said.stderr
            config.unlink()
        try:
            with nsm.Client(socket_path=it.socket, scope="test") as client:
                assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        finally:
            end_supervisor(it.socket)


BROKEN = """import sys
from nsmd.app import {module}
def broken(*_: object, **__: object) -> None:
    raise ValueError("a fault")
{module}.{name} = broken
from nsmd.app.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "broken",
    [
        "daemon.program_version",
        pytest.param("daemon.Recorder", marks=pytest.mark.slow),
        pytest.param("services.FrontEnds", marks=pytest.mark.slow),
    ],
)
def test_a_fault_in_the_supervisor_ends_no_session(short_dir: Path, broken: str) -> None:
    """A supervisor that takes the sessions over, and fails then."""
    module, _, name = broken.partition(".")
    program = short_dir / "nsm-supervisor"
    write_program(program, BROKEN.format(module=module, name=name))
    with supervisor(short_dir) as it:
        with it.client() as client:
            client.run("x = 41", env="python", session="a")
        it.kill()
        it.variables["NSM_SUPERVISOR"] = str(program)
        assert "did not start: ValueError: a fault" in it.run("nsm", "ps").stderr
        del it.variables["NSM_SUPERVISOR"]
        try:
            assert it.run("nsm", "ps").stdout.splitlines()[1].split()[1] == "a"
            with nsm.Client(socket_path=it.socket, scope="test", autostart=False) as client:
                assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        finally:
            end_supervisor(it.socket)
