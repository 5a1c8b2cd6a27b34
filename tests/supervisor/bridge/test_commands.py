"""Whose programs are started, and that the one that was checked is, whatever lies on its way."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import definition_files
from definition_files import SCRIPT, bound, executable, fifo, link_to, nothing, program, with_mode
from nsm.wire.errors import BadProgramError
from nsmd.bridge import commands
from nsmd.bridge.commands import open_command
from nsmd.bridge.path_walk import state_of, walk, way_to, why_another

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LS = shutil.which("ls") or "/bin/ls"


def reason(command: Path | str, writable: Sequence[Path | str] = (), **others: str) -> str:
    """Explain why a command is not started."""
    search_path = others.pop("search_path", "")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BadProgramError) as caught:
        open_command(
            program(command, **others), [str(path) for path in writable], search_path=search_path
        )
    assert os.listdir("/proc/self/fd") == before
    error = caught.value
    within_reach = "client" in error.data["reason"]
    assert str(error).startswith(f"Program 'deploy' is not started: {error.data['reason']}. The ")
    assert ("`nsm bridge check`" in error.hint) != within_reach
    assert ("move the program" in error.hint) == within_reach
    return str(error.data["reason"])


def run(held: commands.Command, *arguments: str) -> str:
    return subprocess.run(
        [held.path, *arguments],
        executable=held.path if held.script else f"/proc/self/fd/{held.fd}",
        pass_fds=() if held.script else (held.fd,),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_links_to_programs_keep_the_name_that_was_written(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/list").symlink_to("../there/list")
    (tmp_path / "there").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    (tmp_path / "real/list").symlink_to(LS)
    with open_command(program(tmp_path / "bin/list")) as held:
        assert held.path == str(tmp_path / "bin/list")
        assert run(held, "-d", "/") == "/\n"


NO_PROGRAMS: list[tuple[Callable[[Path], None], str]] = [
    (nothing, "{path}: No such file or directory"),
    (Path.mkdir, "{path} is not a file"),
    (fifo, "{path} is not a file"),
    (bound, "{path} is not a file"),
    (link_to("/dev/null"), "/dev/null is writable by everyone"),
    (link_to("run"), "{path}: Too many levels of symbolic links"),
    (link_to("nowhere"), "{path}: No such file or directory"),
    (with_mode(0o644), "{path} is not executable"),
    (with_mode(0o757), "{path} is writable by everyone"),
    (with_mode(0o722), "{path} is writable by everyone"),
    (with_mode(0o4777), "{path} is writable by everyone"),
]


@pytest.mark.parametrize(("make", "why"), NO_PROGRAMS)
def test_only_a_program_of_the_users_is_started(
    make: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    make(path)
    assert reason(path).startswith(why.format(path=path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is neither a program (ELF) nor a script"),
        ("echo hello\n", "is neither a program (ELF) nor a script"),
        ("\ufeff#!/bin/sh\n", "is neither a program (ELF) nor a script"),
        (" #!/bin/sh\n", "is neither a program (ELF) nor a script"),
        ("\x7fEL", "is neither a program (ELF) nor a script"),
        ("#!", "has no interpreter in its first line"),
        ("#! \t\n/bin/sh", "has no interpreter in its first line"),
        ("#!/" + "x" * 300 + "\n", "has no interpreter in its first line"),
        ("#!bin/sh\n", "has bin/sh as its interpreter: an absolute path is expected"),
        ("#!../bin/sh\n", "has ../bin/sh as its interpreter: an absolute path is expected"),
        ("#!/no/such\n", "its interpreter: /no/such: No such file or directory"),
        ("#!/bin/sh\r\n", "ends its first line with a carriage return"),
        ("#!/\0\n", "its interpreter: /\ufffd cannot be a path"),
        ("#!/etc/passwd\n", "its interpreter: /etc/passwd is not executable"),
        ("#!/\n", "its interpreter: / is not a file"),
    ],
    ids=repr,
)
def test_a_script_names_its_interpreter(text: str, why: str, tmp_path: Path) -> None:
    assert why in reason(executable(tmp_path / "run", text))


def test_an_interpreter_is_checked_like_a_script(tmp_path: Path) -> None:
    inner = executable(tmp_path / "inner")
    outer = executable(tmp_path / "outer", f"#! {inner} -x\n")
    with open_command(program(outer)) as held:
        assert held.script
    inner.chmod(0o777)
    assert reason(outer) == f"its interpreter: {inner} is writable by everyone"
    inner.write_text(f"#!{outer}\n")
    inner.chmod(0o755)
    assert reason(outer).endswith("its interpreter is a script, and so is that one's")


@pytest.mark.parametrize(
    "opened", ["a", "a/b", "a/b/run", "far", "far/c"], ids=lambda name: name.replace("/", "-")
)
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o773])
def test_nobody_else_can_exchange_any_part(opened: str, mode: int, tmp_path: Path) -> None:
    executable(tmp_path / "a/b/run")
    (tmp_path / "far/c").mkdir(parents=True)
    (tmp_path / "far/c/link").symlink_to(tmp_path / "a/b")
    command = tmp_path / "far/c/link/run"
    open_command(program(command)).close()
    (tmp_path / opened).chmod(mode)
    others = "everyone" if mode & stat.S_IWOTH else "group"
    if others == "group":
        os.chown(tmp_path / opened, -1, _foreign_group())
        (tmp_path / opened).chmod(mode)
    assert reason(command).startswith(f"{tmp_path / opened} is writable by {others}")


def _foreign_group() -> int:
    """A group that is not the user's own, which files can be given."""
    own = os.getegid()
    if os.geteuid() == 0:
        return 65534
    others = [group for group in os.getgroups() if group != own]
    if not others:
        pytest.skip("not here: this user is in no further group")
    return others[0]


