"""Files in and out of a session, and code in it that would have the agent misled or held up."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import resource
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_process import (
    AgentProcess,
    RefusedError,
    becomes_true,
    direct_agent,
    jailed_agent,
    short_directory,
)
from realjail import needs_bwrap
from sandbox.files import FileWriter
from sandbox.framing import encode_frame
from sandbox.paths import TransferError, open_path
from sandbox.polling import Poller
from sandbox.processes import ProcessTrees
from sandbox.transfers import TRANSFER_REQUESTS, Transfers

CHUNK = 256 * 1024
jail = pytest.mark.jail


def ask(agent: AgentProcess, kind: str, request: str = "f", **fields: Any) -> dict[str, Any]:
    frame = agent.ask(kind, request, **fields)
    assert frame["type"].startswith("file"), frame
    return frame


def opened(agent: AgentProcess, path: object, mode: str = "read", **fields: Any) -> dict[str, Any]:
    return ask(agent, "file_open", fields.pop("request", "f"), path=str(path), mode=mode, **fields)


def fetch(agent: AgentProcess, path: object, count: int = CHUNK) -> bytes:
    """A whole file."""
    opened(agent, path)
    data = b""
    eof = False
    while not eof:
        frame = ask(agent, "file_read", bytes=count)
        data += base64.b64decode(frame["data"], validate=True)
        eof = frame["eof"]
    assert ask(agent, "file_close", keep=True)["size"] == len(data)
    return data


def write(agent: AgentProcess, data: bytes, request: str = "f") -> dict[str, Any]:
    return ask(agent, "file_write", request, data=base64.b64encode(data).decode())


def store(agent: AgentProcess, path: object, data: bytes, **fields: Any) -> dict[str, Any]:
    """A whole file; the answer to its end."""
    opened(agent, path, "write", **fields)
    for start in range(0, len(data), CHUNK):
        write(agent, data[start : start + CHUNK])
    return ask(agent, "file_close", keep=True)


def refused(agent: AgentProcess, path: object, mode: str = "read", **fields: Any) -> RefusedError:
    """Return the agent's error for a refused open."""
    with pytest.raises(RefusedError) as caught:
        opened(agent, path, mode, **fields)
    return caught.value


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {".nsm"}


# Plain use.


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_there_and_back(shared: AgentProcess, size: int) -> None:
    data = os.urandom(size)
    answer = store(shared, "there", data)
    assert answer["path"] == str(shared.workspace / "there")
    assert answer["size"] == size
    assert (shared.workspace / "there").read_bytes() == data
    assert fetch(shared, "there") == data
    assert fetch(shared, shared.workspace / "there", max(1, size // 3)) == data


def listed(agent: AgentProcess, path: object) -> dict[str, Any]:
    return ask(agent, "file_entries", "l", path=str(path))


def test_a_directory_is_listed(shared: AgentProcess) -> None:
    assert "files.direct" in shared.ready["capabilities"]
    top = shared.workspace / "listed"
    (top / "sub").mkdir(parents=True)
    (top / "a\nb").write_text("12345")
    (top / "link").symlink_to("sub")
    os.mkfifo(top / "pipe")
    with open(os.fsencode(top) + b"/\xff", "w"):
        pass
    found = listed(shared, "sub/../listed" if (shared.workspace / "sub").is_dir() else "listed/")
    assert found.pop("free_bytes") > 0
    assert [entry[:3] for entry in found.pop("entries")] == [
        ["a\nb", "file", 5],
        ["link", "link", 0],
        ["pipe", "other", 0],
        ["sub", "directory", 0],
        ["\udcff", "file", 0],
    ]
    assert found == {"type": "file_entries", "id": "l", "path": str(top), "more": False}
    assert listed(shared, top / "link")["path"] == str(top / "sub")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", "EINVAL"),
        ("none", "ENOENT"),
        ("file", "ENOTDIR"),
        ("/proc", "EPERM"),
        ("/proc/self/root", "EPERM"),
        ("loop", "ELOOP"),
        ("x" * 300, "ENAMETOOLONG"),
    ],
)
@pytest.mark.parametrize("kind", ["file_entries", "file_mkdir"])
def test_paths_without_a_directory_are_refused(
    shared: AgentProcess, path: str, code: str, kind: str
) -> None:
    (shared.workspace / "file").touch()
    if not (shared.workspace / "loop").is_symlink():
        (shared.workspace / "loop").symlink_to("loop")
    if kind == "file_mkdir":
        path = f"{path}/new" if path else path
    with pytest.raises(RefusedError) as caught:
        ask(shared, kind, "l", path=path)
    assert caught.value.code == code


