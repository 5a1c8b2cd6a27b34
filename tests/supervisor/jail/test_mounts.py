"""A way to closed directories for jails of root, each time in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from realjail import needs_bwrap, open_directory

PROGRAM = """
import os, sys, trio
sys.path[:0] = {path!r}
base, project, replaced = {base!r}, {project!r}, {replaced!r}
from nsmd.jail import BwrapLauncher, enter_private_mounts
from realjail import BWRAP, environments, jail_spec, mount_of, open_session
from pathlib import Path

mounts = enter_private_mounts(base)
if mounts is None:
    print("REFUSED")
    raise SystemExit

async def main():
    launcher = BwrapLauncher(BWRAP, 65530, mounts=mounts)
    python = environments()["python"]
    code = "import os; print(sorted(os.listdir('/project')), open('/project/here').read())"
    for _ in range(2):
        async with open_session(python, mount_of(Path(project)), launcher=launcher) as session:
            outcome = await session.run(code)
            print(outcome.stdout.strip(), outcome.stderr)
    print(mounts)
    os.rename(replaced, project + "/old")
    os.mkdir(replaced)
    print(launcher.user.why_unreadable(project), len({{launcher.user.way_to(project), replaced}}))

trio.run(main)
"""


def run(base: Path, project: Path) -> str:
    program = PROGRAM.format(
        path=sys.path, base=str(base), project=str(project), replaced=str(project / "sub")
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    return told.stdout + told.stderr


@pytest.mark.jail
@needs_bwrap
@pytest.mark.root
def test_a_project_below_a_closed_directory_is_shown() -> None:
    with open_directory() as folder:
        project = folder / "closed" / "project"
        (project / "sub").mkdir(parents=True)
        (project / "here").write_text("hello")
        (folder / "closed").chmod(0o700)
        told = run(folder / "mounts", project)
        if told == "REFUSED\n":
            pytest.skip("not here: this root has no CAP_SYS_ADMIN")
        assert told.splitlines() == [
            "['here', 'sub'] hello ",
            "['here', 'sub'] hello ",
            f"<PrivateMounts {folder / 'mounts'} 1>",
            "None 2",
        ]
        # Nothing of it is seen on the host.
        assert list((folder / "mounts").iterdir()) == []
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="not here: needs an ordinary user")
def test_an_ordinary_user_is_refused() -> None:
    with open_directory() as folder:
        assert "no mount namespace for the supervisor" in run(folder / "mounts", folder)
