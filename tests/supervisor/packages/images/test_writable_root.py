"""Sessions that may change an image's files, each in an overlay of its own; in real jails."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_world import (
    Layout,
    copied,
    environment_of,
    file,
    folder,
    give_to_jails,
    layer,
    make_image,
    make_store,
    named_launcher,
    symlink,
)
from isolation.stage import open_stage
from isolation.weaken import Weakness
from isolation.weakjails import WeakLauncher
from isolation.weaknesses import NOT_CLOSED
from nsm.dataclass import replace
from nsmd.jail.project import NoWritableRootError
from nsmd.jail.templates import open_templates
from nsmd.model.policy import INODES_PER_MB
from realjail import (
    jail_spec,
    launched,
    mount_of,
    open_directory,
    open_session,
    talking_to,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsmd.jail.launcher import BwrapLauncher
    from nsmd.model.values import Environment
    from realjail import LiveSession

pytestmark = pytest.mark.jail

PROBES = """
import errno, json, os, stat
def tried(call, *given):
    try:
        call(*given)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
own = ("/dev", "/proc", "/project", "/run", "/run/nsm", "/tmp", "/workspace")
moved = {tried(os.rename, path, path + "-moved") for path in own}
not_ours = ("/run/nsm/new", "/dev/new", "/project/new")
written = {tried(os.open, path, os.O_WRONLY | os.O_CREAT) for path in not_ours}
whiteout = tried(os.mknod, "/whiteout", 0o600 | stat.S_IFCHR, 0)
tried(os.setxattr, "/app", "user.overlay.opaque", b"y")
print(json.dumps([[*moved], [*written], [whiteout], os.listdir("/app"), os.listdir("/")]))
"""


@asynccontextmanager
async def made(
    overlay_mb: int = 8, launcher: BwrapLauncher | None = None
) -> AsyncGenerator[tuple[Environment, LiveSession, Path]]:
    """Make a session of an image with Bash whose root directory it may change.

    Gives the environment, the session, and the image's files on the host.
    """
    bash, cat = (os.path.realpath(str(shutil.which(name))) for name in ("bash", "cat"))
    with open_directory() as place:
        make_store(place)
        layout = Layout(place / "layout")
        programs = [*copied(bash, cat), symlink("opt/bash", bash), symlink("opt/cat", cat)]
        # Where sessions have directories of their own, the image has links that lead elsewhere.
        files = [folder("app"), file("app/data", "of the image"), symlink("run", "app")]
        layout.add([layer(*programs, *files, symlink("project", "/app"))], Env=["PATH=/opt"])
        image = f"oci:{layout.place}"
        built = await make_image(place, image, root="overlay")
        environment = environment_of(place, built, image, root="overlay")
        root = Path(built.path, "root")
        give_to_jails(root)
        (place / "project").mkdir()
        (place / "project" / "file").write_text("of the project")
        spec = jail_spec(environment, mount_of(place / "project"))
        spec = replace(spec, sizes=replace(spec.sizes, overlay_mb=overlay_mb))
        async with (
            open_templates(launcher or named_launcher(place)) as forking,
            launched(forking, spec) as jail,
            talking_to(jail, "bash") as session,
        ):
            yield environment, session, root


async def test_a_session_changes_its_own_copy_of_an_image() -> None:
    async with made() as (environment, session, root):
        ran = await session.run(
            "echo mine >/app/data; echo new >/new; cat /app/data /new /project/file; echo >/run/x"
        )
        assert (ran.stdout, ran.stderr) == ("mine\nnew\nof the project", "")
        assert (root / "app" / "data").read_text() == "of the image"
        assert sorted(os.listdir(root / "app")) == ["data"]
        assert '"Ada"' in (await session.run("cat /etc/gitconfig")).stdout
        policy = json.loads((await session.run("cat /run/nsm/policy.json")).stdout)
        assert [each for each in policy["mounts"] if each["path"] == "/"] == [
            {"path": "/", "kind": "overlay", "mode": "cow", "size_mb": 8, "inodes": 8 * 128}
        ]
        # In a jail of its own there is no such root, and nothing starts without it.
        with pytest.raises(NoWritableRootError, match="only forks of a template"):
            async with open_session(environment):
                pass


async def test_the_copy_is_bounded_and_leads_to_nothing_else() -> None:
    async with made(overlay_mb=2) as (environment, session, root):
        moved, written, whiteout, app, shown = await probed(environment, session)
        assert (moved, written, whiteout) == (["EBUSY"], ["EROFS"], ["EPERM"])
        assert app == ["data"]
        own = {"dev", "etc", "proc", "project", "run", "tmp", "workspace"}
        assert set(shown) == {path.name for path in root.iterdir()} | own
        ran = await session.run("printf '%03000000d' 1 >/big")
        assert "No space left on device" in ran.stderr
        ran = await session.run("i=0; while >/app/$((i++)); do :; done; echo $i")
        assert int(ran.stdout) < 2 * INODES_PER_MB


async def probed(environment: Environment, session: LiveSession) -> list[list[str]]:
    """Return what the probes found."""
    assert environment.image is not None
    python = shlex.join(environment.image.python)
    ran = await session.run(f"{python} -I -c {shlex.quote(PROBES)}")
    found: list[list[str]] = json.loads(ran.stdout)
    return found


NOT_PINNED = """
mount = space["mount"]
def mount_others(source, target, kind, flags=0, options=""):
    if flags != space["MS_BIND"] or source != target:
        mount(source, target, kind, flags, options)
space["mount"] = mount_others
"""
"""Patch of the template with which directories above mounts are no mounts themselves."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("probe", "weakness"),
    [(0, Weakness(template=NOT_PINNED)), (1, NOT_CLOSED)],
    ids=["moved", "written"],
)
async def test_the_probes_detect_success(probe: int, weakness: Weakness) -> None:
    """Leave out what holds them. Every overlay of the kernel refuses whiteouts."""
    with open_stage() as stage:
        weak = WeakLauncher(weakness, stage)
    async with made(launcher=weak) as (environment, session, _):
        found = await probed(environment, session)
        assert "done" in found[probe], found
