"""The file with the secret of clients over HTTP."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from nsm.http import token as httptoken
from nsm.http.token import TokenError, TokenFile


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "nsm" / "http-token")


def test_a_token_is_made_for_its_user_only_whatever_the_umask_is(path: str) -> None:
    before = os.umask(0)
    try:
        token = httptoken.ensure(path)
    finally:
        os.umask(before)
    assert len(token) >= 43  # 256 bits
    assert httptoken.ensure(path) == token
    assert httptoken.read(path) == token
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_threads_that_make_the_token_at_once_have_the_same(path: str) -> None:
    tokens: list[str] = []
    threads = [
        threading.Thread(target=lambda: tokens.append(httptoken.ensure(path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert os.listdir(os.path.dirname(path)) == ["http-token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_may_have_read_is_refused(path: str, mode: int) -> None:
    httptoken.ensure(path)
    os.chmod(path, mode)
    with pytest.raises(TokenError, match="open to others"):
        httptoken.ensure(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    httptoken.rotate(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "short", "x" * 2000, "a b" * 20, "é" * 40, "x" * 40 + "\0"])
def test_a_file_without_a_token_is_refused(path: str, text: str) -> None:
    httptoken.ensure(path)
    Path(path).write_text(text, encoding="utf-8")
    with pytest.raises(TokenError, match="holds no token"):
        httptoken.read(path)


def test_links_directories_and_pipes_are_refused(path: str, tmp_path: Path) -> None:
    httptoken.ensure(path)
    other = tmp_path / "other"
    os.rename(path, other)
    os.symlink(other, path)
    with pytest.raises(TokenError, match="cannot be opened"):
        httptoken.read(path)
    os.unlink(path)
    os.mkfifo(path, 0o600)
    with pytest.raises(TokenError, match="not a regular file"):
        httptoken.ensure(path)
    os.unlink(path)
    os.mkdir(path, 0o700)
    with pytest.raises(TokenError, match="not a regular file"):
        httptoken.ensure(path)


def test_a_directory_that_others_may_write_to_is_refused(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    os.chmod(os.path.dirname(path), 0o777)
    with pytest.raises(TokenError, match="cannot be written"):
        httptoken.ensure(path)


def test_another_token_holds_at_once_and_the_old_one_no_longer(path: str) -> None:
    changes: list[str] = []
    secret = TokenFile(path, lambda: changes.append("changed"))
    secret.prepare()
    first = httptoken.read(path).encode()
    assert secret.matches(first)
    assert changes == []
    second = httptoken.rotate(path).encode()
    assert not secret.matches(first)
    assert secret.matches(second)
    assert changes == ["changed"]


def test_without_a_file_nobody_is_let_in(path: str) -> None:
    secret = TokenFile(path)
    secret.prepare()
    token = httptoken.read(path).encode()
    assert secret.matches(token)
    os.unlink(path)
    assert not secret.matches(token)
    assert not secret.matches(b"")
    assert "is gone" in secret.problem
    assert secret.matches(httptoken.ensure(path).encode())
    assert secret.problem == ""


def test_a_file_that_others_can_read_lets_nobody_in(path: str) -> None:
    secret = TokenFile(path)
    secret.prepare()
    token = httptoken.read(path).encode()
    os.chmod(path, 0o640)
    assert not secret.matches(token)
    assert "mode 0640" in secret.problem
    os.chmod(path, 0o600)
    assert secret.matches(token)


def test_the_log_says_what_is_wrong_once_and_never_the_token(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = TokenFile(path)
    secret.prepare()
    token = httptoken.read(path)
    for _ in range(3):
        secret.matches(b"guess" * 9)
    with open(path, "a", encoding="ascii") as file:
        file.write("and more\n")
    for _ in range(3):
        secret.matches(token.encode())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert token not in caplog.text
