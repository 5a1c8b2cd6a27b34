"""Requests about files that need one answer, files through descriptors, and whole directories."""

from __future__ import annotations

import base64
import io
import os
import select
import signal
import stat
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_process import AgentProcess, RefusedError
from sandbox.archives import PipeSink
from selection import one_in

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_BYTE = bytes(byte for byte in range(1, 256) if byte != ord("/"))
"""A name with every byte that a name can have."""


def ask(agent: AgentProcess, kind: str, path: object = None, **fields: Any) -> dict[str, Any]:
    """One request and its answer."""
    if path is not None:
        fields["path"] = os.fsdecode(path) if isinstance(path, (bytes, Path)) else path
    return agent.ask(kind, "f", **fields)


def opened(
    agent: AgentProcess, path: object, mode: str, **fields: Any
) -> tuple[dict[str, Any], int]:
    """The answer to `file_open`, and the descriptor that comes along."""
    agent.send(type="file_open", id="f", path=str(path), mode=mode, descriptor=True, **fields)
    frame, descriptor = agent.expect_with_descriptor("file")
    assert frame["descriptor"] is True
    return frame, descriptor


def put(agent: AgentProcess, path: object, data: bytes, **fields: Any) -> dict[str, Any]:
    return ask(agent, "file_put", path, data=base64.b64encode(data).decode(), **fields)


def get(agent: AgentProcess, path: object, **fields: Any) -> bytes:
    return base64.b64decode(ask(agent, "file_get", path, **fields)["data"])


def entries(agent: AgentProcess, path: object, **fields: Any) -> list[str]:
    return [entry[0] for entry in ask(agent, "file_entries", path, **fields)["entries"]]


def refusal(agent: AgentProcess, kind: str, path: object, **fields: Any) -> str:
    """The error's name when a request is refused."""
    with pytest.raises(RefusedError) as caught:
        ask(agent, kind, path, **fields)
    return caught.value.code


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {".nsm"}


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def unpack(agent: AgentProcess, path: object, archive: bytes) -> dict[str, Any]:
    """Unpack an archive; the answer to its end."""
    _, pipe = opened(agent, path, "unpack")
    with open(pipe, "wb") as writer:
        writer.write(archive)
    return ask(agent, "file_close", keep=True)


# One request, one answer.


def test_a_file_in_one_step(agent: AgentProcess) -> None:
    where = agent.workspace / "a"
    answer = put(agent, "a", b"0123456789", permissions=0o640)
    assert answer == {
        "type": "file_closed",
        "id": "f",
        "path": str(where),
        "size": 10,
        "permissions": 0o640,
    }
    assert stat.S_IMODE(where.stat().st_mode) == 0o640
    whole = ask(agent, "file_get", "a")
    assert base64.b64decode(whole.pop("data")) == b"0123456789"
    assert whole == {
        "type": "file_content",
        "id": "f",
        "path": str(where),
        "size": 10,
        "permissions": 0o640,
        "eof": True,
    }
    assert get(agent, "a", offset=3, bytes=4) == b"3456"
    assert not ask(agent, "file_get", "a", offset=3, bytes=4)["eof"]
    assert get(agent, "a", offset=50) == b""
    put(agent, "a", b"new")
    assert where.read_bytes() == b"new"
    assert refusal(agent, "file_put", "a", data="", overwrite=False) == "EEXIST"


def test_appended_bytes_follow_the_old_ones(agent: AgentProcess) -> None:
    put(agent, "log", b"1\n", append=True, permissions=0o600)
    assert put(agent, "log", b"2\n", append=True)["size"] == 4
    assert (agent.workspace / "log").read_bytes() == b"1\n2\n"
    (agent.workspace / "link").symlink_to("log")
    assert refusal(agent, "file_put", "link", data="", append=True) == "ELOOP"


