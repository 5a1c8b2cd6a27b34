"""User that runs jails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.jail.project import NoCopyError, open_project
from nsmd.jail.user import JailUser
from realjail import mount_of, open_directory

as_root = pytest.mark.root


@as_root
@pytest.mark.parametrize("uid", [0, None])
def test_root_is_no_prisoner(uid: int | None) -> None:
    with pytest.raises(ValueError, match="ordinary user"):
        JailUser(uid)


@as_root
def test_jails_of_root_run_as_another_user_without_groups() -> None:
    user = JailUser(65530)
    assert user.uid == 65530
    assert user.credentials() == (65530, 65530, [])


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
