"""`nsm run`: where code comes from, what is shown when, and the exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import samples
from e2e_support import program
from fakesupervisor import FakeSupervisor, answer
from nsm.cli.render.results import Folder, Picture
from nsm.cli.verbs.run import language_of
from nsm.wire.errors import BadProjectError

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import Exchange, Handler


@pytest.fixture
def supervisor(
    supervisor: FakeSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeSupervisor:
    """A supervisor whose `run` answers with nothing special, and a project as directory."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    supervisor.handlers["run"] = ran()
    return supervisor


def ran(**changes: Any) -> Handler:
    return answer(**samples.run_result(**changes))


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(data))
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stdin)


def sent(supervisor: FakeSupervisor) -> dict[str, Any]:
    """The arguments of the one request, without the id that the client has made up."""
    (request,) = supervisor.requests
    args = dict(request.args)
    assert len(args.pop("execution_id")) == 32
    return args


@pytest.mark.parametrize("arguments", [[], ["-"], ["-f", "-"]])
def test_code_from_standard_input(
    nsm: Nsm, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    give_stdin(monkeypatch, "print('ü')\r\n".encode())
    assert nsm("run", "-e", "python", *arguments).code == 0
    assert sent(supervisor)["code"] == "print('ü')\r\n"


@pytest.mark.parametrize(
    ("shell", "unread"),
    [
        ("echo hello | (sleep 0; {})", True),
        ("{} < data", True),
        ("true | {}", False),
        # A pipe that stays open and silent is no reason to wait.
        ("exec 3<> pipe; {} < pipe", False),
    ],
)
def test_standard_input_that_nobody_reads_is_told(
    supervisor: FakeSupervisor, tmp_path: Path, shell: str, unread: bool
) -> None:
    (tmp_path / "data").write_text("a\nb\n")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    command = shell.format(f"'{program('nsm')}' run -e bash 'read x'")
    # What is echoed is there when the code has ended.
    supervisor.handlers["run"] = ran()
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=120, check=True
    )
    told = b"nsm: standard input was not read: `nsm run -i` gives it to the code"
    assert (told in done.stderr) is unread


def test_the_home_directory_is_no_project_and_that_is_said_once(
    nsm: Nsm, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    session = samples.run_result()["session"]
    for created in (True, False):
        supervisor.handlers["run"] = ran(session=session | {"created": created})
        said = nsm("run", "-e", "python", "-s", "a", "1")
        told = f"nsm: no project is mounted: {tmp_path} is your home directory"
        assert said.err.startswith(told) is created
    assert "no project" not in nsm("run", "-e", "python", "--no-project", "1").err


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"print('\xe9')", "is not UTF-8 text: byte 7 is 0xe9\nConvert it"),
        (b"\xed\xa0\x80", "is not UTF-8 text: byte 0 is 0xed"),
        (b"ab\0", "is not code: character 2 is NUL"),
        (b"x" * (16 * 1024 * 1024 + 1), "more than can be sent at once"),
    ],
)
def test_files_that_hold_no_code(
    nsm: Nsm, supervisor: FakeSupervisor, tmp_path: Path, data: bytes, error: str
) -> None:
    file = tmp_path / "x"
    file.write_bytes(data)
    said = nsm("run", "-e", "python", "-f", str(file))
    assert (said.code, said.out) == (125, "")
    assert error in said.err
    assert supervisor.requests == []


def test_no_code_is_read_through_a_link(
    nsm: Nsm, supervisor: FakeSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "secret.py").write_text("secret")
    (here / "x.py").symlink_to("../secret.py")
    (here / "way").symlink_to("..")
    monkeypatch.chdir(here)
    for name in ("x.py", "way/secret.py", f"{here}/x.py"):
        said = nsm("run", "-e", "python", "-f", name)
        assert said.code == 125
        assert "nothing was read through it\nName the file itself.\n" in said.err
    assert supervisor.requests == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-e", "bash", "echo", "hi"], "unrecognized arguments: hi; arguments are for a file"),
        (["gone.py", "a"], "there is no file 'gone.py'"),
        ([__file__, "--fast"], "unrecognized arguments: --fast; those of a script come after `--`"),
        (["-e", "python", "--json", "--images", ".", "x"], "--json prints images with all else"),
        (["-e", "python", "-t", "soon", "x"], "'soon' is not a number of seconds"),
        (["-e", "python", "--project", "x", "--no-project", "y"], "not allowed with"),
        (["-e", "python", "--no-project", "--project-mode", "overlay", "y"], "needs a project"),
        (["-e", "python"], "no code: give it as an argument, with -f FILE, or on standard input"),
    ],
)
def test_wrong_usage(
    nsm: Nsm, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str
) -> None:
    give_stdin(monkeypatch, b"", terminal=True)
    said = nsm("run", *arguments)
    assert (said.code, said.out) == (2, "")
    assert error in said.err
    assert said.err.endswith("\nRun `nsm run --help`.\n")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"exit_code": 1}, 1),
        ({"exit_code": 255}, 255),
        ({"exit_code": 256}, 1),
        ({"exit_code": 300}, 44),
        ({"exit_code": -9}, 247),
        ({"exit_code": 137, "timed_out": True}, 124),
        ({"exit_code": 0, "timed_out": True}, 124),
        ({"exit_code": 1, "interrupted": True}, 130),
    ],
)
def test_exit_codes(
    nsm: Nsm, supervisor: FakeSupervisor, changes: dict[str, Any], code: int
) -> None:
    supervisor.handlers["run"] = ran(**changes)
    assert nsm("run", "-e", "python", "x").code == code
    assert nsm("run", "-e", "python", "x", "--json").code == code