def test_missing_directories_are_made_when_asked(agent: AgentProcess) -> None:
    assert refusal(agent, "file_put", "x/y/z", data="") == "ENOENT"
    put(agent, "x/y/z", b"1", parents=True)
    assert (agent.workspace / "x/y/z").read_bytes() == b"1"
    (agent.workspace / "through").symlink_to("x")
    ask(agent, "file_mkdir", "through/a/b", parents=True)
    assert (agent.workspace / "x/a/b").is_dir()
    assert refusal(agent, "file_mkdir", "x/y/z", parents=True) == "EEXIST"
    assert refusal(agent, "file_mkdir", "x/y/z/q", parents=True) == "ENOTDIR"


def test_stat_follows_links_only_if_asked(agent: AgentProcess) -> None:
    where = agent.workspace / "tool"
    where.write_bytes(b"12345")
    where.chmod(0o4751)
    os.utime(where, (1, 1_700_000_000.5))
    (agent.workspace / "link").symlink_to("tool")
    told = ["tool", "file", 5, 0o4751, 1_700_000_000_500_000]
    assert ask(agent, "file_stat", "tool")["entries"] == [told]
    link = ask(agent, "file_stat", "link")
    assert (link["target"], link["entries"][0][:2]) == ("tool", ["link", "link"])
    followed = ask(agent, "file_stat", "link", follow=True)
    assert (followed["path"], followed["entries"]) == (str(where), [told])
    assert ask(agent, "file_stat", ".")["entries"][0][1] == "directory"
    assert ask(agent, "file_stat", "/")["entries"][0][:2] == ["/", "directory"]
    os.mkfifo(agent.workspace / "pipe")
    for name in ("pipe", "/dev/null", "/dev/zero"):
        assert ask(agent, "file_stat", name)["entries"][0][1] == "other"
    ask(agent, "file_remove", "pipe")
    assert names(agent.workspace) == {"tool", "link"}
    assert refusal(agent, "file_stat", "/proc/self/environ") == "EPERM"
    assert refusal(agent, "file_stat", "none") == "ENOENT"
    assert refusal(agent, "file_stat", "tool/") == "ENOTDIR"


def test_a_large_directory_comes_in_pages(agent: AgentProcess) -> None:
    (agent.workspace / "many").mkdir()
    wanted = [f"n{number:04}" for number in range(5000)]
    for name in wanted:
        (agent.workspace / "many" / name).touch()
    found: list[str] = []
    more, pages = True, 0
    while more:
        page = ask(agent, "file_entries", "many", after=found[-1] if found else "")
        found += [entry[0] for entry in page["entries"]]
        more, pages = page["more"], pages + 1
        (agent.workspace / "many" / "n0000").unlink(
            missing_ok=True
        )  # what goes meanwhile is no harm
    assert (found, pages) == (wanted, 5)
    assert entries(agent, "many", after="n4997") == ["n4998", "n4999"]


def test_a_directory_that_is_removed_while_it_is_listed(agent: AgentProcess) -> None:
    result = agent.python("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')")
    assert result.exit_code == 0
    assert refusal(agent, "file_entries", "gone") == "ENOENT"


