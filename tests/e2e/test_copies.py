"""`nsm cp` of directories, between the host and real jails."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor
    from nsm.client.session_files import SessionFiles

ODD = os.fsdecode(b"\x1b]0;t\x07\n\xff")
BIG = os.urandom(1_000_000)


class Copies:
    """A session, and `nsm cp` to and from it.

    Attributes:
        session: its id: a name could mean another project's.
        files: its files.
    """

    def __init__(self, supervisor: Supervisor, session: str, files: SessionFiles) -> None:
        self.session = session
        self.files = files
        self._supervisor = supervisor

    def cp(self, *operands: str | Path) -> tuple[int, str]:
        """Copy; ``:`` stands for the session. Return the exit code and what was said."""
        given = [
            f"{self.session}{operand}" if operand.startswith(":") else operand
            for operand in map(str, operands)
        ]
        done = self._supervisor.run("nsm", "cp", *given)
        assert done.stdout == ""
        return done.returncode, done.stderr.replace(self.session, "")

    def run(self, code: str) -> None:
        """Run code in the session."""
        with self._supervisor.client() as client:
            assert client.run_in(self.session, code).exit_code == 0

    def below(self, path: str) -> set[str]:
        """Paths of all that is below a directory of the session."""
        found: set[str] = set()
        for entry in self.files.list(path):
            found.add(entry.name)
            if entry.kind == "directory":
                found |= {f"{entry.name}/{name}" for name in self.below(f"{path}/{entry.name}")}
        return found


@pytest.fixture
def copies(shared: Supervisor) -> Generator[Copies]:
    with shared.client() as client:
        result = client.run("x = 1", env="python", session="f")
        assert result.session is not None
        yield Copies(shared, result.session.id, client.files(result.session.id))
        client.kill_all()


def below(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_goes_up(copies: Copies, tmp_path: Path) -> None:
    top = tmp_path / "d"
    (top / "deep" / "empty").mkdir(parents=True)
    (top / "a").write_bytes(BIG)
    (top / "deep" / "run").touch(0o755)
    everything = {"a", "deep", "deep/empty", "deep/run"}
    assert copies.cp(top, ":") == (0, "")
    assert copies.below("d") == everything
    assert copies.files.read("d/a") == BIG
    assert copies.files.stat("d/deep/run").permissions == 0o755
    assert copies.cp(f"{top}/", ":new") == (0, "")  # which is not there
    assert copies.below("new") == everything
    assert copies.cp(top, ":new") == (0, "")  # and now is
    assert copies.below("new/d") == everything
    assert copies.cp(f"{top}/.", ":/tmp") == (0, "")
    assert copies.below("/tmp") == everything


def test_times_of_changes_go_up_and_down(copies: Copies, tmp_path: Path) -> None:
    top = tmp_path / "d"
    (top / "deep").mkdir(parents=True)
    (top / "deep" / "a").touch()
    for number, name in enumerate(("deep/a", "deep")):
        os.utime(top / name, ns=(0, 1_600_000_000_123_456_789 + number))
    (top / "deep").chmod(0o700)
    assert copies.cp(top, ":") == (0, "")
    copies.run(
        "import os; times = [os.stat(n).st_mtime_ns for n in ('d/deep/a', 'd/deep')]\n"
        "assert times == [1_600_000_000_123_456_789, 1_600_000_000_123_456_790], times\n"
        "assert os.stat('d/deep').st_mode & 0o777 == 0o700"
    )
    assert copies.cp(":d", tmp_path / "down") == (0, "")
    assert (tmp_path / "down/deep/a").stat().st_mtime_ns == 1_600_000_000_123_456_789


def test_links_go_up_and_special_files_do_not(copies: Copies, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    top = tmp_path / "d"
    top.mkdir()
    (top / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(top / "pipe")
    (top / ODD).write_text("odd")
    assert copies.cp(top, ":") == (0, f"nsm: {top}: links and special files were left out: 1\n")
    assert copies.below("d") == {"link", ODD}
    assert copies.files.stat("d/link", follow=False).target == str(tmp_path / "secret")


def test_a_file_that_fails_costs_only_itself(copies: Copies, tmp_path: Path) -> None:
    top = tmp_path / "d"
    top.mkdir()
    for name in "abc":
        (top / name).write_text(name)
    copies.files.mkdir("d/b", parents=True)
    code, said = copies.cp(top, ":")
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(f"nsm: {top}: b: ")
    assert copies.below("d") == {"a", "b", "c"}
    code, said = copies.cp(top, ":d/a")
    assert (code, said.count("\n")) == (1, 1)
    assert copies.files.read("d/a") == b"a"


def test_a_copy_that_cannot_fit_is_not_begun(copies: Copies, tmp_path: Path) -> None:
    top = tmp_path / "d"
    top.mkdir()
    with (top / "a").open("wb") as file:
        file.truncate(70_000_000)
    code, said = copies.cp(top, ":/dev/shm")
    assert code == 1
    assert "70000000 bytes do not fit" in said
    assert copies.below("/dev/shm") == set()


def test_a_directory_comes_down(copies: Copies, tmp_path: Path) -> None:
    copies.files.write("d/a", BIG, parents=True, permissions=0o600)
    copies.files.write("d/deep/run", "#!", parents=True, permissions=0o777)
    copies.files.mkdir("d/deep/empty")
    copies.files.write(f"d/{ODD}", "odd")
    everything = {"a", "deep", "deep/empty", "deep/run", ODD}
    before = os.umask(0o027)
    try:
        assert copies.cp(":d", tmp_path) == (0, "")
    finally:
        os.umask(before)
    top = tmp_path / "d"
    assert below(top) == everything
    assert (top / "a").read_bytes() == BIG
    modes = [mode(top / name) for name in ("a", "deep", "deep/empty", "deep/run")]
    assert modes == [0o600, 0o750, 0o750, 0o750]
    (top / "a").write_text("older")
    (top / "a").chmod(0o640)
    assert copies.cp(":d", tmp_path) == (0, "")  # into what is there
    assert ((top / "a").read_bytes(), mode(top / "a")) == (BIG, 0o640)
    assert copies.cp(":d", tmp_path / "new") == (0, "")
    assert below(tmp_path / "new") == everything
    (tmp_path / "in").mkdir()
    assert copies.cp(":d/", f"{tmp_path}/in/") == (0, "")
    assert below(tmp_path / "in" / "d") == everything
    for place in ("rest", "all"):
        if place == "rest":
            (tmp_path / place).mkdir()
        assert copies.cp(":", tmp_path / place) == (0, "")
        assert below(tmp_path / place / "d") == everything


def test_a_file_with_gaps_does_not_fill_the_disk(copies: Copies, tmp_path: Path) -> None:
    copies.files.write("d/small", "small", parents=True)
    copies.run("import os; os.truncate(os.open('d/gap', 66), 10 << 40)")
    code, said = copies.cp(":d", tmp_path)
    assert (code, below(tmp_path / "d")) == (1, {"small"})
    assert said == f"nsm: :d: gap: has {10 << 40} bytes; the limit is {1 << 30}\n"


def test_a_directory_is_written_through_no_link(copies: Copies, tmp_path: Path) -> None:
    for name in ("a", "sub/b", "c", "p"):
        copies.files.write(f"d/{name}", "theirs", parents=True)
    copies.files.mkdir("e")
    private, top = tmp_path / "private", tmp_path / "d"
    private.mkdir()
    (private / "a").write_text("mine")
    top.mkdir()
    (top / "a").symlink_to(private / "a")
    (top / "sub").symlink_to(private)
    os.mkfifo(top / "p")
    for options in ([], ["--follow"]):
        code, said = copies.cp(*options, ":d", tmp_path)
        assert code == 1
        assert said.splitlines() == [
            f"nsm: :d: a: is a symbolic link to {private}/a, and nothing was written through it",
            "nsm: :d: p: is there, and is not a regular file",
            "nsm: :d: sub: something that is not a directory has its name",
            "nsm: :d: sub/b: its name leads through a link or a file",
        ]
    assert (top / "c").read_text() == "theirs"
    (tmp_path / "place").symlink_to("private")
    (tmp_path / "e").symlink_to("private")
    for source, target, link in ((":d", "place", "place"), (":e", "", "e")):
        code, said = copies.cp(source, tmp_path / target)
        assert code == 1
        assert said.startswith(f"nsm: {tmp_path / link} is a symbolic link to private, and")
    assert below(private) == {"a"}
    assert (private / "a").read_text() == "mine"
    assert copies.cp("--follow", ":d", tmp_path / "place") == (0, "")
    assert below(private / "d") == {"a", "c", "p", "sub", "sub/b"}


def test_links_and_pipes_do_not_come_down(copies: Copies, tmp_path: Path) -> None:
    copies.files.write("d/a", "a", parents=True)
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "link").symlink_to("/etc/passwd")
    assert copies.cp(f"{tmp_path}/up/.", ":d") == (0, "")
    copies.run("import os; os.mkfifo('/workspace/d/pipe')")
    said = "nsm: :d: links and special files were left out: 2\n"
    assert copies.cp(":d", tmp_path / "here") == (0, said)
    assert below(tmp_path / "here") == {"a"}