def test_no_image_is_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "victim").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "way").symlink_to("../victim")
    with pytest.raises(OSError, match="symbolic link"):
        Folder("way/plots")
    Folder(str(tmp_path / "new" / "deep"))
    assert (tmp_path / "new" / "deep").is_dir()
    folder = Folder("plots")
    assert (
        folder.write(Picture("a picture", "png", b"one"), "x") == f"{tmp_path}/here/plots/x-1.png"
    )
    (tmp_path / "here" / "plots").rename(tmp_path / "here" / "old")
    (tmp_path / "here" / "plots").symlink_to("../victim")
    with pytest.raises(OSError, match="symbolic link"):
        folder.write(Picture("a picture", "png", b"two"), "x")
    assert list((tmp_path / "victim").iterdir()) == []


def test_code_is_not_run_if_its_images_cannot_be_written(
    nsm: Nsm, supervisor: FakeSupervisor
) -> None:
    said = nsm("run", "-e", "python", "--images", f"{__file__}/x", "x")
    assert said.code == 125
    assert "Not a directory" in said.err
    assert not supervisor.requests


def test_an_image_that_cannot_be_written_is_a_failure(
    nsm: Nsm, supervisor: FakeSupervisor, tmp_path: Path
) -> None:
    target = tmp_path / "images"

    def run(_exchange: Exchange) -> dict[str, Any]:
        target.rmdir()
        svg = {"text/plain": "S", "image/svg+xml": "<svg/>"}
        return samples.run_result(displays=[svg], stdout="out\n")

    supervisor.handlers["run"] = run
    said = nsm("run", "-e", "python", "--images", str(target), "x")
    assert (said.code, said.out) == (125, "out\nS\n")
    assert said.err.startswith("nsm: image/svg+xml, cannot be written: ")


def test_a_refused_current_directory_is_left_out_and_a_chosen_one_is_an_error(
    nsm: Nsm, supervisor: FakeSupervisor
) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        if "project" in exchange.args:
            raise BadProjectError("It holds secrets.", hint="Take another.")
        session = samples.run_result()["session"] | {"created": True}
        return samples.run_result(stdout="ran\n", session=session)

    supervisor.handlers["run"] = run
    said = nsm("run", "-e", "python", "x")
    assert (said.code, said.out) == (0, "ran\n")
    assert said.err == "nsm: no project is mounted: It holds secrets.\n"
    said = nsm("run", "-e", "python", "--project", ".", "x")
    assert (said.code, said.out) == (125, "")
    assert said.err == "nsm: It holds secrets.\nTake another.\n"


@pytest.mark.parametrize("network", ["on", "allow", "NONE", ""])
def test_a_network_that_looks_like_a_mode_and_is_none(
    nsm: Nsm, supervisor: FakeSupervisor, network: str
) -> None:
    said = nsm("run", "-e", "python", "--network", network, "x")
    assert (said.code, supervisor.requests) == (125, [])
    assert f"The network {network!r} is neither off nor full" in said.err


def test_a_deleted_current_directory_is_no_project(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    os.rmdir(os.getcwd())
    assert nsm("run", "-e", "python", "x").code == 0
    assert "project" not in sent(supervisor)


def test_output_over_two_supervisors_is_shown_once(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    def second(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "three\n")
        return samples.run_result(stdout="one\ntwo\nthree\n")

    def first(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "one\n")
        supervisor.stop_listening()
        stack.enter_context(FakeSupervisor(supervisor.path, run=second))
        exchange.hang_up()
        return {}

    with ExitStack() as stack:
        supervisor.handlers["run"] = first
        said = nsm("run", "-e", "python", "x")
    assert (said.code, said.out) == (0, "one\ntwo\nthree\n")
    assert "the supervisor was replaced" in said.err


# The language that code seems to be written in.


@pytest.mark.parametrize(
    ("file", "code", "language"),
    [
        ("a.py", "1", "python"),
        ("dir.py/a", "1", ""),
        ("a.mjs", "1", "node"),
        ("a.sh", "1", "bash"),
        ("a.rb", "1", ""),
        (None, "1", ""),
        (None, "#!/usr/bin/env python3.12\n1", "python"),
        (None, "#!/usr/bin/env -S node --x\n1", "node"),
        ("tool", "#!/bin/sh -e\ntrue", "bash"),
        ("a.py", "#!/bin/bash\ntrue", "bash"),
        ("a.py", "#!/usr/bin/ruby\n1", ""),
        ("a.py", "#!", ""),
    ],
)
def test_the_first_line_or_the_name_says_the_language(
    file: str | None, code: str, language: str
) -> None:
    assert language_of(file, code) == language
