"""`nsm audit`: lines chosen and put into words, and followed across rotations."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from e2e_support import program, variables_for
from nsm.cli import main
from nsm.cli.verbs import audit
from nsmd.audit.journal import AuditFile

if TYPE_CHECKING:
    from pathlib import Path

AT = "2026-05-04T10:11:12.000000Z"


def line(event: str = "execution", *, at: str = AT, **facts: Any) -> bytes:
    return json.dumps({"at": at, "event": event, **facts}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "nsm").mkdir()
    return tmp_path / "nsm" / "audit.jsonl"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main.main(["audit", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_files_the_oldest_first(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, suffix in ((0, ".10"), (1, ".2"), (2, ".1"), (3, "")):
        path.with_name(f"{path.name}{suffix}").write_bytes(line(n=number))
    path.with_name(f"{path.name}.bak").write_bytes(line(n=9))
    assert [json.loads(each)["n"] for each in said(capsys, "--json")] == [0, 1, 2, 3]
    assert [json.loads(each)["n"] for each in said(capsys, "--json", "-n", "2")] == [2, 3]


def test_damaged_lines_are_skipped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(b'{"at": "20\n[1]\n{}\nnull\n\xff\n' + line(n=1) + b'{"at": "cut')
    assert [json.loads(each)["n"] for each in said(capsys, "--json")] == [1]


def test_lines_of_one_session_are_chosen(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(
        line(session="s-1", name="a", scope="x", n=1)
        + line(session="s-2", name="a", scope="y", n=2)
        + line("operation", arguments={"targets": ["a"]}, n=3)
        + line("operation", arguments={"target": "s-1"}, n=4)
        + line(session="s-3", n=5)
    )

    def of(session: str) -> list[int]:
        return [json.loads(each)["n"] for each in said(capsys, "--json", "--session", session)]

    assert of("a") == [1, 2, 3]
    assert of("s-1") == [1, 4]
    assert of("y/a") == [2]
    assert of("None") == []


def test_since(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(line(n=1) + line(at="2099-01-01T00:00:00.000000Z", n=2))

    def since(text: str) -> list[int]:
        return [json.loads(each)["n"] for each in said(capsys, "--json", "--since", text)]

    assert since("2026-05-04T10:11:12") == [1, 2]
    assert since("2026-05-04T10:12") == [2]
    assert since("2026-05-04") == [1, 2]
    assert since("2h") == [2]
    with pytest.raises(SystemExit):
        main.main(["audit", "--since", "yesterday"])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            line(
                client="ed\x1b[2J", session="s", env="bash", outcome="timeout", exit_code=124,
                duration_s=1.006, code_sha256="ab" * 32, code_bytes=7, limits=["memory"],
            ),
            (
                "2026-05-04 10:11:12Z  ed\\x1b[2J  ran abababab (7 bytes) in s, bash: timeout, "
                "exit code 124, 1.01 s, limits: memory"
            ),
        ),
        (
            line("gap", lost=3, why="disk full"),
            "2026-05-04 10:11:12Z  -  3 lines are missing here: disk full",
        ),
        (
            line("operation", client="nsm", operation="net", arguments={"hosts": ["a", "b"]}),
            '2026-05-04 10:11:12Z  nsm  asked for net hosts=["a", "b"]',
        ),
        (
            line("something_new", client="nsm", answer=42),
            "2026-05-04 10:11:12Z  nsm  something_new answer=42",
        ),
    ],
)  # fmt: skip
def test_words(told: bytes, words: str) -> None:
    parsed = audit.parsed(told)
    assert parsed is not None
    assert audit.words(parsed) == words


def test_where_nothing_was_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["audit"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"nsm: nothing is written down yet, in {path}\n")


def test_following_goes_on_across_a_rotation(tmp_path: Path) -> None:
    variables = variables_for(tmp_path)
    path = tmp_path / "state" / "nsm" / "audit.jsonl"
    path.parent.mkdir(parents=True)
    file = AuditFile(str(path), max_bytes=100, keep=5)
    file.append(line(n=0))
    command = [program("nsm"), "audit", "-f", "--json"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            for number in range(6):  # one line fits into each
                assert json.loads(following.stdout.readline())["n"] == number
                file.append(line(n=number + 1))
        finally:
            following.terminate()
            file.close()
    assert len(os.listdir(path.parent)) == 6
