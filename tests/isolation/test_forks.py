"""Defences of a fork whose own lock-down has failed: the template's jail around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isolation.stage import Stage, open_stage
from isolation.weaken import POWERFUL, Arguments, Weakness
from isolation.weakjails import WeakLauncher, forking
from realjail import environments, is_fork, jail_spec, launched, needs_bwrap, talking_to

pytestmark = [pytest.mark.jail, needs_bwrap]

ATTACKS = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
REMOUNT, BIND, REC, MOVE, DETACH, NEWNS, NEWUSER = 32, 4096, 16384, 8192, 2, 0x20000, 0x10000000
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR, FROM_EMPTY, CLONE = 428, 429, 442, 4, 1
WRITABLE = struct.pack("4Q", 0, 1, 0, 0)  # clears MOUNT_ATTR_RDONLY
assert int(dict(line.split(":\\t") for line in open("/proc/self/status"))["CapEff"], 16)
for name in ("other", "moved", "root"):
    os.makedirs(f"/tmp/{name}", exist_ok=True)
def tree(recursive):
    fd = libc.syscall(OPEN_TREE, -100, b"/project", CLONE | recursive)
    libc.syscall(MOUNT_SETATTR, fd, b"", 0x1000, WRITABLE, 32)
    libc.syscall(MOVE_MOUNT, fd, b"", -100, b"/tmp/moved", FROM_EMPTY)
def pivot():
    libc.mount(b"/", b"/tmp/root", None, BIND | REC, None)
    os.chdir("/tmp/root")
    libc.pivot_root(b".", b".")
    libc.umount2(b".", DETACH)
ways = [
    lambda: libc.mount(None, b"/project", None, REMOUNT | BIND, None),
    lambda: libc.mount(None, b"/", None, REMOUNT, None),
    lambda: libc.umount2(b"/project", DETACH),
    lambda: libc.syscall(MOUNT_SETATTR, -100, b"/project", 0, WRITABLE, 32),
    lambda: libc.mount(b"/project", b"/tmp/other", None, BIND, None),
    lambda: libc.mount(None, b"/tmp/other", None, REMOUNT | BIND, None),
    lambda: libc.mount(b"/project", b"/tmp/moved", None, MOVE, None),
    lambda: tree(0),
    lambda: tree(0x8000),
    lambda: libc.unshare(NEWNS),
    lambda: libc.mount(None, b"/project", None, REMOUNT | BIND, None),
    pivot,
]
written = []
for number, way in enumerate(ways):
    way()
    for path in ("/project", "/tmp/other", "/tmp/moved", "/project/..", "/usr", "/etc", "/run"):
        for name in ("data", "created"):
            try:
                with open(f"{path}/{name}", "a" if name == "created" else "r+") as file:
                    file.write("attacked")
            except OSError:
                continue
            if os.stat(f"{path}/{name}").st_dev != os.stat("/tmp").st_dev:
                written.append((number, path, name))
print(written)
"""


def _writable_project(words: Arguments, stage: Stage) -> Arguments:
    place = words.index("/project")
    return [*words[: place - 2], "--bind", stage.project.path, *words[place:]]


@pytest.mark.parametrize("locked", [True, False])
async def test_all_privileges_over_its_own_do_not_reach_the_template_s_mounts(locked: bool) -> None:
    """mount_namespaces(7): the kernel locks mounts that come from a more privileged namespace."""
    python = environments()["python"]
    weak = Weakness(template=POWERFUL)
    if not locked:
        weak = replace(weak, arguments=_writable_project)
    with open_stage() as stage:
        project = Path(stage.project.path)
        before = sorted(project.iterdir())
        launcher = WeakLauncher(weak, stage)
        async with (
            forking(launcher) as forks,
            launched(forks, jail_spec(python, stage.project)) as jail,
            talking_to(jail, "python") as session,
        ):
            assert is_fork(jail)
            outcome = await session.run(ATTACKS)
        untouched = (project / "data").read_text() == "data"
        assert untouched is locked
        assert (outcome.stdout == "[]\n") is locked, outcome.stderr
        assert (sorted(project.iterdir()) == before) is locked


READ_ADDRESSES = """
with open("/proc/kallsyms") as file:
    print([address.strip("0") for address in file.readline().split()[:1]])
"""


@pytest.mark.parametrize(("first", "read"), [("ffffffff81000000", "[]"), ("0", "['']")])
async def test_addresses_of_the_kernel_are_covered_where_it_tells_them(
    first: str, read: str
) -> None:
    """To the template, as to everyone whom kernel.kptr_restrict does not keep from it."""
    told = Weakness(
        template=f"""
import io
space["open"] = lambda path, *rest, **more: (
    io.BytesIO(b"{first} T _text") if path == "/proc/kallsyms" else open(path, *rest, **more))
"""
    )
    with open_stage() as stage:
        async with (
            forking(WeakLauncher(told, stage)) as forks,
            launched(forks, jail_spec(environments()["python"])) as jail,
            talking_to(jail, "python") as session,
        ):
            assert is_fork(jail)
            assert (await session.run(READ_ADDRESSES)).stdout == f"{read}\n"
