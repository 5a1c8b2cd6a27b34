"""An interpreter's directories and the project, where they meet."""

from __future__ import annotations

import pytest

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.binds import needed_binds, needed_links
from nsmd.model.values import Environment, ProjectMount, ReadOnlyBind


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


def test_what_the_project_shows_in_its_place_is_not_mounted_again() -> None:
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
def test_what_would_cover_the_other_is_refused(needed: str, mount: ProjectMount) -> None:
    with pytest.raises(BadProjectError) as error:
        needed_binds(environment(needed).binds, mount)
    assert needed in error.value.message
    assert "/project" in error.value.hint


@pytest.mark.parametrize("needed", ["/workspace", "/tmp", "/", "/usr"])
def test_the_jails_own_places_stay_its_own(needed: str) -> None:
    with pytest.raises(StartFailedError, match="the jail has its own"):
        needed_binds(environment(needed).binds, None)


def test_below_the_jails_own_places_there_is_room() -> None:
    assert targets(environment("/workspace/.venv", "/tmp/x"), None) == [
        "/workspace/.venv",
        "/tmp/x",
    ]


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
