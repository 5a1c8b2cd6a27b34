"""Environments made from images, and sessions in them, in real jails.

Some may change the image's files, each in an overlay of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from image_world import (
    Layout,
    copied,
    environment_of,
    file,
    folder,
    give_to_jails,
    layer,
    libraries_of,
    make_image,
    make_store,
    named_launcher,
    other,
    symlink,
)
from isolation.stage import open_stage
from isolation.weaken import NOT_CLOSED, Weakness
from isolation.weakjails import WeakLauncher
from nsm.dataclass import replace
from nsm.wire.errors import PackagesFailedError
from nsmd.environments.builds.build_run import paths_in_use
from nsmd.jail.arguments import NAME_FILES
from nsmd.jail.project import NoWritableRootError
from nsmd.jail.templates import open_templates
from nsmd.model.policy import INODES_PER_MB
from nsmd.model.values import Environment, NetworkRule
from nsmd.packages.package_builds import Installed
from nsmd.packages.store import EnvironmentStore
from realjail import (
    jail_spec,
    launched,
    mount_of,
    new_launcher,
    open_directory,
    open_session,
    talking_to,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsmd.jail.launcher import BwrapLauncher
    from realjail import LiveSession


pytestmark = pytest.mark.jail


def exiting_program(status: int) -> bytes:
    """Make a static program for x86_64 that ends at once (elf(5)): exit(2) by its number."""
    code = b"\xb8\x3c\x00\x00\x00\xbf" + struct.pack("<I", status) + b"\x0f\x05"
    start, size = 0x400000, 64 + 56 + len(code)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, start + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, start, start, size, size, 4096) + code


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that the jails' user reaches."""
    with open_directory() as directory:
        make_store(directory)
        yield directory


@pytest.fixture(scope="module")
def bash_layer() -> bytes:
    """Return a layer with Bash and cat."""
    cat, bash = shutil.which("cat"), shutil.which("bash")
    assert cat is not None
    assert bash is not None
    paths = [os.path.realpath(bash), os.path.realpath(cat)]
    return layer(
        *copied(*paths),
        folder("app"),
        file("app/data", "of the image"),
        file("etc/os-release", "ID=made-here\n"),
        file("etc/ld.so.preload", "/app/evil.so\n"),
        symlink("link", "app/data"),
        other("dev/mem", b"3"),
        symlink("opt/bash", paths[0]),
    )


async def made_of(place: Path, layout: Layout) -> Environment:
    """Make an environment of a layout's image."""
    image = f"oci:{layout.place}"
    return environment_of(place, await make_image(place, image), image)


ETC = ("gitconfig", "group", "hosts", "nsswitch.conf", "os-release", "passwd", "resolv.conf")

PATH = "PATH=/opt:/usr/bin:/bin"


@pytest.fixture(scope="module")
def built(bash_layer: bytes) -> Iterator[tuple[Path, Installed, Environment]]:
    """Return an environment of an image with Bash, made once for several tests."""
    with open_directory() as place:
        make_store(place)
        layout = Layout(place / "layout")
        variables = [PATH, "GREETING=hello", "HOME=/root"]
        layout.add([bash_layer], tag="1", Env=variables, WorkingDir="/app")
        image = f"oci:{layout.place}:1"
        made = trio.run(make_image, place, image)
        yield place, made, environment_of(place, made, image)


