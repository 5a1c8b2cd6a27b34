"""The token as its file has it at this moment."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from nsm import httptoken
from nsm.http.token import TokenFile


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "http-token")


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
