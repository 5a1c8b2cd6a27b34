"""Another version of nsm takes sessions over, is refused, leaves them alone, or cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, end_supervisor, supervisor, write_program
from nsm.wire.errors import CannotStartError, UnreadableSessionError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = pytest.mark.jail

PROGRAM = """import sys
from nsmd.fdstore import handover, records
{change}
from nsmd.app.main import main
sys.exit(main())
"""
THIS = ""
OTHER = "records.VERSION = 0"
"""A version that cannot read the records of this one."""


class Installed:
    """The program of a supervisor, which can be replaced by that of another version."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "nsm-supervisor"
        self.install(THIS)

    def install(self, change: str) -> None:
        write_program(self.path, PROGRAM.format(change=change))


@pytest.fixture
def installed(short_dir: Path) -> Installed:
    return Installed(short_dir)


@pytest.fixture
def first(short_dir: Path, installed: Installed) -> Generator[Supervisor]:
    with supervisor(short_dir, variables={"NSM_SUPERVISOR": str(installed.path)}) as it:
        it.variables["NSM_SUPERVISOR"] = str(installed.path)
        yield it


@pytest.mark.slow
def test_a_version_that_cannot_take_sessions_over_is_refused(
    first: Supervisor, installed: Installed
) -> None:
    with first.client() as client:
        client.run("x = 41", env="python", session="a")
        installed.install(OTHER)
        with pytest.raises(nsm.NsmError, match=r"take over session a .*version 1") as caught:
            client.reload()
        assert caught.value.code == "start-failed"
        assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        client.reload(force=True)
        assert client.sessions() == []
        assert client.run("print('x' in dir())", env="python", session="a").stdout == "False\n"


def test_sessions_that_another_version_cannot_read_wait_for_one_that_can(
    first: Supervisor, installed: Installed
) -> None:
    with first.client() as client:
        for name in ("a", "b"):
            client.run("x = 41", env="python", session=name)
        ids = {row.name: row.id for row in client.sessions()}
    first.kill()
    installed.install(OTHER)
    try:
        listed = first.run("nsm", "ps").stdout
        assert listed.count("unreadable") == 2
        with nsm.Client(socket_path=first.socket, scope="test", autostart=False) as client:
            assert [(row.name, row.id) for row in client.sessions()] == list(ids.items())
            with pytest.raises(UnreadableSessionError, match="nothing was run"):
                client.run("x", env="python", session="a")
            said = first.run("nsm", "run", "-s", ids["a"], "-e", "python", "1")
            assert "nothing was run" in said.stderr
            assert client.run("print(6)", env="python", session="c").stdout == "6\n"
            (killed,) = client.kill(["b"]).killed
            assert (killed.id, killed.name) == (ids["b"], "b")
            assert "1 x session" in first.run("nsm", "doctor").stdout
            # It becomes the same version, then one that can use them.
            said = first.run("nsm", "reload")
            assert (said.returncode, "session a, which lives on" in said.stderr) == (1, True)
            installed.install(THIS)
            assert first.run("nsm", "reload").returncode == 0
            assert {row.name for row in client.sessions()} == {"a", "c"}
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
    finally:
        end_supervisor(first.socket)


# A supervisor that cannot start, while sessions of an earlier one are kept.


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