def test_removal(agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").touch()
    deep = agent.workspace / "d" / "e"
    deep.mkdir(parents=True)
    (deep / "f").touch()
    (deep / "link").symlink_to(outside)
    assert refusal(agent, "file_remove", "d") == "ENOTEMPTY"
    answer = ask(agent, "file_remove", "d", recursive=True)
    assert (answer["path"], answer["entries"]) == (str(agent.workspace / "d"), 4)
    assert names(agent.workspace) == set()
    assert names(outside) == {"kept"}
    (agent.workspace / "link").symlink_to(outside)
    ask(agent, "file_remove", "link", recursive=True)
    assert names(outside) == {"kept"}
    for wrong in ("/", ".", "..", "none"):
        with pytest.raises(RefusedError):
            ask(agent, "file_remove", wrong, recursive=True)


def test_new_names(agent: AgentProcess) -> None:
    put(agent, "a", b"a")
    put(agent, "b", b"b")
    assert refusal(agent, "file_rename", "a", to="b", overwrite=False) == "EEXIST"
    assert refusal(agent, "file_rename", "a", to="none/b") == "ENOENT"
    assert ask(agent, "file_rename", "a", to="b")["path"] == str(agent.workspace / "b")
    assert names(agent.workspace) == {"b"}
    assert get(agent, "b") == b"a"
    ask(agent, "file_rename", "b", to="c", overwrite=False)
    assert names(agent.workspace) == {"c"}


# Through a descriptor.


def test_a_file_is_read_through_its_descriptor(agent: AgentProcess) -> None:
    (agent.workspace / "a").write_bytes(b"content")
    frame, descriptor = opened(agent, "a", "read")
    assert frame["size"] == 7
    with open(descriptor, "rb") as file:
        assert file.read() == b"content"
    ask(agent, "file_close", keep=True)
    descriptor = opened(agent, "a", "read")[1]
    with pytest.raises(OSError, match="Bad file"):
        os.write(descriptor, b"x")
    os.close(descriptor)
    ask(agent, "file_close", keep=True)


def test_a_file_that_is_written_through_its_descriptor_appears_whole(agent: AgentProcess) -> None:
    _, descriptor = opened(agent, "a", "write", permissions=0o600)
    os.write(descriptor, b"half")
    assert names(agent.workspace) == set()
    os.write(descriptor, b" and half")
    os.close(descriptor)
    assert ask(agent, "file_close", keep=True)["size"] == 13
    assert (agent.workspace / "a").read_bytes() == b"half and half"
    _, descriptor = opened(agent, "a", "write")
    os.write(descriptor, b"lost")
    os.close(descriptor)
    ask(agent, "file_close", keep=False)
    assert (agent.workspace / "a").read_bytes() == b"half and half"
    _, descriptor = opened(agent, "a", "write", limit=3)
    os.write(descriptor, b"long")
    os.close(descriptor)
    assert refusal(agent, "file_close", None, keep=True) == "EFBIG"
    assert (agent.workspace / "a").read_bytes() == b"half and half"


# Whole directories.


def test_a_directory_goes_out_and_comes_back(agent: AgentProcess) -> None:
    top = agent.workspace / "top"
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "sub" / "tool").write_bytes(b"x" * 1000)
    (top / "sub" / "tool").chmod(0o750)
    os.utime(top / "sub" / "tool", (1, 1_700_000_000))
    (top / os.fsdecode(EVERY_BYTE[:200])).write_bytes(b"odd")
    (top / ("long" * 60)).write_bytes(b"long")
    (top / "link").symlink_to("sub/tool")
    (top / "away").symlink_to("/etc/passwd")
    os.mkfifo(top / "pipe")
    _, pipe = opened(agent, "top", "archive")
    with open(pipe, "rb") as reader:
        archive = reader.read()
    told = ask(agent, "file_close", keep=True)
    assert (told["entries"], told["size"], told["left_out"]) == (7, 1007, 1)
    assert [path for path, _ in told["skipped"]] == ["pipe"]
    told = unpack(agent, "copy", archive)
    assert (told["entries"], told["size"], told["left_out"]) == (7, 1007, 0)
    copy = agent.workspace / "copy"
    assert {path.relative_to(copy) for path in copy.rglob("*")} == {
        path.relative_to(top) for path in top.rglob("*") if path.name != "pipe"
    }
    assert (copy / "sub" / "tool").stat().st_mode == (top / "sub" / "tool").stat().st_mode
    assert (copy / "sub" / "tool").stat().st_mtime == 1_700_000_000
    assert os.readlink(copy / "away") == "/etc/passwd"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert len(tar.getmembers()) == 7


