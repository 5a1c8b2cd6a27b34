"""nsm itself in a box."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from box.world import World
from nsm import __version__
from nsmbox.host import nsm_itself
from nsmbox.model.plan import Mount

SHOWN = ("/usr", "/nix/store")


def test_the_programs_have_the_same_place_whatever_the_host_has() -> None:
    here = nsm_itself.NsmPaths(
        python="/home/u/.pyenv/versions/3.12.1/bin/python3.12",
        library=("/home/u/.pyenv/versions/3.12.1/lib/python3.12",),
        packages=(("nsm", "/home/u/nsm/clients/nsm"), ("cbor2", "/home/u/v/cbor2")),
    )
    there = nsm_itself.NsmPaths(
        python="/usr/bin/python3.11",
        library=("/usr/lib/python3.11",),
        packages=(("nsm", "/usr/lib/python3/dist-packages/nsm"), ("cbor2", "/opt/cbor2")),
    )
    assert [(m.kind, m.target, m.source) for m in nsm_itself.mounts(here)] == [
        ("ro-bind", here.python, here.python),
        ("ro-bind", here.library[0], here.library[0]),
        ("ro-bind", "/run/nsm/lib/nsm", "/home/u/nsm/clients/nsm"),
        ("ro-bind", "/run/nsm/lib/cbor2", "/home/u/v/cbor2"),
        ("symlink", "/run/nsm/python", here.python),
        ("ro-file", "/run/nsm/bin/nsm", ""),
        ("ro-file", "/run/nsm/bin/nsm-mcp", ""),
    ]
    assert [(m.kind, m.target) for m in nsm_itself.mounts(there)] == [
        (m.kind, m.target) for m in nsm_itself.mounts(here)[2:]
    ]
    assert nsm_itself.mounts(there)[-1] == nsm_itself.mounts(here)[-1]
    assert nsm_itself.mounts(there, shown=())[0].target == "/usr/bin/python3.11"


def arguments(mounts: tuple[Mount, ...]) -> list[str]:
    """Arguments of bwrap for these mounts; made files are left out."""
    told: list[str] = []
    for mount in mounts:
        match mount.kind:
            case "ro-bind":
                told += ["--ro-bind", mount.source, mount.target]
            case "symlink":
                told += ["--symlink", mount.source, mount.target]
            case _:
                pass
    return told


def in_a_jail(mounts: tuple[Mount, ...], files: Path, *command: str) -> str:
    """Run a command in a jail that has the host's /usr and these mounts only; return its output."""
    jail = [
        *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"),
        *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
        *("--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev"),
        *arguments(mounts),
        *("--ro-bind", str(files), "/run/nsm/bin"),
    ]
    done = subprocess.run(
        [*jail, *command],
        env={"PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.jail
def test_the_programs_run_where_nothing_else_of_nsm_is_shown(tmp_path: Path) -> None:
    found = nsm_itself.find()
    mounts = nsm_itself.mounts(found, SHOWN)
    files = tmp_path / "bin"
    files.mkdir()
    for mount in mounts:
        if mount.kind == "ro-file":
            file = files / os.path.basename(mount.target)
            file.write_bytes(mount.data)
            file.chmod(mount.mode)
    assert in_a_jail(mounts, files, "/run/nsm/bin/nsm-mcp", "--version").split()[-1] == __version__
    assert in_a_jail(mounts, files, "/run/nsm/bin/nsm", "--version").split()[-1] == __version__
    code = (
        "import sys; sys.path.insert(0, '/run/nsm/lib'); import nsm, cbor2; nsm.Client; "
        "print(*sys.path)"
    )
    assert in_a_jail(mounts, files, nsm_itself.PYTHON, "-IS", "-c", code)
    assert (
        in_a_jail(mounts, files, *nsm_itself.starter(("/bin/echo", "x y"), proxy=False)) == "x y\n"
    )


@pytest.mark.slow
@pytest.mark.jail
def test_a_box_can_be_of_a_program_of_nsms_own(shared_world: World) -> None:
    """The caller has the same program on PATH, made for the host."""
    for name in ("nsm", "nsm-mcp"):
        done = shared_world.box(name, "--version")
        assert (done.returncode, done.stdout.split()[-1:]) == (0, [__version__]), done.stderr
    done = shared_world.box("sh", "-c", "command -v nsm-mcp; nsm --version")
    assert done.stdout.split()[0] == nsm_itself.MCP_PROGRAM