def test_directories_are_made(shared: AgentProcess) -> None:
    made = shared.workspace / "made"
    for _ in range(2):  # also where it is
        answer = ask(shared, "file_mkdir", "l", path="made/")
        assert (answer["path"], answer["free_bytes"] > 0) == (str(made), True)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(made.stat().st_mode) == 0o777 & ~mask
    (made / "link").symlink_to("/tmp")
    (made / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(RefusedError) as caught:
            ask(shared, "file_mkdir", "l", path=f"made/{name}")
        assert caught.value.code == "EEXIST"
    assert opened(shared, "made/new", "write")["free_bytes"] > 0
    with pytest.raises(RefusedError, match="under this id"):
        ask(shared, "file_entries", "f", path="made")
    assert not (made / "new").exists()


def test_a_file_appears_whole_or_not_at_all(shared: AgentProcess) -> None:
    path = shared.workspace / "whole"
    before = names(shared.workspace)
    for keep in (False, True):
        opened(shared, "whole", "write")
        write(shared, b"old")
        assert names(shared.workspace) == before
        ask(shared, "file_close", keep=keep)
        assert path.exists() == keep
    opened(shared, "whole", "write")
    write(shared, b"new")
    with path.open() as reader:
        assert path.read_text() == "old"
        ask(shared, "file_close", keep=True)
        assert (path.read_text(), reader.read()) == ("new", "old")
    assert names(shared.workspace) == before | {"whole"}


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        (None, None, 0o666),
        (0o640, None, 0o640),
        (0o7755, None, 0o755),
        (0, None, 0),
        (None, 0o4710, 0o710),
        (0o600, 0o755, 0o600),
    ],
)
def test_permissions(
    shared: AgentProcess, asked: int | None, before: int | None, after: int
) -> None:
    path = shared.workspace / "permissions"
    path.unlink(missing_ok=True)
    if before is not None:
        path.touch()
        path.chmod(before)
    given = {} if asked is None else {"permissions": asked}
    if asked is None and before is None:
        mask = os.umask(0)
        os.umask(mask)
        after &= ~mask
    store(shared, "permissions", b"x", **given)
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_nothing_is_overwritten_against_the_callers_will(shared: AgentProcess) -> None:
    path = shared.workspace / "mine"
    path.write_text("mine")
    error = refused(shared, "mine", "write", overwrite=False)
    assert "exists already" in str(error)
    assert error.code == "EEXIST"
    path.unlink()
    opened(shared, "mine", "write", overwrite=False)
    path.write_text("came meanwhile")
    with pytest.raises(RefusedError, match="exists already"):
        ask(shared, "file_close", keep=True)
    assert path.read_text() == "came meanwhile"


def test_an_open_transfer_outlives_its_interpreter(agent: AgentProcess) -> None:
    agent.python("")
    opened(agent, "a", "write")
    write(agent, b"1")
    assert agent.python("import os; os._exit(3)").exit_code == 3
    write(agent, b"2")
    ask(agent, "file_close", keep=True)
    assert (agent.workspace / "a").read_bytes() == b"12"


def test_eight_files_at_a_time(shared: AgentProcess) -> None:
    for number in range(8):
        opened(shared, f"many{number}", "write", request=f"r{number}")
    error = refused(shared, "many", "write")
    assert "close one first" in str(error)
    for number in range(8):
        write(shared, b"%d" % number, f"r{number}")
    for number in range(8):
        ask(shared, "file_close", f"r{number}", keep=True)
        assert (shared.workspace / f"many{number}").read_bytes() == b"%d" % number
    assert fetch(shared, "many3") == b"3"


def test_a_directory_of_its_own_for_a_path_with_links(shared: AgentProcess) -> None:
    real = shared.workspace / "real" / "deep"
    real.mkdir(parents=True)
    (shared.workspace / "link").symlink_to("real")
    (shared.workspace / "back").symlink_to("link/deep/../deep")
    answer = store(shared, "back/x", b"1")
    assert answer["path"] == str(real / "x")
    (real / "to").symlink_to(real / "x")
    assert fetch(shared, "link/deep/to") == b"1"
    assert opened(shared, "link/deep/to")["path"] == str(real / "x")
    ask(shared, "file_close", keep=False)


