"""No room, or no leave to write, where nsm keeps its files: code runs all the same.

The supervisor is in a mount namespace of its own, where its directories are a file system that is
full; what it has open there is reached through ``/proc``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
import restricted_mounts
from e2e_support import supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = pytest.mark.jail

ROOM_BYTES = 64 * 1024

FILL = ("/bin/sh", "-c", 'head -c 1M /dev/zero >"$0" 2>&-; exec "$@"')
"""Fills the file system with a file whose path follows, and becomes what follows that."""


@pytest.fixture
def place() -> Generator[Path]:
    """A private directory with a short path, and one for state in it."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as name:
        (Path(name) / "state").mkdir(mode=0o700)
        yield Path(name)


def inside(it: Supervisor, path: Path) -> Path:
    """The same path as the supervisor sees it."""
    return Path(f"/proc/{it.pid}/root{path}")


def client(it: Supervisor) -> nsm.Client:
    return nsm.Client(socket_path=str(inside(it, Path(it.socket))), scope="test", autostart=False)


def work(it: Supervisor) -> nsm.Status:
    """The main job."""
    with client(it) as connection:
        for env, code in (("python", "x = 41"), ("python", "print(x + 1)")):
            result = connection.run(code, env=env, session="a")
        assert result.stdout == "42\n"
        assert connection.run("echo $((41 + 1))", env="bash").stdout == "42\n"
        ended: list[object] = []
        connection.logs("a", on_entry=ended.append)
        assert len(ended) > 2
        return connection.status()


@pytest.mark.slow
def test_everything_is_full_from_the_beginning(place: Path) -> None:
    mount = restricted_mounts.command(f"tmpfs:{ROOM_BYTES}:{place}")
    fill = [*FILL, str(place / "filler")]
    with supervisor(place, within=[*mount, *fill]) as it:
        work(it)
        assert inside(it, place / "filler").stat().st_size > 0
        assert inside(it, place / "supervisor.lock").read_text() == ""
        inside(it, place / "filler").unlink()
        assert work(it).sessions == 1
    assert "does not say who holds it" in it.log.read_text()


def test_work_goes_on_while_the_disk_is_full_and_later(place: Path) -> None:
    mount = restricted_mounts.command(f"tmpfs:{ROOM_BYTES}:{place}")
    with supervisor(place, within=mount) as it:
        work(it)
        filler = inside(it, place / "filler")
        with filler.open("wb", 0) as file, pytest.raises(OSError, match="No space left"):
            any(file.write(bytes(4096)) == 0 for _ in range(ROOM_BYTES))
        work(it)
        filler.unlink()
        work(it)


def test_the_state_directory_is_read_only(place: Path) -> None:
    with supervisor(place, within=restricted_mounts.command(f"ro:{place / 'state'}")) as it:
        work(it)
        with client(it) as connection:
            assert connection.builds.list_all() == []
    assert list((place / "state").iterdir()) == []