def test_a_program_directly_in_a_shared_directory_is_refused(tmp_path: Path) -> None:
    """Below /tmp others cannot exchange what is ours; in it, they could have taken the name."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert reason(executable(shared / "run")) == f"{shared}, where it lies, is writable by everyone"
    open_command(program(executable(shared / "own/run"))).close()
    shared.chmod(0o1775)  # as Nix's store, where scripts lie directly
    open_command(program(shared / "run")).close()


@pytest.mark.root
def test_a_program_of_another_user_is_refused(tmp_path: Path) -> None:
    run_ = executable(tmp_path / "a/run")
    for part in (run_, tmp_path / "a"):
        os.chown(part, 12345, -1)
        assert reason(run_) == f"{part} belongs to user 12345"
        os.chown(part, 0, -1)
    (tmp_path / "link").symlink_to(run_)
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    assert reason(tmp_path / "link") == f"{tmp_path}/link belongs to user 12345"


def test_a_program_with_rights_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsm could not stop such a program, which would have rights that the user lacks."""
    tool = executable(tmp_path / "tool", mode=0o4755)
    open_command(program(tool)).close()  # as oneself is nothing new
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(commands, "trusted_owners", lambda: {0, os.getuid()})
    assert reason(tool).startswith(f"{tool} runs as user {os.getuid()} (set-user-ID)")