# Requests that are none.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": 3}, "path"),
        ({"path": "a\0b"}, "NUL"),
        ({"path": "a/" * 3000}, "too long"),
        ({"path": "a" * 300}, "too long"),
        ({"path": "x", "mode": "append"}, "mode"),
        ({"path": "x", "mode": ["read"] * 100_000}, "mode"),
        ({"path": "x", "mode": "write", "permissions": "rw"}, "permissions"),
        ({"path": "x", "mode": "write", "permissions": -1}, "permissions"),
        ({"path": "x", "mode": "write", "overwrite": 1}, "overwrite"),
        ({"path": "none"}, "no such file"),
        ({"path": "none/x", "mode": "write"}, "no such file"),
    ],
)
def test_wrong_requests_to_open_are_refused(
    shared: AgentProcess, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        ask(shared, "file_open", **{"mode": "read", **fields})
    assert len(str(caught.value)) < 10_000
    with pytest.raises(RefusedError, match="no file is open"):
        ask(shared, "file_read", bytes=1)


@pytest.mark.parametrize(
    ("mode", "kind", "fields", "words"),
    [
        ("read", "file_read", {"bytes": 0}, "bytes"),
        ("read", "file_read", {"bytes": CHUNK + 1}, "bytes"),
        ("read", "file_read", {"bytes": True}, "bytes"),
        ("read", "file_write", {"data": ""}, "direction"),
        ("write", "file_read", {"bytes": 1}, "direction"),
        ("write", "file_write", {}, "data must be a text"),
        ("write", "file_write", {"data": "A"}, "padding|base64|valid"),
        ("write", "file_write", {"data": "\u00e4"}, "ASCII|base64"),
        ("write", "file_write", {"data": base64.b64encode(bytes(CHUNK + 1)).decode()}, "more than"),
        ("write", "file_write", {"data": "A" * 3_000_000}, "at most"),
        ("write", "file_open", {"path": "other", "mode": "read"}, "already"),
    ],
)
def test_a_bad_request_ends_the_transfer(
    agent: AgentProcess, mode: str, kind: str, fields: dict[str, Any], words: str
) -> None:
    (agent.workspace / "x").write_text("old")
    (agent.workspace / "other").touch()
    opened(agent, "x", mode)
    with pytest.raises(RefusedError, match=words):
        ask(agent, kind, **fields)
    with pytest.raises(RefusedError, match="no file is open"):
        ask(agent, "file_close", keep=True)
    assert (agent.workspace / "x").read_text() == "old"
    assert names(agent.workspace) == {"x", "other"}


# Directories, devices and links.


@pytest.fixture(scope="module")
def laid_out(shared: AgentProcess) -> Generator[AgentProcess]:
    """An agent whose workspace has one of each kind of file."""
    (shared.workspace / "directory").mkdir()
    (shared.workspace / "plain").touch()
    for name, target in {"to it": "directory", "one": "other", "other": "one"}.items():
        (shared.workspace / name).symlink_to(target)
    os.mkfifo(shared.workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(shared.workspace):
        server.bind("socket")
        yield shared


@pytest.mark.parametrize(
    ("path", "to_read", "to_write"),
    [
        *[
            (path, "is a directory", "is a directory")
            for path in ("directory", "directory/", "directory/.", ".", "..", "/", "/usr", "to it/")
        ],
        ("to it", "is a directory", "symbolic link"),
        ("plain/x", "should be a directory", "should be a directory"),
        ("plain/", "should be a directory", "is a directory"),
        ("plain/.", "should be a directory", "is a directory"),
        ("pipe", "a named pipe", "a named pipe"),
        ("socket", "a socket", "a socket"),
        *[
            (f"/dev/{name}", "a device", "a device")
            for name in ("zero", "full", "null", "tty", "random")
        ],
        ("one", "too many links", "name the file that is meant"),
        ("one/x", "too many links", "too many links"),
    ],
)
def test_other_than_files_are_neither_read_nor_written_nor_waited_for(
    laid_out: AgentProcess, path: str, to_read: str, to_write: str
) -> None:
    assert to_read in str(refused(laid_out, path))
    assert to_write in str(refused(laid_out, path, "write"))
    with pytest.raises(RefusedError, match=to_read):
        ask(laid_out, "file_get", path=path)
    for append in (False, True):
        with pytest.raises(RefusedError, match=to_write):
            ask(laid_out, "file_put", path=path, data="", append=append)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/mem",
        "/proc/self/exe",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/file",
        "/proc/version",
        "/proc/sys/kernel/hostname",
        "/dev/fd/0",
        "/dev/stdin",
        "/sys/kernel/uevent_seqnum",
    ],
)
@pytest.mark.parametrize("mode", ["read", "write"])
def test_nothing_of_the_kernels(shared: AgentProcess, path: str, mode: str) -> None:
    if not os.path.lexists(path.rpartition("/")[0]):
        pytest.skip(f"not here: {path}")
    link = shared.workspace / "kernel link"
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    directory = shared.workspace / "kernel directory"
    directory.unlink(missing_ok=True)
    directory.symlink_to(Path(path).parent)
    for way in (path, f"/usr/..{path}", f"kernel directory/{Path(path).name}"):
        words = str(refused(shared, way, mode))
        # On the way to the last name of a path to be written there may be no /proc at all.
        assert "holds no files" in words or "symbolic link" in words, way
    words = str(refused(shared, "kernel link", mode))
    assert ("holds no files" in words) if mode == "read" else ("symbolic link" in words)


