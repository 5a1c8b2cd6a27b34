"""`make run`: what it shows agrees with git and wc, reads well, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import descendants, wait_gone

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "tools/demo.py"
PARTS = ("tools", "tests/setup", "docs/explanation")
END_TIMEOUT_S = 30
DEMO_TIMEOUT_S = 300
"""Time for all of it, which takes seconds, on a machine that runs everything at once."""


@pytest.fixture(scope="module")
def scratch() -> Generator[Path]:
    """Directory for the demonstration; it has to be empty afterwards."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)
        assert os.listdir(path) == []


@pytest.fixture(scope="module", params=["a part", pytest.param("all", marks=pytest.mark.slow)])
def repository(request: pytest.FixtureRequest) -> Generator[Path]:
    """Project that is shown: this repository, or a copy of a part of it, which is parsed sooner."""
    if request.param == "all":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="nsm-repository-") as path:
        Path(path).chmod(0o755)
        for part in PARTS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, Path(path, part), ignore=ignored)
        subprocess.run(["git", "init", "-q", path], check=True)
        yield Path(path)


def environment(scratch: Path) -> dict[str, str]:
    """A user's environment, with temporary files in `scratch`."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {**kept, "TMPDIR": str(scratch), "TERM": "xterm", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def output(scratch: Path, repository: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(DEMO), *([] if repository == ROOT else [str(repository)])],
        env=environment(scratch),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def said(output: str, title: str) -> list[str]:
    """Return the output of a call, line by line."""
    lines = iter(output.splitlines())
    for line in lines:
        if line.startswith(f"  {title} "):
            first = re.sub(r"^ *\d+ ms  ", "", line.removeprefix(f"  {title}"))
            found = [first]
            for more in lines:
                if not more.startswith(" " * 30):
                    return found
                found.append(more.strip())
    raise AssertionError(f"no call {title!r} in:\n{output}")


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def repository_files(repository: Path, pattern: str) -> list[str]:
    """The repository's files by git's account, with what is not yet committed."""
    git = [
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(repository),
    ]  # the clone may be another user's
    listing = subprocess.run(
        [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pattern],
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not here: no git repository")
    return sorted(
        {name for name in listing.stdout.split("\0") if name and (repository / name).exists()}
    )


def wc(option: str, repository: Path, files: list[str]) -> dict[str, int]:
    """wc's count for each file, and for "total"."""
    done = subprocess.run(
        ["wc", option, "--", *files, os.devnull],  # one file alone would have no total
        cwd=repository,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    return {name: int(count) for count, name in counts}


def test_python_agrees_with_git_and_wc(output: str, repository: Path) -> None:
    files = repository_files(repository, "*.py")
    assert numbers(said(output, "parse every module")[0]) == [
        len(files),
        wc("-l", repository, files)["total"],
    ]


def test_longest_functions_are_where_it_says(output: str, repository: Path) -> None:
    _, *longest = said(output, "rank the functions")
    assert len(longest) == 3
    for line in longest:
        length, _, name, place = line.split()
        file, start = place.split(":")
        source = (repository / file).read_text().splitlines()[int(start) - 1 :]
        assert re.match(rf" *(async )?def {name}", source[0])  # a long name is cut
        assert source[int(length) - 1].strip()  # it ends with code
        # and what comes next is indented no deeper than its `def`
        after = next((text for text in source[int(length) :] if text.strip()), "")
        assert indent(after) <= indent(source[0])


def test_imports_agree_with_grep(output: str, repository: Path) -> None:
    counts = dict(
        item.rsplit(" ", 1) for item in said(output, "count who imports what")[0].split(", ")
    )
    files = repository_files(repository, "*.py")
    users = [
        name
        for name in files
        if re.search(r"^ *(from|import) pathlib\b", (repository / name).read_text(), re.MULTILINE)
    ]
    assert int(counts["pathlib"]) == len(users)


def test_bash_agrees_with_git_grep_and_wc(output: str, repository: Path) -> None:
    files = repository_files(repository, "*.py")
    assert numbers(said(output, "define sources(), use it")[0]) == [len(files)]

    tests = [name for name in files if Path(name).name.startswith("test_")]
    functions = sum(
        len(re.findall(r"^ *(?:async )?def test_", (repository / name).read_text(), re.MULTILINE))
        for name in tests
    )
    assert numbers(said(output, "find the tests with it")[0]) == [functions, len(tests), len(files)]

    counts = wc("-l", repository, files)
    del counts["total"]
    expected = sorted(((-lines, name) for name, lines in counts.items()))[:3]
    shown = [line.split("lines") for line in said(output, "list the longest files")]
    assert [(-int(lines), name.strip()) for lines, name in shown] == expected


@pytest.mark.node
def test_node_agrees_with_git_and_wc(output: str, repository: Path) -> None:
    files = repository_files(repository, "*.md")
    pages, words, _ = numbers(said(output, "index every page")[0])
    assert (pages, words) == (len(files), wc("-w", repository, files)["total"])

    for place in said(output, "ask it for 'jail'")[0].split(", "):
        page, times = place.rsplit(" ", 1)
        all_words = re.findall(r"[^\W\d_]+", (repository / page).read_text().lower())
        assert all_words.count("jail") == int(times)


def test_the_jail_refuses(output: str, repository: Path) -> None:
    assert said(output, "try to get out") == [
        "write to /project:     Read-only file system",
        "list /home and /root:  No such file or directory",
        "network interfaces:    ['lo']",
        "processes in sight:    2",
    ]
    assert not (repository / "planted").exists()


def test_ps_shows_the_three_sessions(output: str) -> None:
    table = output.partition("\nnsm ps\n")[2].partition("\n\n")[0].splitlines()
    assert table[0].split()[:2] == ["ID", "NAME"]
    expected = {"analysis", "search"} if "left out: " in output else {"analysis", "search", "words"}
    assert {line.split()[1] for line in table[1:]} == expected


def test_configuration_can_be_pasted(output: str) -> None:
    lines = [line.strip() for line in output.splitlines()]
    program = str(Path(sys.executable).parent / "nsm-mcp")
    setup = next(line for line in lines if line.endswith(" setup CLIENT"))
    assert shlex.split(setup) == [str(Path(program).with_name("nsm")), "setup", "CLIENT"]
    (entry,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert entry["mcpServers"]["nsm"]["command"] == program
    assert os.access(program, os.X_OK)


def test_reads_well(output: str) -> None:
    lines = output.splitlines()
    assert len(lines) < 60
    assert "\x1b" not in output
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.slow
def test_ctrl_c_ends_everything(scratch: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", str(DEMO)],
        env=environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as demo:
        try:
            assert demo.stdout is not None
            for line in demo.stdout:
                if line.startswith("  rank the functions"):
                    break
            started = [os.pidfd_open(pid) for pid in descendants(demo.pid)]
            assert len(started) >= 3  # supervisor, shim, jail
            os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
            _, errors = demo.communicate(timeout=END_TIMEOUT_S)
        finally:
            demo.kill()
    wait_gone(started)
    assert demo.returncode == 130
    assert errors == "\ninterrupted; nothing is left running\n"
    assert os.listdir(scratch) == []


@pytest.mark.slow
def test_says_why_there_is_nothing_to_show(scratch: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-", dir=scratch) as broken:
        # Found before the real one by the supervisor's interpreter; the demonstration needs none.
        (Path(broken) / "nsmd.py").write_text("raise SystemExit('nsmd is broken')\n")
        done = subprocess.run(
            [sys.executable, str(DEMO)],
            env={**environment(scratch), "PYTHONPATH": broken},
            capture_output=True,
            text=True,
            timeout=DEMO_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.strip().startswith("demo: the supervisor did not start: nsmd is broken\n")
    assert "doctor" in done.stderr
