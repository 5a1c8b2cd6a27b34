"""Programs of a project that git's configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box.world import HOME, PROJECT, git, have_git
from nsmbox.protection import git_repository

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World

NAMED = (
    "alias.x core.askpass core.editor core.fsmonitor core.gitproxy core.pager core.sshcommand "
    "credential.helper credential.https://a.org.helper diff.external diff.x.command "
    "diff.x.textconv difftool.x.cmd difftool.x.path filter.a.b.clean filter.x.process "
    "filter.x.smudge gc.recentobjectshook gpg.program gpg.ssh.defaultkeycommand gpg.ssh.program "
    "hook.x.command imap.tunnel init.templatedir instaweb.httpd interactive.difffilter "
    "lfs.customtransfer.x.path lfs.extension.x.clean man.x.cmd merge.x.driver mergetool.x.cmd "
    "pager.log remote.x.receivepack remote.x.uploadpack sendemail.tocmd sendemail.smtpserver "
    "sequence.editor submodule.x.update svn.authorsprog tar.x.command trailer.x.cmd "
    "trailer.x.command uploadpack.packobjectshook"
).split()


def test_entries_that_name_programs_are_known_and_looked_for() -> None:
    for key in NAMED:
        assert git_repository.names_program(key, "!tools/x"), key
        assert git_repository.runs(key, "!tools/x"), key
        assert any(word in key.encode() for word in git_repository.WORDS), key


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("tools/clean.sh %f", ["tools/clean.sh"]),
        ("./tools/clean.sh", ["tools/clean.sh"]),
        ("sh tools/clean.sh", ["tools/clean.sh"]),
        ("python3 clean.py --config=tools/clean.sh", ["clean.py", "tools/clean.sh"]),
        ("!f() { 'tools/a b' \"$@\"; }; f", ["tools/a b"]),
        ("!cat x|tools/clean.sh>out", ["tools/clean.sh"]),
        ("sh -c 'exec tools/clean.sh \"$1\"' -", ["tools/clean.sh"]),
        ("sh -c \"sh -c 'tools/clean.sh'\"", ["tools/clean.sh"]),
        ("$(git rev-parse --show-toplevel)/tools/clean.sh", ["tools/clean.sh"]),
        ("`git rev-parse --show-toplevel`/tools/clean.sh", ["tools/clean.sh"]),
        ("$PWD/tools/clean.sh", ["tools/clean.sh"]),
        ('"${PWD}"/tools/clean.sh', ["tools/clean.sh"]),
        ("HERE/clean.py", ["clean.py"]),
        ("make -C tools", ["tools"]),
        ("tools/missing.sh", ["tools/missing.sh"]),
        ("'tools/clean.sh", ["tools/clean.sh"]),
        *(
            (value, [])
            for value in ("cat", "clean.py", "sed s/a/b/", "/usr/bin/gpg", "../x", ".", "code -w")
        ),
    ],
)
def test_paths_of_a_command(tmp_path: Path, value: str, found: list[str]) -> None:
    for name in ("tools/clean.sh", "tools/a b", "clean.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    got = git_repository.paths_in(value.replace("HERE", str(tmp_path)), str(tmp_path))
    assert sorted(got) == [f"{tmp_path}/{name}" for name in found]


CHANGES = "echo x >>tools/clean.sh; echo x >tools/diff.sh; echo x >>tools/merge; echo done"


def configured(world: World) -> None:
    """A project with programs that both configurations of its user name."""
    have_git(world)
    for name in ("clean.sh", "merge", "other.sh"):
        world.write(f"{PROJECT}/tools/{name}", "cat\n", 0o755)
    git(world, "config", "filter.x.clean", "tools/clean.sh %f")
    git(world, "config", "--global", "diff.x.textconv", "tools/diff.sh")
    git(world, "config", "--global", "alias.m", "!sh tools/merge")
    git(world, "config", "--global", "alias.n", "tools/other.sh")


def test_programs_that_a_box_can_change_are_told_before_and_after(world: World) -> None:
    configured(world)
    done = world.box("sh", "-c", CHANGES)
    assert done.stdout == "done\n"
    told = [line.strip() for line in done.stderr.splitlines()]
    names = (
        "tools/clean.sh (filter.x.clean), tools/diff.sh (diff.x.textconv), tools/merge (alias.m)"
    )
    assert f"nsm box: git on this computer runs {names}, as its configuration" in done.stderr
    for name, key in (
        ("tools/clean.sh (changed)", "filter.x.clean"),
        ("tools/diff.sh (added)", "diff.x.textconv"),
        ("tools/merge (changed)", "alias.m"),
    ):
        assert f"{name}: git runs this program ({key})" in told
    assert "other.sh" not in done.stderr


@pytest.mark.slow
def test_programs_that_are_protected_cannot_be_changed_and_are_not_told(world: World) -> None:
    configured(world)
    paths = '["tools/clean.sh", "tools/diff.sh", "tools/merge"]'
    world.write(f"{HOME}/.config/nsm/config.toml", f"[box]\nprotect_paths = {paths}\n")
    done = world.box("sh", "-c", CHANGES)
    assert done.stdout == "done\n"
    assert "git on this computer runs" not in done.stderr
    assert "git runs this program" not in done.stderr
    assert not (world.host(PROJECT) / "tools/diff.sh").is_file()
    assert (world.host(PROJECT) / "tools/clean.sh").read_text() == "cat\n"