def test_links_that_multiply(shared: AgentProcess) -> None:
    """Forty links of a thousand names each would be a walk of minutes."""
    top = shared.workspace / "multiply"
    top.mkdir()
    (top / "0").symlink_to("./" + "../multiply/" * 300)
    for number in range(1, 12):
        (top / str(number)).symlink_to(f"{number - 1}/" * 20 + ".")
    assert refused(shared, "multiply/11/x").code == "ELOOP"


def test_a_link_in_the_place_of_the_target(shared: AgentProcess) -> None:
    victim = shared.workspace / "victim"
    victim.write_text("victim")
    (shared.workspace / "points").symlink_to(victim)
    assert "victim" in str(refused(shared, "points", "write"))
    opened(shared, "later", "write")
    write(shared, b"new")
    (shared.workspace / "later").symlink_to(victim)
    ask(shared, "file_close", keep=True)
    assert victim.read_text() == "victim"
    assert (shared.workspace / "later").read_text() == "new"
    assert not (shared.workspace / "later").is_symlink()


def test_a_directory_in_the_place_of_the_target(shared: AgentProcess) -> None:
    before = names(shared.workspace)
    opened(shared, "swapped", "write")
    (shared.workspace / "swapped").mkdir()
    with pytest.raises(RefusedError, match="is a directory"):
        ask(shared, "file_close", keep=True)
    assert names(shared.workspace) == before | {"swapped"}


def test_a_parent_that_moves_or_goes(shared: AgentProcess) -> None:
    parent = shared.workspace / "parent"
    parent.mkdir()
    opened(shared, "parent/x", "write")
    parent.rename(shared.workspace / "moved")
    parent.symlink_to("/etc")
    ask(shared, "file_close", keep=True)
    assert (shared.workspace / "moved" / "x").exists()
    gone = shared.workspace / "gone"
    gone.mkdir()
    opened(shared, "gone/x", "write")
    gone.rmdir()
    with pytest.raises(RefusedError, match="no such file"):
        ask(shared, "file_close", keep=True)


# Files that change.


def test_a_file_is_read_as_long_as_it_was_when_it_was_opened(shared: AgentProcess) -> None:
    path = shared.workspace / "changes"

    def read(count: int) -> tuple[bytes, bool]:
        frame = ask(shared, "file_read", bytes=count)
        return base64.b64decode(frame["data"]), frame["eof"]

    path.write_bytes(b"x" * 10)
    opened(shared, "changes")
    with path.open("ab") as log:
        log.write(b"y" * 1000)
    assert read(100) == (b"x" * 10, True)
    ask(shared, "file_close", keep=False)
    # It ends early where it has shrunk.
    opened(shared, "changes")
    os.truncate(path, 10)
    assert read(6) == (b"x" * 6, False)
    assert read(600)[0] == b"x" * 4
    assert read(600) == (b"", True)
    assert ask(shared, "file_close", keep=False)["size"] == 10
    # One that is gone is read on.
    opened(shared, "changes")
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert read(2000) == (b"x" * 10, True)
    ask(shared, "file_close", keep=False)
    path.unlink()
    path.touch()
    os.truncate(path, 2**40)
    assert opened(shared, "changes")["size"] == 2**40
    assert read(CHUNK) == (bytes(CHUNK), False)
    ask(shared, "file_close", keep=False)


