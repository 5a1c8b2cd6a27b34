"""Files of sessions in real jails, through the clients."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from nsm.wire.errors import BadRequestError, FileError, FileTooLargeError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor
    from nsm.client.session_files import SessionFiles

EVERY_BYTE = os.fsdecode(bytes(byte for byte in range(1, 256) if byte != ord("/")))
BIG = os.urandom(3_000_000)


HOARD = """
import os, socket
fd, pairs = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        pairs.append(socket.socketpair())
        for _ in range(4):
            socket.send_fds(pairs[-1][0], [b"x"], [fd] * 250)
except OSError as error:
    print(error.errno)
"""
"""Code that has as many descriptors on their way as the kernel lets sessions have together."""


@pytest.fixture
def client(shared: Supervisor) -> Generator[nsm.Client]:
    with shared.client() as client:
        client.run("x = 1", env="python", session="f")
        yield client
        client.kill_all()


@pytest.fixture
def files(client: nsm.Client) -> SessionFiles:
    return client.files("f")


def names(files: SessionFiles, path: str = ".") -> set[str]:
    return {entry.name for entry in files.list(path)}


def test_files_are_written_read_listed_renamed_and_removed(
    client: nsm.Client, files: SessionFiles
) -> None:
    info = files.write("data/in.csv", "1,2\n", parents=True, permissions=0o640)
    assert info == nsm.FileInfo("/workspace/data/in.csv", 4, 0o640)
    files.append("data/in.csv", b"3,4\n")
    assert client.run_in("f", "print(open('data/in.csv').read())").stdout == "1,2\n3,4\n\n"
    assert files.read("data/in.csv", offset=4, length=3) == b"3,4"
    (entry,) = files.list("data")
    assert (entry.name, entry.kind, entry.size, entry.permissions) == ("in.csv", "file", 8, 0o640)
    assert files.stat("data").kind == "directory"
    files.rename("data/in.csv", "data/out.csv")
    assert not files.exists("data/in.csv")
    files.mkdir("a/b", parents=True)
    files.remove("a", recursive=True)
    files.remove("data/out.csv")
    files.remove("data")
    assert names(files) == set()
    with pytest.raises(FileError) as caught:
        files.read("none")
    assert caught.value.data["errno"] == "ENOENT"


def test_a_large_file_and_its_parts(files: SessionFiles) -> None:
    files.write("big", BIG)
    assert files.read("big") == BIG
    assert files.read("big", offset=1_000_000, length=700_000) == BIG[1_000_000:1_700_000]
    assert files.read("big", offset=len(BIG) - 5) == BIG[-5:]
    with pytest.raises(FileTooLargeError):
        files.read("big", max_bytes=1000)
    with pytest.raises(FileError) as caught:
        files.write("big", BIG, overwrite=False)
    assert caught.value.data["errno"] == "EEXIST"


def test_a_file_that_does_not_fit_leaves_nothing(client: nsm.Client, files: SessionFiles) -> None:
    files.write("/dev/shm/old", "old")
    with pytest.raises(FileError) as caught:
        files.write("/dev/shm/old", bytes(70_000_000))
    assert caught.value.data["errno"] == "ENOSPC"
    assert files.read("/dev/shm/old") == b"old"
    pieces = iter([bytes(1_000_000)] * 70)
    # Nobody knows the size before: that is noticed when the disk is full.
    with pytest.raises(FileError) as caught:
        client.files("f").write_from("/dev/shm/old", lambda _: next(pieces, b""))
    assert caught.value.data["errno"] == "ENOSPC"
    assert names(files, "/dev/shm") == {"old"}
    assert files.read("/dev/shm/old") == b"old"


def test_any_name(client: nsm.Client, files: SessionFiles) -> None:
    files.write(EVERY_BYTE, "odd")
    assert names(files) == {EVERY_BYTE}
    assert files.read(os.fsencode(EVERY_BYTE)) == b"odd"
    listed = client.run_in("f", "import os; print(os.listdir(b'.'))").stdout
    assert listed == f"{[os.fsencode(EVERY_BYTE)]}\n"
    files.rename(EVERY_BYTE, "plain")
    assert names(files) == {"plain"}


@pytest.mark.parametrize("name", ["\ud800", "d/\udfff"])
def test_half_a_character_is_no_name(files: SessionFiles, name: str) -> None:
    for do in (files.read, files.remove, files.list, files.exists, files.mkdir):
        with pytest.raises(BadRequestError, match="half a character"):
            do(name)


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("path", ["/workspace", "/tmp", "/dev/shm"])
def test_mount_points_are_not_emptied(files: SessionFiles, path: str, *, recursive: bool) -> None:
    files.write(f"{path}/d/f", "1", parents=True)
    with pytest.raises(FileError, match="mount point") as caught:
        files.remove(path, recursive=recursive)
    assert caught.value.data["errno"] == "EBUSY"
    assert files.read(f"{path}/d/f") == b"1"
    files.remove(f"{path}/d", recursive=True)


def test_the_progress_of_copies_is_told(files: SessionFiles, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "tool").write_bytes(BIG)
    (tree / "link").symlink_to("sub/tool")
    os.mkfifo(tree / "pipe")
    moved: list[int] = []
    totals: list[tuple[int, int | None]] = []
    files.mkdir("there")
    sent = files.upload(tree, "there/tree", on_progress=lambda size, _: moved.append(size))
    assert (sent.path, sent.entries, sent.left_out) == ("/workspace/there/tree", 3, 1)
    assert moved == sorted(moved)
    assert moved[-1] > len(BIG)
    files.download(
        "there/tree/sub/tool",
        tmp_path / "one",
        on_progress=lambda size, total: totals.append((size, total)),
    )
    assert totals[-1] == (len(BIG), len(BIG))
    files.download("there/tree/sub/tool", tmp_path, into=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "tool").read_bytes() == BIG


@pytest.mark.alone  # the kernel counts them for the sessions of all workers
def test_descriptors_that_another_session_has_on_their_way(
    shared: Supervisor, client: nsm.Client, files: SessionFiles, tmp_path: Path
) -> None:
    """No session ends of it: files come as bytes, and what needs a descriptor is refused."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(BIG)
    hoard = client.run(HOARD, env="python", session="hoard").stdout
    assert int(hoard) == errno.ETOOMANYREFS, hoard
    files.upload(tmp_path / "tree" / "big", "big")
    files.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == BIG
    with pytest.raises(FileError, match="Too many references") as caught:
        files.upload(tmp_path / "tree", "tree")
    assert caught.value.data["errno"] == "ETOOMANYREFS"
    with pytest.raises(FileError, match="Too many references"):
        files.download(".", tmp_path / "all")
    assert names(files) == {"big"}
    refused = shared.run("nsm", "port", "f", "8000", "--listen", f"unix:{tmp_path}/web")
    assert refused.returncode != 0
    assert "Too many references" in refused.stderr
    client.fork("f", "copy")
    assert client.run_in("copy", "print(x)").stdout == "1\n"
    client.kill(["hoard"])
    files.upload(tmp_path / "tree", "tree")
    assert files.read("tree/big") == BIG
    assert client.run_in("f", "print(x)").stdout == "1\n"


