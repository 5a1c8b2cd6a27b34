"""The value of a secret, and sources that give none."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from nsmd.model.secrets import parse_source
from nsmd.network.secrets import source
from nsmd.network.secrets.source import SourceError, read_value

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES = {"PATH": os.defpath, "HOME": "/", "TOKEN": "token-of-a-variable"}


def read(text: str) -> str:
    return read_value(parse_source(text), VARIABLES)


@pytest.mark.parametrize("text", ["a-long-token", "a-long-token\n", "a-long-token\r\n"])
def test_one_line_is_a_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    assert read(f"file: {tmp_path}/token") == "a-long-token"
    assert read(f"command: cat {tmp_path}/token") == "a-long-token"


def test_the_environment_and_words_without_a_shell() -> None:
    assert read("environment: TOKEN") == "token-of-a-variable"
    assert read("""command: sh -c 'printf %s "$0-$TOKEN"' '$HOME'""") == "$HOME-token-of-a-variable"


def test_a_keyring(tmp_path: Path) -> None:
    program = tmp_path / "secret-tool"
    program.write_text('#!/bin/sh\necho "$*" | tr " " -\n')
    program.chmod(0o755)
    variables = {**VARIABLES, "PATH": f"{tmp_path}:{os.defpath}"}
    found = read_value(parse_source("keyring: git ada"), variables)
    assert found == "lookup-service-git-username-ada"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: true", "nothing"),
        ("command: printf 'first-line\\nSECRET-line'", "2 lines"),
        ("command: echo SECRET with spaces", "spaces"),
        ("command: echo SECRET", "6 characters"),
        ("command: sh -c 'echo SECRET-and-more; echo SECRET >&2; exit 3'", "exit code 3"),
        ("command: sh -c 'kill -9 $$'", "signal 9"),
        ("command: /nowhere/program SECRET", "cannot be started"),
        ("command: head -c 100000 /dev/zero", "too much"),
        ("file: /nowhere/token", "cannot be read"),
        ("file: /dev/null", "no ordinary file"),
        ("environment: NOTHING", "no variable NOTHING"),
    ],
)
def test_no_value_and_why_without_what_came(text: str, expected: str) -> None:
    with pytest.raises(SourceError, match=expected) as caught:
        read(text)
    assert "SECRET" not in str(caught.value)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="was ended"):
        read(f"command: sh -c 'sh -c \"echo $$ >{tmp_path}/pid; cat {tmp_path}/pipe\" & wait'")
    for line in (tmp_path / "pid").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line), signal.SIGCONT)


def test_a_command_whose_child_keeps_its_output_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = read(f"command: sh -c 'cat {tmp_path}/pipe & echo a-long-token'")
    assert found == "a-long-token"