def test_a_size_that_no_frame_can_tell(shared: AgentProcess) -> None:
    """JSON's numbers end at 2^53 for many; the supervisor takes a larger one for an attack."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        try:
            os.truncate(file.fileno(), 2**62)
        except OSError:
            pytest.skip("not here: a file system with files of exabytes")
        assert refused(shared, file.name).code == "EFBIG"
        os.truncate(file.fileno(), 2**53 - 1)
        assert opened(shared, file.name)["size"] == 2**53 - 1
        ask(shared, "file_close", keep=False)


def test_a_lease_does_not_hold_the_agent_up(shared: AgentProcess) -> None:
    """open(2) of a leased file waits for its holder, up to 45 s, unless it is told not to."""
    path = shared.workspace / "leased"
    path.write_text("x")
    if path.stat().st_uid != os.getuid():
        pytest.skip("not here: only an owner leases")
    reply = shared.python(
        "import fcntl, signal\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "leased = open('leased', 'r+')\n"
        "fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
    )
    assert reply.exit_code == 0, reply.stderr
    assert "lease" in str(refused(shared, "leased"))
    shared.python("leased.close()")
    assert fetch(shared, "leased") == b"x"


def test_names_that_are_odd(shared: AgentProcess) -> None:
    store(shared, "a" * 255, b"long")
    odd = os.fsencode(shared.workspace) + b"/directory \xff"
    os.mkdir(odd)
    (shared.workspace / "plainly").symlink_to(os.fsdecode(b"directory \xff"))
    assert store(shared, "plainly/x", b"1")["path"].endswith("/directory \udcff/x")
    assert Path(os.fsdecode(odd), "x").read_bytes() == b"1"


# Where an agent runs out of something, or ends.


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    with direct_agent(tmp_path) as agent:
        pid = agent.process.pid
        (tmp_path / "directory").mkdir()
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "x").write_text("x")
        os.mkfifo(tmp_path / "pipe")
        # A file whose own path is longer than any that the kernel tells.
        depth = "/".join(["d" * 250] * 10)
        (tmp_path / depth).mkdir(parents=True)
        (tmp_path / "deep").symlink_to(depth)
        with contextlib.chdir(tmp_path / depth):
            os.makedirs(depth)
            os.symlink(f"{depth}", "deeper")
            Path(f"{depth}/x").touch()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(30):
            for path in (
                "directory",
                "loop",
                "pipe",
                "none/x",
                "/proc/version",
                "x/y",
                "directory/",
                "deep/deeper/x",
            ):
                for mode in ("read", "write"):
                    refused(agent, path, mode)
            assert fetch(agent, "x") == b"x"
            store(agent, "x", b"x")
            opened(agent, "x", "write")
            ask(agent, "file_close", keep=False)


def test_a_path_that_is_too_long_to_tell(tmp_path: Path) -> None:
    """Directories nest deeper than a path can say; links lead there all the same."""
    name = "d" * 250
    levels = 17
    here = os.open(tmp_path, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=here)
        if level in {0, 8}:
            os.symlink("/".join([name] * (8 if level == 0 else 9)), f"to {level}", dir_fd=here)
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        with direct_agent(tmp_path) as agent:
            resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (48, 48))
            for _ in range(40):
                for mode in ("read", "write"):
                    assert refused(agent, "to 0/to 8/file", mode).code == "ENAMETOOLONG"
            assert store(agent, "to 0/x", b"near")["size"] == 4
    finally:
        # More than pytest's own clean-up of old directories can say.
        subprocess.run(["rm", "-rf", str(tmp_path / name)], check=True)


def test_no_descriptors_are_left(tmp_path: Path) -> None:
    with direct_agent(tmp_path) as agent:
        (tmp_path / "x").write_text("x")
        used = 8  # the agent's own, with some room
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (used, used))
        codes: list[str] = []
        for number in range(8):
            with contextlib.suppress(RefusedError):
                opened(agent, "x", "write" if number % 2 else "read", request=f"r{number}")
                continue
            codes.append(refused(agent, "x", "write", request=f"r{number}").code)
        assert set(codes) == {"EMFILE"}
        agent.send(type="ping")
        agent.expect("pong")


@pytest.mark.parametrize("how", ["shutdown", "kill"])
def test_the_end_of_the_agent_leaves_nothing_behind(tmp_path: Path, how: str) -> None:
    with direct_agent(tmp_path) as agent:
        opened(agent, "half", "write")
        write(agent, b"x" * 1000)
        if how == "kill":
            agent.process.kill()
        else:
            agent.send(type="shutdown")
        assert agent.wait() == (-9 if how == "kill" else 0)
        assert names(tmp_path) == set()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system that has no files without a name."""
    monkeypatch.setattr(FileWriter, "UNNAMED", 0)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("keep", [True, False])
