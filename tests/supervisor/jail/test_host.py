"""Parts of a host that a jail shows, and its user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsmd.jail.host import scan_host
from nsmd.jail.project import NoCopyError, open_project
from nsmd.jail.user import JailUser
from realjail import mount_of, needs_bwrap, open_directory


def test_merged_usr(tmp_path: Path) -> None:
    for name in ("usr/bin", "usr/lib", "etc/ssl/certs", "etc/ssl/private"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "etc/ld.so.cache").touch()
    (tmp_path / "etc/shadow").touch()
    host = scan_host(str(tmp_path))
    assert host.links == (("usr/bin", "/bin"), ("usr/lib", "/lib"))
    assert host.directories == ()
    assert host.etc == ("/etc/ld.so.cache", "/etc/ssl/certs")


@pytest.mark.parametrize(
    ("programs", "links"),
    [
        (["usr/bin/python3"], (("/usr/bin/python3", "/run/nsm/bin/python"),)),
        (
            ["usr/bin/python3", "usr/local/bin/python3"],
            (("/usr/local/bin/python3", "/run/nsm/bin/python"),),
        ),
        (["usr/bin/python3", "usr/local/bin/python"], ()),
        ([], ()),
    ],
)
def test_python_is_a_name_of_a_lone_python3(
    tmp_path: Path, programs: list[str], links: tuple[tuple[str, str], ...]
) -> None:
    for name in programs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    assert scan_host(str(tmp_path)).links == links


def test_directories_beside_usr(tmp_path: Path) -> None:
    for name in ("usr", "bin", "lib", "lib64"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin").symlink_to("bin")
    host = scan_host(str(tmp_path))
    assert host.directories == ("/bin", "/lib", "/lib64")
    assert host.links == (("bin", "/sbin"),)


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("ffffffff81000000 T _text", ("/proc/keys", "/proc/kallsyms")),
        ("0000000000000000 T _text", ("/proc/keys",)),
        ("", ("/proc/keys",)),
    ],
)
def test_addresses_of_the_kernel_are_hidden_if_they_are_told(
    tmp_path: Path, line: str, hidden: tuple[str, ...]
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/keys").touch()
    (tmp_path / "proc/kallsyms").write_text(f"{line}\n{line}\n")
    assert scan_host(str(tmp_path)).hidden == hidden


as_root = pytest.mark.root


@as_root
@pytest.mark.parametrize("uid", [0, None])
def test_root_is_no_prisoner(uid: int | None) -> None:
    with pytest.raises(ValueError, match="ordinary user"):
        JailUser(uid)


@as_root
def test_a_closed_directory_on_the_way_is_named() -> None:
    with open_directory() as base:
        inside = base / "closed" / "project"
        inside.mkdir(parents=True)
        inside.parent.chmod(0o700)
        user = JailUser(65530)
        reason = user.why_unreadable(str(inside))
        assert reason is not None
        assert f"{inside.parent} (mode 0700" in reason
        with pytest.raises(PermissionError, match="closed to user 65530"):
            user.way_to(str(inside))
        inside.parent.chmod(0o711)
        assert user.why_unreadable(str(inside)) is None
        assert user.way_to(str(inside)) == str(inside)


@as_root
@pytest.mark.parametrize(
    ("uid_map", "setgroups", "reason"),
    [
        ("0 0 4294967295", "allow", None),
        ("0 1000 1\n1 100000 65536", "allow", None),
        ("0 1000 1", "allow", "has no user 65530"),
        ("0 0 4294967295", "deny", "denies setgroups"),
    ],
)
def test_a_root_of_few_users_is_told_apart(
    uid_map: str, setgroups: str, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/uid_map").write_text(uid_map)
    (tmp_path / "self/setgroups").write_text(setgroups)
    found = JailUser(65530).why_impossible(str(tmp_path))
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (True, "its group is 4242, and an overlay can only copy files of the supervisor's group"),
        (False, "it belongs to user {owner}, group 4242, and you are user {owner}"),
    ],
)
def test_a_project_of_another_group_of_ours_is_told_apart(
    member: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor of an ordinary user, whose groups and file are the kernel's to tell."""
    owner = 65530
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    monkeypatch.setattr(os, "getegid", lambda: 4243)
    monkeypatch.setattr(os, "getgroups", lambda: [4243, *([4242] if member else [])])
    found = os.stat_result((0o40775, 1, 1, 2, owner, 4242, 0, 0, 0, 0))
    mount = mount_of(tmp_path, mode="overlay")
    user = JailUser(None)

    def told(*_: object, **__: object) -> os.stat_result:
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", told)
        with pytest.raises(NoCopyError) as raised:
            open_project(user, mount)
    assert said.format(owner=owner) in str(raised.value)
    assert ("`sg 4242 -c 'nsm env'`" in raised.value.hint) is member
    assert raised.value.in_place_of_a_fork("no").hint == raised.value.hint


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
