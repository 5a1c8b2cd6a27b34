"""Addresses at which ports are opened: what is refused, and why."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from nsm.http.listen_address import Port, UnixPath
from nsm.wire.errors import BadRequestError
from nsmd.host.listeners import identity_of, listen, parse_address, remove_socket, shown

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Port("127.0.0.1", 0)),
        ("localhost:80", Port("127.0.0.1", 80)),
        ("127.9.9.9:65535", Port("127.9.9.9", 65535)),
        ("[::1]:8000", Port("::1", 8000)),
        ("unix:/run/x", UnixPath("/run/x")),
    ],
)
def test_addresses_of_this_machine(text: str, address: Port | UnixPath) -> None:
    assert parse_address(text, public=False) == address
    assert parse_address(text, public=True) == address
    if text != "localhost:80":
        assert shown(address) == text


@pytest.mark.parametrize("text", ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[2001:db8::1]:0"])
def test_addresses_that_others_reach_have_to_be_permitted(text: str) -> None:
    with pytest.raises(BadRequestError, match="other machines could reach it") as refused:
        parse_address(text, public=False)
    assert "--public" in refused.value.hint
    assert shown(parse_address(text, public=True)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":80", "80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1"),
        *("127.0.0.1:٣", "example.org:80", "::1:80", "[127.0.0.1]:80", "0.0.0.0:99999"),
        *("[fe80::1%lo]:80", "unix:", "unix:relative", "unix:/a\0b", "unix:/", "tcp:1"),
    ],
)
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    for public in (False, True):
        with pytest.raises(BadRequestError):
            listen(parse_address(text, public=public)).close()


def test_a_unix_socket_is_for_its_user(tmp_path: Path) -> None:
    path = tmp_path / "s"
    before = os.umask(0)
    try:
        with listen(UnixPath(str(path))):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    with listen(UnixPath(str(path))):  # that of a dead one is replaced
        pass


def assert_fits(error: BadRequestError) -> None:
    """Check that an error is about a port's socket, and not about the supervisor's."""
    told = error.message + error.hint
    assert not any(word in told for word in ("NSM_SOCKET", "status", "supervisor", "Remove"))


def test_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(BadRequestError, match="not a socket") as refused:
        listen(UnixPath(str(path)))
    assert_fits(refused.value)
    assert path.read_text() == "mine"
    with pytest.raises(BadRequestError, match="No such file"):
        listen(UnixPath(str(tmp_path / "missing" / "s")))


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = UnixPath(str(tmp_path / "s"))
    with listen(path), pytest.raises(BadRequestError, match="listens on") as refused:
        listen(path)
    assert_fits(refused.value)


def test_a_directory_that_others_may_change(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "own").mkdir()
    for path in (shared / "own" / "s", shared / "s"):
        with pytest.raises(BadRequestError, match="everybody may write") as refused:
            listen(UnixPath(str(path)))
        assert_fits(refused.value)
    shared.chmod(0o1777)  # nobody else could replace the socket
    listen(UnixPath(str(shared / "s"))).close()


def test_only_our_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen(UnixPath(str(path))):
        identity = identity_of(str(path))
    assert identity is not None
    path.rename(tmp_path / "t")
    path.write_text("another")
    remove_socket(str(path), identity)
    assert path.read_text() == "another"
    remove_socket(str(tmp_path / "t"), identity)
    assert not (tmp_path / "t").exists()