async def test_sessions_have_the_images_files(built: tuple[Path, Installed, Environment]) -> None:
    _, made, environment = built
    assert (environment.interpreter, environment.program) == ("bash", "/opt/bash")
    assert environment.directory == "/app"
    async with open_session(environment) as session:
        ran = await session.run('cat /etc/os-release /link; echo "$GREETING $HOME $PATH"')
        assert ran.stdout == "ID=made-here\nof the imagehello /workspace /opt:/usr/bin:/bin\n"
        # Nothing of the host but what the agent needs, and nothing to write to.
        its = {f"/{path.name}" for path in Path(made.path, "root").iterdir()}
        found = (await session.run("echo /* /dev/m* /etc/*")).stdout.split()
        assert {name for name in found if name.count("/") == 1} == its | {
            *("/dev", "/proc", "/run", "/tmp", "/workspace")
        }
        assert {name for name in found if name.count("/") == 2} == {
            "/dev/m*",
            *(f"/etc/{name}" for name in ETC),
        }
        ran = await session.run("echo > /app/new; echo > /etc/new; echo > /new; echo > /run/new")
        assert ran.stderr.count("Read-only file system") == 4
        assert (await session.run("cat /etc/ld.so.preload")).exit_code == 1
        assert (await session.run("echo $(</proc/self/status)")).stdout.count("NoNewPrivs: 1") == 1


async def test_sessions_of_an_image_are_forks(
    place: Path, built: tuple[Path, Installed, Environment]
) -> None:
    *_, environment = built
    project = place / "project"
    project.mkdir()
    (project / "file").write_text("of the project\n")
    async with (
        open_templates(new_launcher()) as launcher,
        open_session(environment, mount_of(project), launcher=launcher) as session,
    ):
        ran = await session.run("cat /project/file /link; echo /run/nsm/host/*")
        assert ran.stdout.startswith("of the project\nof the image/run/nsm/host/")
        policy = json.loads((await session.run("cat /run/nsm/policy.json")).stdout)
        assert policy["kind"] == "forked"
        assert session.jail.template_pid


@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_git_has_the_users_name(
    place: Path, built: tuple[Path, Installed, Environment], kind: str
) -> None:
    *_, environment = built
    cold = named_launcher(place)
    async with (
        open_templates(cold, enabled=kind == "forked") as launcher,
        open_session(environment, launcher=launcher) as session,
    ):
        ran = await session.run("cat /etc/gitconfig")
        assert '\tname = "Ada"\n' in ran.stdout
        assert "directory = *" in ran.stdout


async def test_an_image_without_a_file_of_git_starts(place: Path, bash_layer: bytes) -> None:
    layout = Layout(place / "layout")
    layout.add([bash_layer], Env=[PATH])
    environment = await made_of(place, layout)
    assert environment.image is not None
    Path(environment.image.directory, "etc/gitconfig").unlink()
    async with launched(named_launcher(place), jail_spec(environment)) as jail:
        assert not os.path.exists(f"/proc/{jail.pid}/root/etc/gitconfig")


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="not here: the program is for x86_64")
async def test_an_image_may_be_a_single_static_program(place: Path) -> None:
    layout = Layout(place / "layout")
    layout.add([layer(file("leave", exiting_program(7), 0o755))])
    environment = await made_of(place, layout)
    assert environment.only_programs
    async with launched(new_launcher(), jail_spec(environment)) as jail:
        root = f"/proc/{jail.pid}/root"
        assert sorted(os.listdir(root)) == [
            *("dev", "etc", "leave", "proc", "run", "tmp", "workspace")
        ]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="not here: the program is for x86_64")
async def test_the_hosts_loader_takes_nothing_of_the_image(place: Path) -> None:
    libraries = libraries_of(sys.executable)
    layout = Layout(place / "layout")
    layout.add(
        [
            layer(
                file("leave", exiting_program(7), 0o755),
                *(file(path, "no library", 0o755) for path in libraries),
                *(file(f"lib/{os.path.basename(path)}", "no library") for path in libraries),
                file("etc/ld.so.preload", "/leave\n"),
                file("etc/ld.so.cache", "no cache"),
            )
        ],
        Env=["LD_PRELOAD=/leave", "LD_AUDIT=/leave", "LD_LIBRARY_PATH=/lib"],
    )
    environment = await made_of(place, layout)
    async with (
        open_templates(new_launcher()) as launcher,
        launched(launcher, jail_spec(environment)) as fork,
        launched(new_launcher(), jail_spec(environment)) as cold,
    ):
        # Their agents speak, so nothing of that was loaded.
        assert fork.template_pid
        assert not cold.template_pid


