"""The supervisor's program, where it reports and does not serve."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from nsmd.app import main

if TYPE_CHECKING:
    from collections.abc import Callable


def interrupted_alone() -> None:
    raise KeyboardInterrupt


def interrupted_in_a_nursery() -> None:
    async def start_jails() -> None:
        async with trio.open_nursery():
            raise KeyboardInterrupt

    trio.run(start_jails)


@pytest.mark.parametrize("look", [interrupted_alone, interrupted_in_a_nursery])
def test_a_report_that_is_interrupted_ends_as_shells_expect(
    look: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(*_: object, **__: object) -> int:
        look()
        return 0

    monkeypatch.setattr("nsmd.doctor.report.report", report)
    assert main.main(["--doctor"]) == 130


@pytest.mark.parametrize(
    ("standard_output", "expected"),
    [
        ("", (141, "")),
        (">&-", (0, "")),
        (">/dev/full", (1, "nsm: standard output: No space left on device\n")),
    ],
)
def test_a_report_that_nobody_reads_ends_with_its_exit_code(
    standard_output: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from nsmd.app import main\n"
        "from nsmd.doctor import report\n"
        "report.report = lambda *_, **__: sys.stdout.write('a row\\n' * 100_000) * 0\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {standard_output}',
            "sh",
            sys.executable,
            str(program),
            "--doctor",
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdout=write_end,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        text=True,
        check=False,
        timeout=60,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == expected


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("a mistake"), False),
    ],
)
def test_a_shortage_says_nothing_about_the_next_start(error: Exception, may_pass: bool) -> None:
    assert main._may_pass(error) is may_pass  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("given", [["--ready-fd", "7"], ["--ready-fd=7"]])
def test_the_next_program_tells_nobody_that_it_is_ready(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is another descriptor's there: a session's, which a line would be written to."""
    monkeypatch.delenv("NSM_SUPERVISOR", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "nsmd", *given, "--config", "x"])
    assert main.own_command() == [sys.executable, "-P", "-m", "nsmd", "--config", "x"]
    monkeypatch.setattr(sys, "orig_argv", main.own_command())
    assert main.own_command() == sys.orig_argv


def test_a_valid_configuration_says_what_is_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[environments.web]\nimage = "oci:{tmp_path}/gone"\n')
    assert main.main(["--check-config", "--config", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{path} is valid\n"
        f"On this machine: environments.web.image: {tmp_path}/gone is missing or cannot be read\n"
    )


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "nsmd.model.settings":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["nsm-supervisor", "--doctor"]
from nsmd.__main__ import program
program()
"""


def test_ctrl_c_while_modules_are_loaded_ends_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_at_the_start_is_no_fault_of_the_supervisor(
    capfd: pytest.CaptureFixture[str],
) -> None:
    starter = main._Starter(None)  # no test can time the signal
    interrupted = BaseExceptionGroup("of a nursery", [KeyboardInterrupt()])
    assert starter._crashed(interrupted) == main.EXIT_INTERRUPTED
    assert capfd.readouterr().err == ""
