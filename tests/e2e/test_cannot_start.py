"""A supervisor that cannot start, while sessions of an earlier one are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e_support import end_supervisor, supervisor, write_program
from nsm.wire.errors import CannotStartError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.jail


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
def test_neither_a_mistake_nor_a_fault_ends_a_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    """The mistake is named at once; the fault comes once the sessions are taken over."""
    module, _, name = broken.partition(".")
    program = tmp_path / "nsm-supervisor"
    write_program(program, BROKEN.format(module=module, name=name))
    with supervisor() as it:
        for variable, value in it.variables.items():
            monkeypatch.setenv(variable, value)
        with it.client() as client:
            client.run("x = 41", env="python", session="a")
            it.kill()
            config = it.directory / "config" / "nsm" / "config.toml"
            config.parent.mkdir(parents=True)
            config.write_text("[session]\nmax_session = 3\n")
            with pytest.raises(CannotStartError, match="The code was not run") as caught:
                client.run("x", env="python", session="a")
        assert "max_session" in caught.value.message
        said = it.run("nsm", "ps")
        assert "sessions of an earlier one are kept" in said.stderr
        assert "max_session" in said.stderr
        config.unlink()
        it.variables["NSM_SUPERVISOR"] = str(program)
        assert "did not start: ValueError: a fault" in it.run("nsm", "ps").stderr
        del it.variables["NSM_SUPERVISOR"]
        try:
            assert it.run("nsm", "ps").stdout.splitlines()[1].split()[1] == "a"
            with it.client() as client:
                assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        finally:
            end_supervisor(it.socket)