def test_an_archive_leads_nowhere_but_below_its_directory(
    agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_bytes(b"secret")
    archive = archive_of(
        (member("good"), b"good"),
        (member("../evil"), b"1"),
        (member("a/../../evil"), b"1"),
        (member(str(outside / "evil")), b"1"),
        (member("out", tarfile.SYMTYPE, str(outside)), b""),
        (member("out/evil"), b"1"),
        (member("hard", tarfile.LNKTYPE, str(outside / "secret")), b""),
        (member("hard", tarfile.LNKTYPE, f"../../{outside.name}/secret"), b""),
        (member("hard", tarfile.LNKTYPE, "out/secret"), b""),
        (member("device", tarfile.CHRTYPE), b""),
        (member("fifo", tarfile.FIFOTYPE), b""),
        (member("twin", tarfile.LNKTYPE, "good"), b""),
        (member("last"), b"last"),
    )
    told = unpack(agent, "d", archive)
    assert (told["entries"], told["left_out"]) == (4, 9)
    directory = agent.workspace / "d"
    assert names(directory) == {"good", "out", "twin", "last"}
    assert (directory / "twin").read_bytes() == b"good"
    assert names(outside) == {"secret"}
    assert not (agent.workspace / "evil").exists()
    # What is a link by now is not written through.
    told = unpack(agent, "d", archive_of((member("out"), b"1")))
    assert told["left_out"] == 1
    assert names(outside) == {"secret"}


@pytest.mark.parametrize("time", ["nan", "inf", "-inf", "1e300"])
def test_members_with_impossible_times_are_unpacked(agent: AgentProcess, time: str) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info in (
            member("directory", tarfile.DIRTYPE),
            member("file"),
            member("link", tarfile.SYMTYPE, "file"),
        ):
            info.pax_headers = {"mtime": time}
            tar.addfile(info)
    told = unpack(agent, "d", made.getvalue())
    assert (told["entries"], told["left_out"]) == (3, 0)
    for name in ("directory", "file", "link"):
        assert os.lstat(agent.workspace / "d" / name).st_mtime == 0


def test_files_of_all_sizes_go_out_and_come_back(agent: AgentProcess) -> None:
    sizes = (0, 1, 511, 512, 513, 65023, 65024, 65535, 65536, 65537, 3_000_001)
    contents = {f"{size}": os.urandom(size) for size in sizes}
    (agent.workspace / "top").mkdir()
    for name, data in contents.items():
        (agent.workspace / "top" / name).write_bytes(data)
    _, pipe = opened(agent, "top", "archive")
    with open(pipe, "rb") as reader:
        archive = reader.read()
    assert ask(agent, "file_close", keep=True)["size"] == sum(sizes)
    assert unpack(agent, "copy", archive)["size"] == sum(sizes)
    copied = {path.name: path.read_bytes() for path in (agent.workspace / "copy").iterdir()}
    assert copied == contents


@pytest.mark.parametrize(
    "form", one_in(3, ["--sparse --format=gnu", "--sparse --format=pax", "--format=v7"])
)
def test_archives_of_another_program(agent: AgentProcess, form: str, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(50_000_000)
        file.write(b"middle")
        file.truncate(80_000_000)
    (tmp_path / "plain").write_bytes(b"plain")
    command = ["tar", *form.split(), "-c", "sparse", "plain"]
    archive = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    assert unpack(agent, "d", archive)["size"] == 80_000_005
    directory = agent.workspace / "d"
    assert (directory / "sparse").read_bytes() == (tmp_path / "sparse").read_bytes()
    assert (directory / "plain").read_bytes() == b"plain"


def test_a_file_is_replaced_by_one_of_an_archive(agent: AgentProcess) -> None:
    directory = agent.workspace / "d"
    (directory / "taken").mkdir(parents=True)
    (directory / "old").write_bytes(b"old")
    told = unpack(agent, "d", archive_of((member("old"), b"new"), (member("taken"), b"1")))
    assert (told["entries"], told["left_out"]) == (1, 1)
    assert (directory / "old").read_bytes() == b"new"
    assert names(directory) == {"old", "taken"}


@pytest.mark.parametrize("size", [1000, 200_000])
def test_an_archive_goes_on_behind_a_file_that_cannot_be_read(size: int, tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    with (tmp_path / "archive").open("wb") as file:
        sink = PipeSink(file.fileno())
        with pytest.raises(IsADirectoryError):
            sink.copy(directory, size)
        sink.write(b"next")
        sink.flush()
    os.close(directory)
    assert (tmp_path / "archive").read_bytes() == bytes(size + -size % 512) + b"next"


@pytest.mark.parametrize(
    "archive", [b"no archive" * 100, archive_of((member("a"), b"1" * 600))[:700]]
)
def test_broken_archives_are_refused(agent: AgentProcess, archive: bytes) -> None:
    _, pipe = opened(agent, "d", "unpack")
    with open(pipe, "wb") as writer:
        writer.write(archive)
    with pytest.raises(RefusedError, match="archive"):
        ask(agent, "file_close", keep=True)
    assert names(agent.workspace / "d") == set()


def test_an_archive_that_is_given_up_leaves_no_half_file(agent: AgentProcess) -> None:
    archive = archive_of((member("whole"), b"1" * 1000), (member("half"), b"2" * 10_000_000))
    (agent.workspace / "d").mkdir()
    _, pipe = opened(agent, "d", "unpack")
    os.write(pipe, archive[:1_000_000])
    ask(agent, "file_close", keep=False)
    waiting = select.poll()
    waiting.register(pipe, 0)
    assert waiting.poll(20_000)  # the child is gone
    os.close(pipe)
    directory = agent.workspace / "d"
    assert not directory.exists() or names(directory) <= {"whole"}  # it may go if it is empty


def test_a_directory_for_an_archive_that_never_came_is_gone(agent: AgentProcess) -> None:
    (agent.workspace / "old").mkdir()
    for name in ("old", "new"):
        _, pipe = opened(agent, name, "unpack")
        ask(agent, "file_close", keep=False)
        os.close(pipe)
    assert names(agent.workspace) == {"old"}


def test_a_child_that_code_kills(agent: AgentProcess) -> None:
    (agent.workspace / "big").mkdir()
    (agent.workspace / "big" / "file").write_bytes(b"x" * 10_000_000)
    _, pipe = opened(agent, "big", "archive")
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text()
    os.kill(int(children.split()[-1]), signal.SIGKILL)
    with open(pipe, "rb") as reader:
        assert len(reader.read()) < 10_000_000
    with pytest.raises(RefusedError, match="was ended"):
        ask(agent, "file_close", keep=True)
    assert get(agent, "big/file", bytes=1) == b"x"


# Watches.


def test_more_happens_than_is_told(agent: AgentProcess) -> None:
    assert ask(agent, "file_watch", ".")["path"] == str(agent.workspace)
    os.kill(agent.process.pid, signal.SIGSTOP)
    for number in range(1000):
        (agent.workspace / f"{number}").touch()
    os.kill(agent.process.pid, signal.SIGCONT)
    told, overflow = 0, False
    while not overflow:
        frame = agent.expect("file_events")
        told, overflow = told + len(frame["events"]), frame["overflow"]
    assert 0 < told < 1000
    agent.send(type="file_unwatch", id="f")
    agent.expect("file_closed")
    (agent.workspace / "later").touch()
    ask(agent, "file_stat", "later")


def test_a_file_that_is_put_is_told_as_one_that_is_written(agent: AgentProcess) -> None:
    agent.send(type="file_watch", id="w", path=".")
    agent.expect("file_watching")
    put(agent, "new", b"1")
    assert agent.expect("file_events")["events"] == [
        ["created", "new", ""],
        ["modified", "new", ""],
    ]
    put(agent, "new", b"2")
    assert agent.expect("file_events")["events"] == [["modified", "new", ""]]


def test_watches_are_refused_with_the_reason(agent: AgentProcess) -> None:
    many = agent.workspace / "many"
    for number in range(1001):
        (many / f"{number}").mkdir(parents=True)
    assert refusal(agent, "file_watch", "none") == "ENOENT"
    assert refusal(agent, "file_watch", "/proc") == "EPERM"
    agent.send(type="file_watch", id="w", path=".")
    agent.expect("file_watching")
    for number in range(15):
        agent.send(type="file_watch", id=number, path=".")
        agent.expect("file_watching")
    assert refusal(agent, "file_watch", ".") == "EMFILE"
    agent.send(type="file_unwatch", id=0)
    agent.expect("file_closed")
    assert refusal(agent, "file_watch", "many", recursive=True) == "ENOSPC"


SWAPS = """
import os, threading
os.makedirs('a/b', exist_ok=True)
open('a/b/f', 'w').write('good')
os.mkfifo('pipe')
stop = False
def swap():
    while not stop:
        for other in ('/proc/1', 'pipe', '/dev/zero', '/proc/self/fd'):
            os.symlink(other, 'a/link')
            os.rename('a/b', 'a/aside')
            os.rename('a/link', 'a/b')
            os.unlink('a/b')
            os.rename('a/aside', 'a/b')
            os.symlink(other, 'a/b/link')
            os.rename('a/b/link', 'a/b/w')
threading.Thread(target=swap, daemon=True).start()
"""
"""Code that puts links to what nobody may read in the place of a directory and of a file."""


@pytest.mark.jail
def test_links_that_are_swapped_in_under_way(jailed: AgentProcess) -> None:
    """Requests get what they mean or are refused; none hangs, or reads what no session may."""
    assert jailed.python(SWAPS).exit_code == 0
    done: Counter[str] = Counter()
    archive = archive_of((member("new"), b"mine"))

    def read_through_descriptor() -> None:
        with open(opened(jailed, "a/b/f", "read")[1], "rb") as file:
            assert file.read(100) == b"good"
        ask(jailed, "file_close", keep=True)

    def write_through_descriptor(name: str) -> None:
        descriptor = opened(jailed, f"a/b/{name}", "write")[1]
        os.write(descriptor, b"mine")
        os.close(descriptor)
        ask(jailed, "file_close", keep=True)

    def archive_all() -> None:
        with open(opened(jailed, "a", "archive")[1], "rb") as pipe:
            whole = pipe.read(1 << 20)
        ask(jailed, "file_close", keep=True)
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            for info in tar.getmembers():
                if info.isfile() and (content := tar.extractfile(info)) is not None:
                    assert content.read() in (b"good", b"mine")

    def check_get() -> None:
        assert get(jailed, "a/b/f") == b"good"

    def read_in_pieces() -> None:
        agent_open("a/b/f", "read")
        assert base64.b64decode(ask(jailed, "file_read", bytes=100)["data"]) == b"good"
        ask(jailed, "file_close", keep=True)

    def write_in_pieces(name: str) -> None:
        agent_open(f"a/b/{name}", "write")
        ask(jailed, "file_write", data=base64.b64encode(b"mine").decode())
        ask(jailed, "file_close", keep=True)

    def agent_open(path: str, mode: str) -> None:
        ask(jailed, "file_open", path, mode=mode)

    ways: dict[str, Callable[[], object]] = {
        "get": check_get,
        "read in pieces": read_in_pieces,
        "write in pieces": lambda: write_in_pieces("v"),
        "put": lambda: put(jailed, "a/b/v", b"mine"),
        "entries": lambda: entries(jailed, "a/b"),
        "stat": lambda: ask(jailed, "file_stat", "a/b/f"),
        "read": read_through_descriptor,
        "write": lambda: write_through_descriptor("v"),
        "archive": archive_all,
        "unpack": lambda: unpack(jailed, "a/b/deep", archive),
    }
    over_links: dict[str, Callable[[], object]] = {
        "put over a link": lambda: put(jailed, "a/b/w", b"mine"),
        "write over a link": lambda: write_through_descriptor("w"),
        "write over a link in pieces": lambda: write_in_pieces("w"),
    }
    for _ in range(30):
        for name, way in (ways | over_links).items():
            try:
                way()
                done[name] += 1
            except RefusedError:
                done["refused"] += 1
    assert min(done[name] for name in ways) > 0, done
    assert done["refused"] > 0
    found = "stop = True\nimport glob\nprint(glob.glob('a/**/.*', recursive=True))"
    assert jailed.python(found).stdout == "[]\n"
