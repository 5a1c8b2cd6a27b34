"""`nsm cp` against a fake supervisor: what is copied, and what is left when it is not."""

from __future__ import annotations

import os
import pty
import signal
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from cli_bench import NSM, TIMEOUT_S
from fakefiles import FakeFiles
from nsm.cli.verbs import cp as verb
from nsm.cli.verbs.cp import Remote, Upload, plan
from nsm.client.local_files import LocalTarget
from nsm.wire.errors import BadRequestError
from processes import ending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import FakeSupervisor

BIG = os.urandom(3 * 256 * 1024 + 5)


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles()


@pytest.fixture(autouse=True)
def supervisor(
    supervisor: FakeSupervisor, files: FakeFiles, here: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(here)
    supervisor.handlers |= files.handlers()
    yield
    for held in files.hold.values():
        held.set()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def cp(nsm: Nsm, *operands: str) -> tuple[int, str]:
    """Exit code, and what was said; nothing is ever printed but on standard error."""
    code, out, err = nsm("cp", *operands)
    assert out == ""
    return code, err


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


# To a session.


def test_a_directory_that_is_made_meanwhile_takes_no_empty_file(
    nsm: Nsm, files: FakeFiles, here: Path
) -> None:
    (here / "a").write_text("a")
    os.mkfifo(here / "pipe")
    files.made_meanwhile |= {"/tmp/b", "/tmp/c"}
    assert cp(nsm, "a", "work:/tmp/b") == (0, "")
    assert files.files == {"/tmp/b/a": (b"a", 0o644)}
    writer = threading.Thread(target=(here / "pipe").write_bytes, args=[b"p"])
    writer.start()
    assert cp(nsm, "pipe", "work:/tmp/c") == (1, "nsm: /tmp/c: is a directory\n")
    writer.join()
    assert list(files.files) == ["/tmp/b/a"]


def test_no_link_here_is_written_through(nsm: Nsm, files: FakeFiles, here: Path) -> None:
    files.files["/workspace/a"] = (b"theirs", 0o644)
    (here / "mine").write_bytes(b"mine")
    (here / "private").mkdir()
    (here / "link").symlink_to("mine")
    (here / "place").symlink_to("private")
    hint = "Name the file itself, or add --follow.\n"
    for target, link, end in (("link", "link", "mine"), ("place", "place", "private")):
        said = (
            f"nsm: {link} is a symbolic link to {end}, and nothing was written through it\n{hint}"
        )
        assert cp(nsm, "work:a", target) == (1, said)
    assert cp(nsm, "work:a", "place/")[0] == 1
    assert (here / "mine").read_bytes() == b"mine"
    assert list((here / "private").iterdir()) == []
    assert cp(nsm, "--follow", "work:a", "link") == (0, "")
    assert cp(nsm, "--follow", "work:a", "place") == (0, "")
    assert (here / "mine").read_bytes() == (here / "private" / "a").read_bytes() == b"theirs"


def test_a_link_that_comes_while_a_file_is_copied_is_replaced(here: Path) -> None:
    (here / "mine").write_bytes(b"mine")
    with LocalTarget("target") as target:
        target.write(b"theirs")
        (here / "target").symlink_to("mine")
        target.keep(0o644)
    assert (here / "mine").read_bytes() == b"mine"
    assert not (here / "target").is_symlink()
    assert (here / "target").read_bytes() == b"theirs"


def test_no_link_here_is_read_through(nsm: Nsm, files: FakeFiles, here: Path) -> None:
    """Code in a session may have put it there, to have another file of the user's copied."""
    secret = here.parent / "ssh"
    (secret / "deep").mkdir(parents=True)
    (secret / "deep" / "key").write_text("secret")
    (here / "link").symlink_to(secret / "deep" / "key")
    (here / "place").symlink_to(secret)
    (here / "way").mkdir()
    (here / "way" / "on").symlink_to(secret / "deep")
    for path, where in (
        ("link", f"is a symbolic link to {secret}/deep/key"),
        (str(here / "link"), f"is a symbolic link to {secret}/deep/key"),
        ("place", f"is a symbolic link to {secret}"),
        ("place/", "lies behind a symbolic link"),
        ("place/deep/key", "lies behind a symbolic link"),
        ("way/on/key", "lies behind a symbolic link"),
        (f"{here}/way/on/key", "lies behind a symbolic link"),
    ):
        said = f"nsm: {path} {where}, and nothing was read through it\n"
        hint = "Name the file itself, or add --follow.\n"
        assert cp(nsm, path, "work:x") == (1, said + hint), path
    assert files.files == {}
    assert cp(nsm, "--follow", "place/deep/key", "work:x") == (0, "")
    assert files.files["/workspace/x"][0] == b"secret"
    # Where no session writes, links of directories are the user's own.
    assert cp(nsm, str(here.parent / "here" / ".." / "ssh" / "deep" / "key"), "work:y")[0] == 0
    (here.parent / "home").symlink_to(secret)
    assert cp(nsm, str(here.parent / "home" / "deep" / "key"), "work:y") == (0, "")


def test_no_link_on_the_way_is_written_through(nsm: Nsm, files: FakeFiles, here: Path) -> None:
    files.files["/workspace/a"] = (b"theirs", 0o644)
    (here.parent / "private" / "below").mkdir(parents=True)
    (here / "place").symlink_to(here.parent / "private")
    said = "place/a lies behind a symbolic link, and nothing was written through it"
    assert said in cp(nsm, "work:a", "place/a")[1]
    for path in ("place/below/", "place/below/a"):
        assert "lies behind a symbolic link" in cp(nsm, "work:a", path)[1]
    assert sorted(here.parent.rglob("private/**/*")) == [here.parent / "private" / "below"]


# From a session.


def test_pipes_and_devices_are_written_to(nsm: Nsm, files: FakeFiles, here: Path) -> None:
    files.files = {"/workspace/a": (BIG, 0o644)}
    os.mkfifo(here / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((here / "pipe").read_bytes()))
    reader.start()
    assert cp(nsm, "work:a", "pipe") == (0, "")
    reader.join()
    assert read == [BIG]
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)
    assert cp(nsm, "work:a", "/dev/null") == (0, "")
    code, err = cp(nsm, "work:a", "/dev/full")
    assert code == 1
    assert err == "nsm: /dev/full can't be written: No space left on device\n"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_failure_leaves_what_was_there(
    nsm: Nsm, files: FakeFiles, here: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """Also on file systems without files that have no name."""
    if not unnamed:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # refused with EINVAL or EISDIR
    files.files = {"/workspace/big": (BIG, 0o644)}
    (here / "big").write_text("old")
    written: list[bytes] = []
    real = LocalTarget.write

    def write(target: LocalTarget, data: bytes) -> None:
        real(target, data)
        written.append(data)
        if len(written) == 2:
            with open("/dev/full", "wb", buffering=0) as full:
                os.dup2(full.fileno(), target._descriptor)  # pyright: ignore[reportPrivateUsage]

    with monkeypatch.context() as patched:
        patched.setattr(LocalTarget, "write", write)
        code, err = cp(nsm, "work:big", "big")
    assert code == 1
    assert err.startswith("nsm: big can't be written: No space left on device\nNothing of")
    assert (here / "big").read_text() == "old"
    assert os.listdir(here) == ["big"]
    assert cp(nsm, "work:big", "big") == (0, "")
    assert cp(nsm, "work:big", "new") == (0, "")
    assert (here / "big").read_bytes() == (here / "new").read_bytes() == BIG
    assert sorted(os.listdir(here)) == ["big", "new"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_copy_that_is_ended_leaves_nothing(
    files: FakeFiles, here: Path, number: int, code: int
) -> None:
    files.files = {"/workspace/big": (BIG, 0o644)}
    files.hold["/workspace/big"] = threading.Event()
    (here / "big").write_text("old")
    with ending(subprocess.Popen([*NSM, "cp", "work:big", "."], stderr=subprocess.PIPE)) as process:
        assert files.reading.wait(TIMEOUT_S)
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_S)
    files.hold["/workspace/big"].set()
    assert (process.returncode, err) == (code, b"")
    assert (here / "big").read_text() == "old"
    assert os.listdir(here) == ["big"]


def test_a_terminal_is_not_driven(files: FakeFiles) -> None:
    files.files = {"/workspace/a": ("é\x1b]0;title\x07\x1b[31mred\x1b[".encode() + b"\xff", 0o644)}
    ours, theirs = pty.openpty()
    with ending(subprocess.Popen([*NSM, "cp", "work:a", "-"], stdout=theirs)) as process:
        os.close(theirs)
        assert process.wait(TIMEOUT_S) == 0
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert shown == "é\\x1b]0;title\\x07\x1b[31mred\\x1b[\ufffd\x1b[0m"


# Progress.


def test_progress_is_for_terminals_and_comes_late(
    files: FakeFiles, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    files.files = {"/workspace/a\x1b": (BIG, 0o644)}
    assert cp(nsm, "work:a\x1b", "b") == (0, "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cp(nsm, "work:a\x1b", "b") == (0, "")
    monkeypatch.setattr(verb, "_FIRST_S", 0.0)
    monkeypatch.setattr(verb, "_EVERY_S", 0.0)
    code, err = cp(nsm, "work:a\x1b", "b")
    assert code == 0
    assert err.startswith("\rwork:a\\x1b  0.2 MiB of 0.8 MiB  33 %  ")
    assert "/s  0s left\x1b[K\rwork:a\\x1b  0.5 MiB of 0.8 MiB  66 %" in err
    assert err.endswith("\r\x1b[K")
    _, err = cp(nsm, "b", "work:b")
    assert err.startswith("\rb  0.2 MiB of 0.8 MiB  33 %  ")
    assert "100 %" in err


# Operands of `nsm cp`, and their meaning.


@pytest.mark.parametrize(
    ("operands", "paths"),
    [
        (["a.csv", "s:"], ["a.csv"]),
        (["a.csv", "s:b.csv"], ["b.csv"]),
        (["dir/a.csv", "s:b/"], ["b/a.csv"]),
        (["a.csv", "s:/tmp/."], ["/tmp/./a.csv"]),
        (["a", "d/b", "s:"], ["a", "b"]),
        (["-", "s:c"], ["c"]),
        (["d/", "s:"], ["d"]),
        ([".", "s:"], [""]),
        (["./x:y", "s:"], ["x:y"]),
        (["latin\udce9", "s:other"], ["other"]),
    ],
)
def test_to_a_session(operands: list[str], paths: list[str]) -> None:
    copies = plan(operands)
    assert [copy.target for copy in copies] == [Remote("s", path) for path in paths]
    assert all(isinstance(copy, Upload) for copy in copies)


@pytest.mark.parametrize(
    ("operands", "why", "hint"),
    [
        (["a", "b"], "neither a nor b is in a session", "SESSION:PATH"),
        (["s:a", "t:b"], "both s:a and t:b are in sessions", "nsm cp s:a - | nsm cp - t:b"),
        (["a", "s:b", "t:c"], "both s:b and t:c are in sessions", "a pipe"),
        (["s:a", "b", "c"], "neither b nor c is in a session", ""),
        (["s:", "-"], "s: is a directory", "shutil.make_archive"),
        (["s:..", "-"], "s:.. is a directory", "tar -cf"),
        (["a/", "b/a", "s:"], "two of the files would become 'a'", "one by one"),
        (["s:a/", "t:b/a", "d"], "two of the files would become 'a'", "one by one"),
        (["s:$(a)", "t:b"], "both", "nsm cp 's:$(a)' - | nsm cp - t:b"),
        (["-", "s:"], "standard input has no name", "s:data"),
        (["-", "b", "s:d"], "standard input has no name", "s:d/data"),
        (["s:a", "s:b", "-"], "several files make no one stream", "one by one"),
        (["s:a/x", "t:x", "d"], "two of the files would become 'x'", "one by one"),
        (["latin\udce9", "s:"], "'s:latin\\udce9' is not UTF-8 text", "SESSION:NAME"),
        (["s:latin\udce9", "x"], "'s:latin\\udce9' is not UTF-8 text", ""),
        (["", "s:"], "an empty name is not a file", ""),
    ],
)
def test_operands_that_mean_nothing_are_refused(operands: list[str], why: str, hint: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        plan(operands)
    assert caught.value.message.startswith(why)
    assert hint in caught.value.hint
