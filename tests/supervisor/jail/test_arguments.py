"""bwrap's arguments: what is there, what is not, and in which order."""

from __future__ import annotations

import pytest

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.arguments import (
    BindMount,
    FileData,
    JailContent,
    needed_binds,
    needed_links,
    session_arguments,
)
from nsmd.jail.host import HostSystem
from nsmd.model.values import Environment, JailSizes, ProjectMount, ReadOnlyBind

MERGED = HostSystem(
    links=(("usr/bin", "/bin"), ("usr/lib", "/lib")), directories=(), etc=("/etc/alternatives",)
)
PYTHON = Environment(
    name="science",
    interpreter="python",
    agent_python="/opt/py/bin/python3",
    program="/opt/py/bin/python3",
    path="/opt/py/bin:/usr/bin",
)


def arguments(
    host: HostSystem = MERGED,
    mounts: tuple[BindMount, ...] = (),
    files: tuple[FileData, ...] = (),
    sizes: JailSizes | None = None,
) -> list[str]:
    content = JailContent(host=host, mounts=mounts, files=files, path=PYTHON.path, info_fd=7)
    return session_arguments(content, sizes or JailSizes())


def triples(words: list[str]) -> list[tuple[str, str, str]]:
    return list(zip(words, words[1:], words[2:], strict=False))


def test_mount_points_come_before_the_root_is_closed_and_parents_before_children() -> None:
    words = arguments(
        mounts=(
            BindMount(source="/a/b", target="/a/b"),
            BindMount(source=9, target="/project"),
            BindMount(source="/a", target="/a"),
        ),
        files=(FileData(descriptor=8, target="/etc/passwd"),),
    )
    assert ("--ro-bind-fd", "9", "/project") in triples(words)
    closed = words.index("--remount-ro")
    places = [words.index(place) for place in ("/workspace", "/etc/passwd", "/a", "/project")]
    assert max(places) < closed
    assert words.index("/a") < words.index("/a/b")
    # /dev/shm is made in /dev while that is writable, after /dev itself.
    assert words.index("--dev") < words.index("/dev/shm") < closed


def environment(*targets: str) -> Environment:
    binds = tuple(ReadOnlyBind(source=target, target=target) for target in targets)
    return Environment(name="python", interpreter="python", binds=binds)


def project(path: str, mount_point: str = "/project") -> ProjectMount:
    return ProjectMount(path=path, mount_point=mount_point, device=1, inode=1)


def targets(env: Environment, mount: ProjectMount | None) -> list[str]:
    return [bind.target for bind in needed_binds(env.binds, mount)]


def test_apart_both_are_shown() -> None:
    assert targets(environment("/opt/py"), None) == ["/opt/py"]
    assert targets(environment("/opt/py"), project("/home/u/p")) == ["/opt/py"]
    assert targets(environment("/project-evil"), project("/home/u/p")) == ["/project-evil"]


def test_a_bind_inside_the_project_is_not_mounted_again() -> None:
    """A mount point below the project could be a symlink that leads out of the jail."""
    env = environment("/home/u/p/.venv", "/opt/py")
    assert targets(env, project("/home/u/p", "/home/u/p")) == ["/opt/py"]


@pytest.mark.parametrize(
    ("needed", "mount"),
    [
        ("/home/u/p/.venv", project("/elsewhere", "/home/u/p")),
        ("/opt/py", project("/home/u/p", "/opt/py/site")),
        ("/project", project("/home/u/p")),
    ],
)
def test_binds_that_would_cover_each_other_are_refused(needed: str, mount: ProjectMount) -> None:
    with pytest.raises(BadProjectError) as error:
        needed_binds(environment(needed).binds, mount)
    assert needed in error.value.message
    assert "/project" in error.value.hint


@pytest.mark.parametrize("needed", ["/workspace", "/tmp", "/", "/usr"])
def test_the_jails_own_places_stay_its_own(needed: str) -> None:
    with pytest.raises(StartFailedError, match="the jail has its own"):
        needed_binds(environment(needed).binds, None)


@pytest.mark.parametrize(
    ("path", "possible"),
    [
        ("/home/u/p", True),
        ("/tmp/p", True),
        ("/workspace/p", True),
        ("/node_modules", True),
        ("/project-too", True),
        *((path, False) for path in ("/", "/tmp", "/workspace", "/project", "/project/p")),
        *((path, False) for path in ("/usr/src/p", "/etc/p", "/lib/p", "/home/u/py/p", "/home/u")),
        *((path, False) for path in ("/run/nsm/p", "/run", "/proc/p", "/dev/p")),
    ],
)
def test_links_cover_nothing_and_are_below_nothing(path: str, possible: bool) -> None:
    shown = ["/lib", "/home/u/py", "/project"]
    assert bool(needed_links(((path, "/project"),), shown)) is possible