def test_a_program_whose_access_list_lets_others_write_is_refused(tmp_path: Path) -> None:
    """`setfacl -m u:12345:rw`, without that program: acl(5), <linux/posix_acl_xattr.h>."""
    script = executable(tmp_path / "bin/run")
    entries = [(1, 7, -1), (2, 6, 12345), (4, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    for part in (script, script.parent):
        try:
            os.setxattr(part, "system.posix_acl_access", packed)
        except OSError as error:
            pytest.skip(f"not here: no access lists: {error}")
        os.chown(part, -1, 0 if os.geteuid() == 0 else -1)
        assert f"{part} has an access list that lets others write" in reason(script)
        os.removexattr(part, "system.posix_acl_access")
        part.chmod(0o755)


WRITABLE = "the client that asks can write"


def test_a_program_that_the_client_can_write_is_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    script = executable(project / "bin/run")
    for writable in (project, f"{project}/", f"{tmp_path}/x/../project", project / "bin", script):
        assert WRITABLE in reason(script, ["/nowhere", writable])
    (tmp_path / "link").symlink_to(project)
    assert WRITABLE in reason(script, [tmp_path / "link"])
    assert WRITABLE in reason(tmp_path / "link/bin/run", [project])
    evil = tmp_path / "project-evil"
    open_command(program(executable(evil / "run")), [str(project)]).close()
    open_command(program(LS), [str(project), str(evil), "/nowhere"]).close()


def test_a_link_or_interpreter_that_the_client_can_write_is_refused(tmp_path: Path) -> None:
    project = tmp_path / "project"
    tool = executable(tmp_path / "bin/tool")
    (tmp_path / "bin/one").symlink_to("../project/two")
    project.mkdir()
    (project / "two").symlink_to(tool)
    assert WRITABLE in reason(tmp_path / "bin/one", [project])
    own = executable(project / "python", SCRIPT)
    script = executable(tmp_path / "bin/script", f"#!{own}\n")
    assert reason(script, [project]).startswith(f"its interpreter: {project} lies where the client")


def test_a_definition_that_the_client_can_write_is_refused(tmp_path: Path) -> None:
    """A client could name any program there, such as `sh`."""
    project = tmp_path / "dotfiles"
    project.mkdir()
    (project / "deploy.md").touch()
    (tmp_path / "deploy.md").symlink_to(project / "deploy.md")
    for source in (project / "deploy.md", tmp_path / "deploy.md"):
        assert WRITABLE in reason(LS, [project], source=str(source))
        open_command(program(LS, source=str(source)), [str(tmp_path / "other")]).close()
    assert "No such file" in reason(LS, [project], source=str(tmp_path / "gone.md"))


@pytest.mark.parametrize("entry", ["{p}/.bin", "{p}/.bin/not/there", "link", "", ".", "sub/.."])
def test_other_programs_are_not_looked_for_where_the_client_can_write(
    entry: str, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / ".bin").mkdir(parents=True)
    (project / "link").symlink_to(".bin")
    (project / "sub").mkdir()
    search_path = "/usr/bin:" + entry.format(p=project)
    given = {"search_path": search_path, "cwd": str(project)}
    assert WRITABLE in reason(LS, [project], **given)
    other = str(tmp_path / "other")
    open_command(program(LS, cwd=str(project)), [other], search_path=search_path).close()
    open_command(program(LS, cwd=str(project)), [str(project)], search_path="/usr/bin").close()


def test_a_second_name_that_the_client_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsmd.bridge.commands._writer", os.getuid)
    script = executable(tmp_path / "bin/run")
    (tmp_path / "project").mkdir()
    open_command(program(script), [str(tmp_path / "project")]).close()
    (tmp_path / "project/run").hardlink_to(script)
    assert "has 2 names (hard links)" in reason(script, [tmp_path / "project"])
    open_command(program(script)).close()


def in_namespace(mount: str, command: Path, writable: Path) -> str:
    """Reason why a command is not started in a mount namespace with something mounted first."""
    sources = [str(Path(commands.__file__).parents[2]), str(Path(definition_files.__file__).parent)]
    code = f"""
import sys
sys.path[:0] = {sources!r}
from definition_files import executable, program
from nsmd.bridge.commands import open_command
from pathlib import Path
if not Path({str(command)!r}).exists():
    executable(Path({str(command)!r}))
try:
    open_command(program({str(command)!r}), {[str(writable)]!r})
except Exception as error:
    print(error.data["reason"])
"""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = [f'{mount}; exec "$@"', "-", sys.executable, "-P", "-c", code]
    done = subprocess.run(
        ["unshare", *own, "--mount", "sh", "-ec", *script],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"not here: {done.stderr.strip()}")
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_mount_of_what_the_client_can_write_is_refused(tmp_path: Path) -> None:
    executable(tmp_path / "project/sub dir/run")
    (tmp_path / "mounted here").mkdir()
    mount = f"mount --bind '{tmp_path}/project/sub dir' '{tmp_path}/mounted here'"
    command = tmp_path / "mounted here/run"
    why = in_namespace(mount, command, tmp_path / "project")
    assert "is mounted from where the client that asks can write" in why
    assert not in_namespace(mount, command, tmp_path / "project/other")


def test_a_program_on_a_noexec_file_system_is_refused(tmp_path: Path) -> None:
    why = in_namespace(
        f"mount -t tmpfs -o noexec,mode=755 x {tmp_path}", tmp_path / "run", Path("/nowhere")
    )
    assert "on a file system where nothing is" in why


def inode_at(path: str, step: Callable[[str], None] = lambda _: None) -> int:
    fd = walk(path, lambda part, _, __: step(part))
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def below(path: Path) -> list[str]:
    return [str(part) for part in (*reversed(path.parents), path)]


@pytest.mark.parametrize("path", ["a", "a/", "a/b", "l", "l/b", "up", "top"])
def test_a_walk_leads_where_the_kernel_goes(path: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").touch()
    (tmp_path / "l").symlink_to("a")
    (tmp_path / "up").symlink_to("a/../../..")
    (tmp_path / "top").symlink_to("/../..//")
    expected = (tmp_path / path).stat()
    fd = walk(str(tmp_path / path))
    assert state_of(os.fstat(fd)) == state_of(expected)
    os.close(fd)


def test_links_that_become_endless_on_the_way_end(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")

    def step(_: str) -> None:
        (tmp_path / "new").symlink_to("link")
        (tmp_path / "new").rename(tmp_path / "link")

    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        walk(str(tmp_path / "link"), lambda part, _, __: step(part))


def test_a_directory_exchanged_behind_the_walk_does_not_matter(tmp_path: Path) -> None:
    """The directory that was looked at is the one that the way goes on in."""
    (tmp_path / "good").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "good/run").write_text("good")
    (tmp_path / "evil/run").write_text("evil")
    good = (tmp_path / "good/run").stat().st_ino

    def exchange(part: str) -> None:
        if part == str(tmp_path / "good"):
            (tmp_path / "good").rename(tmp_path / "old")
            (tmp_path / "evil").rename(tmp_path / "good")

    assert inode_at(str(tmp_path / "good/run"), exchange) == good
    assert (tmp_path / "good/run").read_text() == "evil"


def test_no_descriptor_is_left_when_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")

    def refuse(refused: str, part: str, *_: object) -> None:
        if part == refused:
            raise PermissionError

    before = os.listdir("/proc/self/fd")
    for part in ("/", *below(tmp_path / "link"), str(tmp_path / "a")):
        with pytest.raises(PermissionError):
            walk(str(tmp_path / "link"), partial(refuse, part))
    assert os.listdir("/proc/self/fd") == before


def touched(path: Path) -> None:
    path.write_text("evil")


def moded(path: Path) -> None:
    path.chmod(0o700)


def replaced(path: Path) -> None:
    (path.parent / "other").write_text("evil")
    (path.parent / "other").rename(path)


def linked(path: Path) -> None:
    path.rename(path.parent / "moved")
    path.symlink_to("moved")
    (path.parent / "moved").chmod(0o600)


def removed(path: Path) -> None:
    path.unlink()


def moved_away_and_back(path: Path) -> None:
    path.rename(path.parent / "away")
    (path.parent / "away").rename(path)


def link_exchanged_and_back(path: Path) -> None:
    for target in ("evil", "real"):
        (path.parent / "new").symlink_to(target)
        (path.parent / "new").rename(path.parent / "link")


CHANGED = "{path}, or a link on the way to it, was changed after it had been checked"
ANOTHER = "{path} leads to another file than the one that was checked"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (touched, CHANGED),
        (moded, CHANGED),
        (replaced, ANOTHER),
        (linked, CHANGED),
        (moved_away_and_back, CHANGED),
        (link_exchanged_and_back, CHANGED),
        (removed, "{path} is not what was checked any more: No such file or directory"),
    ],
)
def test_a_change_on_the_way_is_noticed(
    change: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    """Also what is as before by the time somebody looks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "link/run"
    path.write_text("good")
    expected = way_to(str(path))
    assert len(expected) == 2 * 3
    assert expected[-3:] == state_of(path.stat())
    assert why_another(str(path), expected) is None
    next_tick(tmp_path / "clock", expected[-1])
    change(path if change is not link_exchanged_and_back else path.parent)
    assert why_another(str(path), expected) == why.format(path=path)


def next_tick(clock: Path, after_ns: int) -> None:
    """Wait until files that are changed have a later time, for kernels whose clock for that ticks
    every few milliseconds."""
    clock.touch()
    while clock.stat().st_ctime_ns <= after_ns:
        clock.touch()
