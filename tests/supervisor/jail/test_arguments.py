"""bwrap's arguments: what is there, what is not, and in which order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.arguments import (
    BindMount,
    FileData,
    JailContent,
    agent_command,
    needed_binds,
    needed_links,
    session_arguments,
    template_arguments,
)
from nsmd.jail.host import HostSystem
from nsmd.model.values import Environment, JailSizes, ProjectMount, ReadOnlyBind

MERGED = HostSystem(
    links=(("usr/bin", "/bin"), ("usr/lib", "/lib")), directories=(), etc=("/etc/alternatives",)
)
UNMERGED = HostSystem(links=(), directories=("/bin", "/lib"), etc=())
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


def test_a_jail_has_namespaces_of_its_own_and_can_make_no_more() -> None:
    words = arguments()
    for option in ("user", "pid", "ipc", "uts", "net"):
        assert f"--unshare-{option}" in words
    assert {"--disable-userns", "--new-session", "--as-pid-1", "--unshare-cgroup-try"} <= {*words}
    assert ("--cap-drop", "ALL") in pairwise(words)
    assert ("--info-fd", "7") in pairwise(words)


def test_the_filter_is_installed_for_the_command_where_there_is_one() -> None:
    content = JailContent(host=MERGED, mounts=(), files=(), path="", info_fd=7, filter_fd=9)
    assert ("--seccomp", "9") in pairwise(session_arguments(content, JailSizes()))
    assert "--seccomp" not in arguments()
    # Forks of a template install it when their set-up is over.
    assert "--seccomp" not in template_arguments(content)


def test_it_does_not_die_with_a_thread_of_the_supervisor() -> None:
    assert "--die-with-parent" not in arguments()


def test_usr_is_shown_as_on_the_host() -> None:
    assert ("--symlink", "usr/lib", "/lib") in triples(arguments())
    assert ("--ro-bind", "/lib", "/lib") not in triples(arguments())
    assert ("--ro-bind", "/lib", "/lib") in triples(arguments(UNMERGED))
    assert "--symlink" not in arguments(UNMERGED)
    assert ("--ro-bind-try", "/etc/alternatives", "/etc/alternatives") in triples(arguments())


def test_nothing_is_bound_writable() -> None:
    words = arguments(mounts=(BindMount(source="/opt/py", target="/opt/py"),))
    assert not {"--bind", "--dev-bind", "--bind-fd", "--bind-data"} & {*words}


def test_private_file_systems_have_their_sizes() -> None:
    words = arguments(sizes=JailSizes(workspace_mb=3, tmp_mb=2, shm_mb=1))
    for size, place in ((3, "/workspace"), (2, "/tmp"), (1, "/dev/shm")):
        assert (str(size << 20), "--tmpfs", place) in triples(words)


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


def test_code_finds_itself_in_its_workspace() -> None:
    words = arguments()
    assert ("--setenv", "HOME", "/workspace") in triples(words)
    assert ("--setenv", "TMPDIR", "/workspace") in triples(words)
    assert ("--setenv", "PATH", "/opt/py/bin:/usr/bin") in triples(words)
    assert words[-2:] == ["--chdir", "/workspace"]


def test_the_agent_is_told_which_interpreter_to_start() -> None:
    assert agent_command(PYTHON, {"processes": 9}) == [
        *("/opt/py/bin/python3", "-I", "/run/nsm/agent.py", "--prestart", "python"),
        *("--python", "/opt/py/bin/python3", "--workspace", "/workspace"),
        *("--limits", '{"processes": 9}'),
    ]


def test_an_environments_own_variables_take_the_place_of_those_that_every_jail_has() -> None:
    content = JailContent(
        host=MERGED,
        mounts=(),
        files=(),
        path="/usr/bin",
        info_fd=7,
        variables=(("PATH", "/nix/bin"), ("CC", "a compiler")),
    )
    words = session_arguments(content, JailSizes())
    given = [(name, value) for option, name, value in triples(words) if option == "--setenv"]
    assert ("CC", "a compiler") in given
    assert [value for name, value in given if name == "PATH"] == ["/nix/bin"]
    assert ("TERM", "dumb") in given


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