def test_an_archive_as_a_stream(files: SessionFiles, tmp_path: Path) -> None:
    files.write("d/a", "1", parents=True)
    with (tmp_path / "d.tar").open("wb") as file:
        files.archive("d", file.write)
    with tarfile.open(tmp_path / "d.tar") as tar:
        assert tar.getnames() == ["a"]
    with (tmp_path / "d.tar").open("rb") as file:
        assert files.unpack("e", file.read).entries == 1
    assert files.read("e/a") == b"1"


def test_a_callback_that_raises_ends_a_copy(files: SessionFiles, tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def enough(_: int, __: int | None) -> None:
        raise EnoughError

    (tmp_path / "big").write_bytes(BIG)
    with pytest.raises(EnoughError):
        files.upload(tmp_path / "big", "big", on_progress=enough)
    with pytest.raises(EnoughError):
        files.upload(tmp_path, "tree", on_progress=enough)
    assert not files.exists("big")
    assert files.write("big", "works").size == 5


def test_watching(client: nsm.Client, files: SessionFiles) -> None:
    with files.watch(recursive=True) as watch:
        client.run_in("f", "import os; os.makedirs('d/e'); open('d/e/f', 'w').close()")
        seen = set[tuple[str, str]]()
        for event in watch:
            seen.add((event.kind, event.path))
            if event.path == "d/e/f":
                break
        assert {("created", "d"), ("created", "d/e"), ("created", "d/e/f")} <= seen
        files.rename("d", "g")
        renamed = next(event for event in watch if event.kind == "renamed")
        assert (renamed.path, renamed.to) == ("d", "g")
        files.write("g/e/f", "1")
        assert next(event for event in watch if "g/e/f" in (event.path, event.to))
    with files.watch("g") as watch:
        files.remove("g", recursive=True)
        assert ("removed", "") in [(event.kind, event.path) for event in watch]
    with pytest.raises(FileError):
        files.watch("none")


def test_watching_ends_with_the_session(shared: Supervisor, files: SessionFiles) -> None:
    with shared.client() as other, files.watch() as watch:
        other.kill(["f"])
        assert list(watch) == []


async def test_the_async_client(shared: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").write_bytes(BIG)
    async with shared.async_client() as client:
        await client.run("x = 1", env="python", session="f")
        files = client.files("f")
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(files.write, f"{number}", BIG)
        assert await files.read("3") == BIG
        assert [entry.name for entry in await files.list()] == ["0", "1", "2", "3"]
        await files.upload(tmp_path / "tree", "tree")
        await files.download("tree", tmp_path / "back")
        assert (tmp_path / "back" / "a").read_bytes() == BIG
        async with await files.watch() as watch:
            await files.append("new", "1")
            async for event in watch:
                if event.path == "new":
                    break
        with trio.move_on_after(0.01):
            while True:
                await files.upload(tmp_path / "tree", "again")
        await files.remove("tree", recursive=True)
        assert not await files.exists("tree")
        await client.kill(["f"])
    shutil.rmtree(tmp_path / "back")