def test_a_file_appears_whole_on_a_plain_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool, there: bool, links: bool
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "as vfat says")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    if there:
        (tmp_path / "x").write_text("old")
    writer = FileWriter(f"{tmp_path}/x", 0o640, overwrite=there or not links)
    writer.write(b"new")
    assert len(names(tmp_path) - {"x"}) == 1
    assert (tmp_path / "x").exists() == there
    if keep:
        writer.keep()
    writer.close()
    assert names(tmp_path) == ({"x"} if there or keep else set())
    if keep:
        assert (tmp_path / "x").read_bytes() == b"new"
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_came_meanwhile_stays_on_a_plain_file_system(tmp_path: Path, overwrite: bool) -> None:
    writer = FileWriter(f"{tmp_path}/x", None, overwrite=overwrite)
    (tmp_path / "x").mkdir() if overwrite else (tmp_path / "x").write_text("x")
    with pytest.raises(IsADirectoryError if overwrite else FileExistsError):
        writer.keep()
    writer.close()
    assert names(tmp_path) == {"x"}


def test_a_file_of_the_kernel_is_refused_by_its_file_system() -> None:
    with pytest.raises(TransferError, match="/proc"):
        open_path("/proc/self/fd/0")


ODD = ["x", "d", "d/y", "l", "l/x", "x/", "/", "..", "\ud800", "a\0", "/proc/self/environ"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
REQUEST = st.fixed_dictionaries(
    {"type": st.sampled_from(TRANSFER_REQUESTS)},
    optional={
        "path": st.sampled_from(ODD) | JSON,
        "mode": st.sampled_from(["read", "write"]) | JSON,
        "permissions": JSON,
        "overwrite": JSON,
        "bytes": JSON,
        "data": st.sampled_from(["QUJD", ""]) | JSON,
        "keep": JSON,
        "to": st.sampled_from(ODD) | JSON,
        "follow": JSON,
        "append": JSON,
        "parents": JSON,
        "after": JSON,
        "count": JSON,
        "offset": JSON,
        "limit": JSON,
        "descriptor": JSON,
    },
)


@settings(max_examples=12)
@given(asked=st.lists(st.tuples(st.sampled_from(["a", "b", 1]), REQUEST, st.booleans())))
def test_every_request_is_answered_and_leaves_nothing_open(
    asked: list[tuple[str | int, dict[str, Any], bool]],
) -> None:
    """Every question gets an answer, and in the end nothing is open or half-written."""
    descriptors = len(os.listdir("/proc/self/fd"))
    with short_directory() as workspace:
        (workspace / "x").write_text("x")
        (workspace / "d").mkdir()
        (workspace / "l").symlink_to("d")
        answers: list[dict[str, Any]] = []
        lags = False

        def send(
            message: dict[str, Any],
            descriptor: int | None = None,
            without: Callable[[], dict[str, Any]] | None = None,
            /,
        ) -> None:
            answers.append(message)
            assert (without is None) == (descriptor is None)
            if descriptor is not None:
                os.close(descriptor)

        session: Any = SimpleNamespace(
            workspace=str(workspace),
            send=send,
            may_send=lambda: not lags,
            channel=SimpleNamespace(passes_descriptors=True),
            poller=Poller(),
        )
        transfers = Transfers(session, ProcessTrees(session))
        for request_id, request, lag in asked:
            lags = lag
            transfers.take(request_id, request)
            transfers.go_on()
        lags = False
        transfers.go_on()
        assert {answer["id"] for answer in answers} == {request_id for request_id, _, _ in asked}
        assert all(encode_frame(answer) for answer in answers)
        transfers.drop_all()
        assert not [name for name in os.listdir(workspace) if name.startswith(".")]
    assert len(os.listdir("/proc/self/fd")) == descriptors


# Sequence numbers and resuming.


def test_a_supervisor_that_acknowledges_nothing(agent: AgentProcess) -> None:
    """The agent keeps a bounded amount for it, and each read is answered once it catches up."""
    agent.hello()
    (agent.workspace / "big").write_bytes(os.urandom(8 * CHUNK))
    for number in range(8):
        opened(agent, "big", request=f"r{number}")
    for number in [*range(8), *range(8)]:
        agent.send(type="file_read", id=f"r{number}", bytes=CHUNK)
    agent.send(type="ping")
    agent.expect("pong")

    def told(kind: str) -> list[str]:
        return [frame["id"] for frame in agent.seen if frame["type"] == kind]

    # In base64 a piece has a third more, so that 1 MiB is passed by the third.
    assert told("file_data") == ["r0", "r1", "r2"]
    # These wait already, and nobody may have two requests of one file wait.
    assert told("file_error") == ["r3", "r4", "r5", "r6", "r7"]
    agent.send(type="ack", seq=agent.seen[-1]["seq"])
    while len(told("file_data")) < 6:
        agent.expect("file_data")
    assert told("file_data") == ["r0", "r1", "r2"] * 2


def test_transfers_go_on_after_a_resume(agent: AgentProcess) -> None:
    agent.hello()
    (agent.workspace / "in").write_bytes(b"abcdef")
    opened(agent, "in", request="in")
    opened(agent, "out", "write", request="out")
    first = ask(agent, "file_read", "in", bytes=3)
    assert agent.take_over()["files"] == ["in", "out"]
    assert [agent.receive()["type"] for _ in range(2)] == ["file", "file"]
    assert agent.receive() == first
    assert ask(agent, "file_read", "in", bytes=9)["data"] == base64.b64encode(b"def").decode()
    write(agent, b"out", "out")
    ask(agent, "file_close", "out", keep=True)
    assert (agent.workspace / "out").read_bytes() == b"out"


# In a jail, against code that means harm.


@jail
@needs_bwrap
def test_a_full_file_system_leaves_the_old_file() -> None:
    with jailed_agent(weak=("--size", "1000000", "--tmpfs", "/workspace")) as small:
        store(small, "kept", b"old" * 1000)
        free = small.bash("df --output=avail . | tail -1").stdout
        opened(small, "kept", "write")
        for _ in range(3):
            write(small, bytes(CHUNK))
        with pytest.raises(RefusedError, match="no space") as caught:
            write(small, bytes(CHUNK))
        assert caught.value.code == "ENOSPC"
        assert fetch(small, "kept") == b"old" * 1000
        assert small.bash("df --output=avail . | tail -1; ls -A").stdout == f"{free}kept\n"


@jail
@needs_bwrap
def test_nothing_of_pid_1(jailed: AgentProcess) -> None:
    """The agent may look into itself, so it must not be made to look for others."""
    jailed.bash("ln -s /proc/1/environ a; ln -s /proc d; ln -s /proc/self/fd/20 e; ln -s /proc/1 f")
    for path in ("a", "d/1/maps", "e", "f/mem", "/proc/1/status", "d/self/fd/3"):
        assert "holds no files" in str(refused(jailed, path))
    for path in ("d/1/x", "f/oom_score_adj", "/proc/1/comm", "d/sys/kernel/x"):
        assert "holds no files" in str(refused(jailed, path, "write"))
    assert jailed.bash("cat /proc/1/comm").exit_code == 0


@jail
@needs_bwrap
def test_directories_that_are_closed(jailed: AgentProcess) -> None:
    jailed.bash("mkdir closed; touch closed/x; chmod 000 closed; touch fixed; chmod 444 fixed")
    assert refused(jailed, "closed/x").code == "EACCES"
    assert refused(jailed, "closed/y", "write").code == "EACCES"
    assert "read-only" in str(refused(jailed, "fixed", "write"))
    assert "read-only file system" in str(refused(jailed, "/usr/bin/x", "write"))
    assert fetch(jailed, "/usr/bin/env").startswith(b"\x7fELF")


@jail
@needs_bwrap
def test_a_fork_bomb_meanwhile(jailed: AgentProcess) -> None:
    jailed.send(type="hello", limits={"processes": 24})
    request = jailed.begin("b() { b | b & }; b; sleep 600", "bash", timeout_s=1, grace_s=0.2)
    for number in range(20):
        store(jailed, f"file{number}", b"x" * 10_000)
        assert len(fetch(jailed, f"file{number}")) == 10_000
    assert jailed.result(request).timed_out
    becomes_true(lambda: fetch(jailed, "file0") == b"x" * 10_000, "files are there")
