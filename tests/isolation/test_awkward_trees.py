"""Files that are hard to handle: the session that made them works on, and ends."""

from __future__ import annotations

import pytest

from isolation.probe import Kind
from isolation.weakjails import forking
from realjail import environments, jail_spec, launched, needs_bwrap, new_launcher, talking_to

pytestmark = [pytest.mark.jail, needs_bwrap]

TREES = r"""
import os
def deep(depth):
    "Deeper than any path may be long."
    here = os.open("/workspace", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
def named(name):
    with open(b"/workspace/" + name, "w"):
        pass
deep(1000)
os.mkfifo("/workspace/fifo")
os.symlink("loop", "/workspace/loop")
os.symlink("/proc/self/root/" * 200, "/workspace/far")
for name in (b"a\nb", b"\x1b[2J", b"\xff\xfe", b"-rf", b"n" * 255, b" ", b"*"):
    named(name)
with open("/workspace/sparse", "wb") as file:
    file.truncate(1 << 40)
os.mkdir("/tmp/many")
made = 0
try:
    while made < 20_000:
        os.close(os.open(f"/tmp/many/{made}", os.O_CREAT))
        made += 1
except OSError as error:
    print(error.strerror)
os.mkdir("/workspace/closed", 0)
os.chdir("/workspace/" + "/".join(["d" * 100] * 30))
"""

LEFT = """
import os, subprocess
os.chdir("/workspace")
print(len(os.listdir(b"/workspace")), os.stat("/workspace/sparse").st_blocks)
print(subprocess.run(["sh", "-c", "echo child"], capture_output=True).stdout)
"""


@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_a_session_survives_its_own_files(kind: Kind) -> None:
    python = environments()["python"]
    async with forking(new_launcher()) as launcher:
        one = new_launcher() if kind == "cold" else launcher
        async with (
            launched(one, jail_spec(python)) as jail,
            talking_to(jail, "python") as session,
        ):
            made = await session.run(TREES)
            left = await session.run(LEFT)
    assert not made.stderr, made.stderr
    assert made.stdout == "No space left on device\n", "files are limited in number, too"
    assert left.stdout == "13 0\nb'child\\n'\n", left.stderr
