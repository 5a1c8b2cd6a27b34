"""Files, transcripts and images on the command line, with a real supervisor and real jails."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

import pictures
from e2e_support import Supervisor, program, run_bytes, supervisor
from processes import ending
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 120


OF_A_SHELL = re.compile(r"""[|;&<>$`*?(){}~\\#\n!"]""")
"""Characters that mean something to a shell outside of single quotes."""


class Shell:
    """A directory to work in, and commands that are run there."""

    def __init__(self, running: Supervisor, directory: Path) -> None:
        self.running = running
        self.directory = directory
        scripts = os.path.dirname(program("nsm"))
        path = f"{scripts}:{running.variables['PATH']}"
        self.variables = running.variables | {"PATH": path, "TMPDIR": str(directory)}

    def __call__(self, command: str) -> subprocess.CompletedProcess[bytes]:
        if command.startswith("nsm ") and not OF_A_SHELL.search(re.sub("'[^']*'", "", command)):
            return run_bytes(*shlex.split(command), variables=self.variables, cwd=self.directory)
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"umask 022; {command}"],
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def out(self, command: str) -> str:
        """Return the output of a command that succeeds and prints no errors."""
        done = self(command)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def error(self, command: str) -> str:
        """Return the error of a command that fails."""
        done = self(command)
        assert done.returncode == 1, done
        assert b"Traceback" not in done.stderr
        return done.stderr.decode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: each project has a template of its own, which takes long to start."""
    path = tmp_path_factory.mktemp("project")
    path.chmod(0o755)
    return path


@pytest.fixture
def sh(shared: Supervisor, directory: Path) -> Iterator[Shell]:
    """A shell in an empty directory with a session `work`."""
    shell = Shell(shared, directory)
    assert shell("nsm run -e python -s work 'x = 1'").returncode == 0
    yield shell
    with shared.client() as client:
        client.kill_all()
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


SCRIPTS = {
    "s.py": "import sys\nprint(sys.argv[1:], __file__)\n",
    "s.sh": '#!/bin/bash\nset -u\necho "$1,$2"\n',
    "s.js": "console.log(process.argv.slice(2).join(), __filename)\n",
}


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("s.py", "['a', '--b c'] /project/s.py\n"),
        ("s.sh", "a,--b c\n"),
        ("s.js", "a,--b c /project/s.js\n"),
    ],
)
def test_a_script_finds_its_arguments(sh: Shell, name: str, printed: str) -> None:
    (sh.directory / name).write_text(SCRIPTS[name])
    assert sh.out(f"nsm run {name} -- a '--b c'") == printed
    assert sh.out(f"nsm run -s scripts-{name[2:]} -f {name} -- a '--b c'") == printed


@pytest.mark.parametrize(
    ("end", "code", "near"),
    [("py", "import near", "print('near')"), ("js", "require('./near')", "console.log('near')")],
)
def test_a_script_imports_what_lies_beside_it(sh: Shell, end: str, code: str, near: str) -> None:
    (sh.directory / "sub").mkdir()
    (sh.directory / f"sub/near.{end}").write_text(near)
    (sh.directory / f"sub/s.{end}").write_text(f"{code}; 1")
    assert sh.out(f"nsm run sub/s.{end}") == "near\n1\n"
    assert sh.out(f"nsm run -s beside-{end} -f sub/s.{end}") == "near\n1\n"


def test_a_bash_script_finds_its_own_directory(sh: Shell) -> None:
    (sh.directory / "sub").mkdir()
    (sh.directory / "sub/s.sh").write_text(
        'echo "$0 $1 $LINENO"; cd "$(dirname "${BASH_SOURCE[0]}")" && pwd; ls /proc/self/fd\n'
    )
    printed = "/project/sub/s.sh a b 1\n/project/sub\n0\n1\n2\n3\n"
    assert sh.out("nsm run sub/s.sh 'a b'") == printed


@pytest.mark.slow
def test_a_script_that_was_changed_on_its_way_runs_as_it_was_sent(sh: Shell) -> None:
    (sh.directory / "s.sh").write_bytes(b"echo $1 ${BASH_SOURCE[0]}\r\n")
    assert sh.out("nsm run s.sh a") == "a bash\n"


@pytest.mark.slow
def test_code_after_a_script_imports_nothing_from_its_directory(sh: Shell) -> None:
    (sh.directory / "sub").mkdir()
    (sh.directory / "sub/s.py").write_text("")
    sh.out("nsm run -s work sub/s.py")
    assert sh.out("nsm run -s work 'import sys; \"/project/sub\" in sys.path'") == "False\n"
    (sh.directory / "sub/s.py").write_text("import sys; sys.path.insert(0, '/other')")
    sh.out("nsm run -s work sub/s.py")
    assert sh.out("nsm run -s work 'sys.path[0], \"/project/sub\" in sys.path'") == (
        "('/other', False)\n"
    )


# Files.


def test_files_there_and_back(sh: Shell) -> None:
    data = os.urandom(3_000_001)
    (sh.directory / "data").write_bytes(data)
    (sh.directory / "tool").write_text("#!/bin/sh\necho ran\n")
    (sh.directory / "tool").chmod(0o755)
    assert sh.out("nsm cp data tool work:") == ""
    assert sh.out("nsm run -e python -s work 'import os; os.path.getsize(\"data\")'") == "3000001\n"
    assert sh.out("nsm run -e python -s work 'os.system(\"./tool\")'") == "ran\n0\n"
    sh.out('nsm run -e python -s work \'os.mkdir("made"); os.symlink("data", "link")\'')
    assert sh.out("nsm cp data work:made && nsm cp work:made/data work:link . ") == ""
    assert (sh.directory / "data").read_bytes() == (sh.directory / "link").read_bytes() == data
    assert sh.out("nsm cp work:tool copy && ./copy") == "ran\n"
    assert stat.S_IMODE((sh.directory / "copy").stat().st_mode) == 0o755
    assert sh.out("printf abc | nsm cp - work:/tmp/x:y; nsm cp work:/tmp/x:y - | wc -c") == "3\n"
    identifier = json.loads(sh.out("nsm ps --json"))[0]["id"]
    assert sh.out(f"nsm cp {identifier}:/tmp/x:y -") == "abc"
    assert sorted(os.listdir(sh.directory)) == ["copy", "data", "link", "tool"]


def test_files_while_code_runs(sh: Shell) -> None:
    with ending(
        subprocess.Popen(
            [program("nsm"), "run", "-e", "python", "-s", "work"],
            cwd=sh.directory,
            env=sh.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(
            b"import os, time\nopen('out', 'w').write('made')\nprint('ready', flush=True)\n"
            b"while not os.path.exists('in'): time.sleep(0.01)\nprint(open('in').read())\n"
        )
        running.stdin.close()
        assert running.stdout.readline() == b"ready\n"
        assert sh.out("nsm cp work:out -") == "made"
        assert sh.out("printf whole | nsm cp - work:in") == ""
        assert running.stdout.read() == b"whole\n"


def test_a_name_is_of_this_project_only(sh: Shell) -> None:
    """Another directory's `work` has its own variables, and is ended only by who means it."""
    other = sh.directory / "other"
    other.mkdir()
    assert sh.out("cd other && nsm run -e python -s work 'print(\"x\" in globals())'") == "False\n"
    assert sh.out("nsm run -e python -s work x") == "1\n"
    sh.out("cd other && nsm kill work")
    told = sh("cd other && nsm inspect work").stderr.decode()
    assert told == f"nsm: work is a session of {sh.directory}; this project has none of that name\n"
    refused = sh.error("cd other && nsm kill work < /dev/null")
    assert refused == (
        f"nsm: work is a session of {sh.directory}, not of this project; nothing was done\n"
        f"Name it cli:{sh.directory}/work, or add --yes.\n"
    )
    for verb in ("apply", "discard"):
        assert told in sh(f"cd other && nsm {verb} work --yes").stderr.decode()
    assert sh.out("nsm run -e python -s work x") == "1\n"
    assert "(work)" in sh.out(f"cd other && nsm kill cli:{sh.directory}/work")


def test_copies_that_cannot_be_made_are_refused(sh: Shell) -> None:
    (sh.directory / "f").write_text("f")
    assert "gone" in sh.error("nsm cp f gone:")
    assert "gone" in sh.error("nsm cp gone:f .")
    assert "nothing" in sh.error("nsm cp work:nothing .")
    assert "/proc" in sh.error("nsm cp work:/proc/1/environ .")
    sh.out("nsm run -e python -s work 'import os; os.mkfifo(\"pipe\")'")
    assert "pipe" in sh.error("nsm cp work:pipe .")
    refused = sh.error("nsm cp work:/workspace -")
    assert "shutil.make_archive('files', 'tar', base_dir='DIR')" in refused
    assert "nsm cp SESSION:files.tar - | tar -x" in refused
    assert "read-only" in sh.error("nsm cp f work:/usr/")
    assert "no space" in sh.error("nsm cp /dev/zero work:/dev/shm/")
    assert sh.out("nsm run -e python -s work 'os.listdir(\"/dev/shm\")'") == "[]\n"
    assert "No space left" in sh.error("nsm cp work:/usr/bin/env /dev/full")
    sh.out("nsm kill work")
    assert "work" in sh.error("nsm cp f work:")
    assert os.listdir(sh.directory) == ["f"]


def test_a_file_over_the_limit(short_dir: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with supervisor(short_dir, config="[session]\nmax_file_mb = 1\n") as it:
        sh = Shell(it, tmp_path)
        sh.out('nsm run -e python -s work \'open("big", "wb").write(bytes(2**20 + 1)); None\'')
        (tmp_path / "big").write_bytes(bytes(2**20 + 1))
        sh.error("nsm cp work:big other")
        sh.error("nsm cp big work:other")
        sh.error("nsm cp /dev/zero work:other")
        assert os.listdir(tmp_path) == ["big"]
        assert sh.out("nsm run -e python -s work 'import os; os.listdir()'") == "['big']\n"
        assert sh.out("head -c 1048576 big | nsm cp - work:fits; nsm cp work:fits - | wc -c") == (
            "1048576\n"
        )


# The environment, where none is named.


def test_the_environment_is_that_of_the_session_or_of_the_file(sh: Shell) -> None:
    (sh.directory / "six.py").write_text("print(6 * 7)\n")
    (sh.directory / "tool").write_text("#!/usr/bin/env bash\necho $((6 * 7))\n")
    assert sh.out("nsm run -s work 'x + 1'") == "2\n"
    assert sh.out("nsm run -f six.py; nsm run -f tool; nsm run < tool") == "42\n" * 3
    refused = sh("nsm run -s work -f tool")
    assert refused.returncode == 125
    assert b"The session 'work' runs python, and the code is for bash" in refused.stderr
    unsaid = sh("nsm run 'echo'")
    assert unsaid.returncode == 125
    assert b"Nothing says which environment to run the code in.\nName one with -e" in unsaid.stderr
    assert b"Available: python, bash" in unsaid.stderr
    unknown = sh("nsm run -s nobody 'echo'")
    assert b"There is no session 'nobody' here, and nothing says which" in unknown.stderr


# Advice is in the syntax of the command line, not in that of the tool.

_OF_THE_TOOL = ("timeout_seconds", "session:", "`session`", "`env`", "the tool", "call run")


_ADVICE = {
    "nsm run -e bash -t 0.5 'sleep 9'": "timed out after 0.5 s; -t sets the time limit",
    "nsm run -e bash -t 999 true": "the limit is 30 s, not the 999 s asked for; config.toml",
    "nsm run -e nothing x": "No environment 'nothing'.",
    "nsm run -e bash -s work true": "Use another session name for bash",
    "nsm run -e bash -s new true": "goes on in it",
    "nsm run -e python 'import pandas_of_nobody, numpy, pandas, torch'": "",
    "nsm run -e bash 'pip install requests'": "network is off",
    "nsm run -e bash 'seq 999999'": "with a session (-s NAME) up to 64 MiB are kept in a file",
}


def test_advice_is_in_the_syntax_of_the_command_line(sh: Shell) -> None:
    for command, said in _ADVICE.items():
        told = sh(f"{command} >/dev/null").stderr.decode()
        assert said in told
        assert [word for word in _OF_THE_TOOL if word in told] == []


# Questions, on a terminal.


_ANSWERS = {"n\r": 1, "\r": 1, "\x04": 1, "\x03": 130, "y\r": 0}
"""The exit status for what a person types; only the last one is a yes."""

_NO_AND_YES = {keys: _ANSWERS[keys] for keys in ("\r", "y\r")}
"""Answers for further commands, which ask in the same way."""


@pytest.mark.parametrize(
    ("command", "answers"), [("nsm kill --all", _ANSWERS), ("nsm kill theirs", _NO_AND_YES)]
)
def test_sessions_end_only_when_a_person_says_yes(
    sh: Shell, command: str, answers: dict[str, int]
) -> None:
    (sh.directory / "elsewhere").mkdir()
    assert sh("cd elsewhere; nsm run -e bash -s theirs true").returncode == 0
    for keys, code in answers.items():
        assert "theirs" in sh.out("nsm ps")
        with _at_a_terminal(sh, command) as person:
            person.see("[y]es, [N]o")
            person.type(keys)
            assert (person.end(), "Traceback" in person.text) == (code, False)
    assert "theirs" not in sh.out("nsm ps")


@pytest.mark.parametrize("command", ["nsm apply theirs", "nsm discard theirs"])
def test_another_projects_changes_are_asked_for(sh: Shell, command: str) -> None:
    (sh.directory / "elsewhere").mkdir()
    opened = sh("cd elsewhere; nsm run -e bash -s theirs --project-mode overlay true")
    if b"overlay" in opened.stderr:
        pytest.skip("not here: projects cannot be copied on write")
    for keys, code in _NO_AND_YES.items():
        with _at_a_terminal(sh, command) as person:
            person.see("theirs (", "is a session of", "[y]es, [N]o")
            assert "/elsewhere" in person.text.replace("\n", "")  # its path may be broken
            person.type(keys)
            assert (person.end(), "Traceback" in person.text) == (code, False)
            assert ("there is nothing to" in person.text) == (code == 0)


@pytest.mark.slow
def test_the_supervisor_ends_only_when_a_person_says_yes(short_dir: Path) -> None:
    with supervisor(short_dir) as running:
        sh = Shell(running, short_dir)
        assert sh("nsm run -e bash -s work true").returncode == 0
        for keys, code in _NO_AND_YES.items():
            assert b"work" in sh("nsm ps").stdout
            with _at_a_terminal(sh, "nsm shutdown") as person:
                person.see("End 1 session? [y]es, [N]o")
                person.type(keys)
                assert (person.end(), "Traceback" in person.text) == (code, False)
        assert b"work" not in sh("nsm ps").stdout


def _at_a_terminal(sh: Shell, command: str) -> Terminal:
    shell = ["/bin/bash", "-c", f"cd {shlex.quote(str(sh.directory))}; exec {command}"]
    return Terminal(shell, sh.variables)


# Transcripts.


def test_logs_show_code_output_and_outcome(sh: Shell) -> None:
    sh("nsm run -e python -s work 'for n in range(2):\n    print(n)\nn'")
    sh("nsm run -e python -s work 'import sys; print(\"\\x1b[2J\", file=sys.stderr); 1/0'")
    text = sh.out("nsm logs work")
    assert text.startswith("session work (")
    assert "> for n in range(2):\n>     print(n)\n> n\n  0\n  1\n  1\n[" in text
    assert "! \\x1b[2J\n! Traceback (most recent call last):\n" in text
    assert "\n[exit code 1; " in text
    assert "\x1b" not in text
    last = sh.out("nsm logs work -n 1")
    assert last.count("\n> ") == 1
    assert "\n[3] " in last
    lines = [json.loads(line) for line in sh.out("nsm logs work --json").splitlines()]
    assert [line["event"] for line in lines if line["event"] != "output"] == [
        "session",
        *["execution", "finished"] * 3,
        "end",
    ]
    assert lines[-1]["executions"] == 3
    assert "\x1b[2J\n" in "".join(line.get("text", "") for line in lines)
    assert sh("nsm logs work | head -1; echo ${PIPESTATUS[0]}").stderr == b""


def test_ended_sessions(sh: Shell) -> None:
    identifier = json.loads(sh.out("nsm ps --json"))[0]["id"]
    sh.out("nsm kill work")
    text = sh.out("nsm logs work")
    assert "> x = 1\n[" in text
    assert "\nended: " in text
    assert sh.out(f"nsm logs {identifier}") == text
    assert sh.out("nsm logs -f work") == text
    rows = json.loads(sh.out("nsm ps --all --json"))["ended"]
    assert (rows[-1]["id"], rows[-1]["name"], rows[-1]["executions"]) == (identifier, "work", 1)
    assert identifier in sh.out("nsm ps --all")
    assert identifier not in sh.out("nsm ps")
    assert "never" in sh.error("nsm logs never")


def test_logs_follow_until_ctrl_c_or_the_end(sh: Shell) -> None:
    command = [program("nsm"), "logs", "-f", "-n", "0", "work"]
    for ends_by_itself in (False, True):
        with ending(
            subprocess.Popen(
                command,
                cwd=sh.directory,
                env=sh.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        ) as following:
            assert following.stdout is not None
            assert following.stdout.readline().startswith(b"session work")
            sh.out("nsm run -e python -s work 'print(\"seen\")'")
            while b"seen" not in (line := following.stdout.readline()):
                assert line, "it ended"
            if ends_by_itself:
                sh.out("nsm kill work")
            else:
                following.send_signal(signal.SIGINT)
            out, err = following.communicate(timeout=TIMEOUT_S)
            assert (following.returncode, err) == (0, b"")
            assert (b"ended: " in out) is ends_by_itself


def test_output_that_is_not_utf8(sh: Shell) -> None:
    """Every byte, also of streams that are more than a mebibyte together."""
    data = bytes(range(256)) * 2500
    (sh.directory / "d").write_bytes(data)
    codes = {
        "bash": "cat /project/d; cat /project/d >&2",
        "python": "for fd in (1, 2): _ = open(fd, 'wb').write(open('/project/d', 'rb').read())",
        "node": "const d = fs.readFileSync('/project/d'); process.stderr.write(d); "
        "process.stdout.write(d); undefined",
    }
    for env, code in codes.items():
        done = sh(f"nsm run -e {env} {shlex.quote(code)}")
        assert (done.stdout == data, done.stderr == data) == (True, True), env
    told = json.loads(sh.out("nsm run --json -e bash 'cat /project/d'"))
    assert told["stdout"] == data.decode("ascii", "replace")


# Images.


def test_images_of_run(sh: Shell) -> None:
    picture = pictures.png(640, 480)
    code = (
        f"class Drawn:\n def _repr_png_(self): return {picture!r}\n"
        "class Vector:\n def _repr_svg_(self): return '<svg/>'\n def __repr__(self): return 'V'\n"
        "print('text'); display(Vector()); Drawn()"
    )
    (sh.directory / "plot.py").write_text(code)
    done = sh("nsm run -e python -s work --images plots -f plot.py")
    assert done.returncode == 0
    assert done.stdout.startswith(b"text\n[image 1]\nV\n<__main__.Drawn object at ")
    target = sh.directory / "plots"
    assert done.stderr.decode() == (
        f"nsm: image 1: image/svg+xml: {target}/work-1.svg\n"
        f"nsm: image/png, 640x480: {target}/work-2.png\n"
    )
    assert (target / "work-1.svg").read_text() == "<svg/>"
    assert (target / "work-2.png").read_bytes() == picture
    done = sh("nsm run -e python -f plot.py")
    (private,) = sh.directory.glob("nsm-*")
    assert sorted(os.listdir(private)) == ["python-1.svg", "python-2.png"]