@pytest.mark.slow
async def test_the_digest_is_pinned(place: Path, bash_layer: bytes) -> None:
    layout = Layout(place / "layout")
    first = layout.add([bash_layer], tag="1", Env=[PATH])
    image = f"oci:{layout.place}:1"
    made = await make_image(place, image)
    assert Path(made.lock).read_text().splitlines()[1:] == [image, first]
    # What was made is used, whatever the layout has now.
    shutil.rmtree(layout.place)
    assert await make_image(place, image) == made
    changed = Layout(layout.place)
    second = changed.add([bash_layer, layer(file("more"))], tag="1", Env=[PATH])
    shutil.rmtree(made.path)
    with pytest.raises(PackagesFailedError, match="is wanted") as caught:
        await make_image(place, image)
    assert "nsm env update" in caught.value.hint
    again = await make_image(place, image, refresh=True)
    assert Path(again.lock).read_text().splitlines()[2] == second


async def test_a_hostile_image_leaves_nothing(place: Path) -> None:
    layout = Layout(place / "layout")
    layout.add([layer(file("x"), file("../../../out"))])
    with pytest.raises(PackagesFailedError, match="leads out of the image"):
        await make_image(place, f"oci:{layout.place}")
    with tarfile.open(place / "saved.tar", "w") as archive:
        archive.add(layout.place, "/")
    with pytest.raises(PackagesFailedError, match="leads out of the image"):
        await make_image(place, f"oci-archive:{place}/saved.tar:latest")
    with pytest.raises(PackagesFailedError, match="There is no image at /nowhere"):
        await make_image(place, "docker-archive:/nowhere")
    store = EnvironmentStore(str(place / "envs"))
    assert store.names() == []
    assert [name for name in os.listdir(store.builds) if name.startswith("alone")] == []
    assert not list(place.rglob("out"))


def test_a_live_session_keeps_its_image(built: tuple[Path, Installed, Environment]) -> None:
    place, made, environment = built
    store = EnvironmentStore(str(place / "envs"))
    assert store.collect(paths_in_use([environment]), dry_run=True).paths == ()
    assert store.collect((), dry_run=True).paths == (made.path,)


FILES = 300
"""Files of the image; each takes 4 KiB of a file system in memory."""


@contextmanager
def small_disk(place: Path) -> Generator[None]:
    """A file system of 8 MiB at a directory."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0755", "none", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("not here: nothing can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("free_kb", [0, 8, 40, 200, 700, 1100])
async def test_nothing_half_made_is_left(free_kb: int) -> None:
    with open_directory() as place:
        layout = Layout(place / "layout")
        layout.add([layer(*(file(f"data/{n}", os.urandom(1024)) for n in range(FILES)))])
        disk = place / "disk"
        disk.mkdir()
        with small_disk(disk):
            make_store(disk)
            filler = disk / "filler"
            state = os.statvfs(disk)
            filler.write_bytes(bytes(state.f_bavail * state.f_bsize - free_kb * 1024))
            image = f"oci:{layout.place}"
            with pytest.raises((PackagesFailedError, OSError)) as caught:
                await make_image(disk, image)
            assert "No space left" in str(caught.value)
            assert not [name for name in os.listdir(disk / "envs") if not name.startswith(".")]
            assert not (disk / "locks" / "web.image.txt").exists()
            filler.unlink()
            made = await make_image(disk, image)
            assert len(os.listdir(f"{made.path}/root/data")) == FILES


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
        network = NetworkRule(mode="allow", allow=("example.org",))
        spec = replace(spec, sizes=replace(spec.sizes, overlay_mb=overlay_mb), network=network)
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
        resolver = await session.run("cat /etc/resolv.conf /etc/nsswitch.conf")
        assert resolver.stdout == "".join(content for _, content in reversed(NAME_FILES))
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
