"""Programs that each run in a fresh interpreter of a session."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

import nsm
from e2e_support import program, supervisor
from nsm.saves.saves import Saves
from nsm.wire.errors import BadRequestError, FateUnknownError, ForkRefusedError, UnknownSessionError

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor
    from nsm import Client, FreshResult


def results_of(
    client: Client, *programs: str | nsm.FreshProgram, at_once: int | None = None
) -> list[FreshResult]:
    """The results of programs, in their order, in one session of Python."""
    return list(client.map(programs, session="fresh", env="python", in_order=True, at_once=at_once))


def test_programs_know_nothing_of_each_other_and_of_the_session(client: Client) -> None:
    client.run("x = 1; import os; os.environ['SECRET'] = 'x'", env="python", session="fresh")
    first = "import builtins, os; builtins.leak = 1; os.environ['SECRET'] = 'y'; open('f', 'w')"
    look = "import os; print(os.listdir(), 'SECRET' in os.environ, 'leak' in dir(__builtins__))"
    results = results_of(client, first, *[look] * 6, "print(x)", at_once=2)
    assert [result.stdout for result in results[1:7]] == ["[] False False\n"] * 6
    assert "NameError" in results[7].stderr
    assert client.run("print(x)", env="python", session="fresh").stdout == "1\n"


TEMPORARY = {
    "python": """
import os, tempfile
os.mkdir('a')
tempfile.mkstemp()
print(len(os.listdir()), os.environ['PWD'] == os.getcwd())
""",
    "bash": "mktemp >/dev/null; touch a; echo $(ls | wc -l) ${TMPDIR/#$PWD/True}",
}


@pytest.mark.parametrize(("env", "code"), TEMPORARY.items())
def test_temporary_files_go_with_their_program(client: Client, env: str, code: str) -> None:
    results = client.map([code] * 3, session="fresh", env=env, at_once=1)
    assert [(each.stdout, each.stderr) for each in results] == [("2 True\n", "")] * 3
    assert [entry.name for entry in client.files("fresh").list()] == [".fresh"]


def test_random_numbers_differ(client: Client) -> None:
    draw = "import random, os, uuid; print(random.random(), os.urandom(4).hex(), uuid.uuid4())"
    results = results_of(client, *[draw] * 8, at_once=2)
    assert len({word for result in results for word in result.stdout.split()}) == 3 * 8


WAITS = "import os, time\nwhile not os.path.exists('/workspace/go'): time.sleep(0.01)"


def test_results_come_as_programs_end(client: Client) -> None:
    found = client.map([WAITS, "print('quick')"], session="fresh", env="python", at_once=2)
    assert next(found).number == 1
    client.files("fresh").write("/workspace/go", b"")
    assert [result.number for result in found] == [0]


def test_results_come_in_order_if_wanted(client: Client) -> None:
    quick = "open('/workspace/go', 'w').close()"
    assert [result.number for result in results_of(client, WAITS, quick, at_once=2)] == [0, 1]


def test_each_program_has_its_own_limit_output_and_exit_code(client: Client) -> None:
    endless = nsm.FreshProgram("while True: pass", timeout_s=0.3)
    results = results_of(
        client, "import sys; print(1); sys.exit(7)", endless, "1 + 1", "print('x' * 10**7)"
    )
    assert [result.exit_code for result in results] == [7, 124, 0, 0]
    assert results[1].timed_out
    assert results[2].displays[0]["text/plain"] == "2"
    assert results[3].truncated["stdout"].omitted_bytes > 9 * 10**6
    assert results[3].truncated["stdout"].file is None


def test_large_results_come_in_several_answers(client: Client) -> None:
    results = results_of(client, *["print('x' * 250_000)"] * 40, at_once=2)
    assert [len(result.stdout) for result in results] == [250_001] * 40


@pytest.mark.parametrize("in_order", [True, False])
def test_a_program_that_cannot_be_run_costs_no_other(client: Client, in_order: bool) -> None:
    codes = ["\ud800", "print(1)", "x" * (9 * 2**20), "1", "print(2)", "\ud800"]
    programs = [nsm.FreshProgram(code, -1.0 if code == "1" else None) for code in codes]
    results = list(client.map(programs, session="fresh", env="python", in_order=in_order))
    found = {result.number: (result.exit_code, bool(result.error)) for result in results}
    assert [found[number] for number in range(6)] == [
        (125, True),
        (0, False),
        (125, True),
        (125, True),
        (0, False),
        (125, True),
    ]


@pytest.mark.parametrize(
    "program",
    [
        cast("str", 1),
        nsm.FreshProgram("1", math.inf),
        nsm.FreshProgram("1", math.nan),
        nsm.FreshProgram("1", argv=("x" * 2**24,)),
        nsm.FreshProgram("1", argv=("x",) * 250_000),
        "x" * (2**24 - 2**17),
    ],
    ids=["no text", "no limit", "no number", "a long argument", "many arguments", "much code"],
)
def test_a_program_that_cannot_be_sent_costs_no_other(
    client: Client, program: str | nsm.FreshProgram
) -> None:
    results = results_of(client, "print(1)" + "#" * 900_000, program, "print(2)")
    assert [result.exit_code for result in results] == [0, 125, 0]
    assert results[1].error


@pytest.mark.parametrize(("env", "code"), [("bash", "echo $((6 * 7)); x=1"), ("node", "6 * 7")])
def test_bash_and_node_are_fresh_as_well(client: Client, env: str, code: str) -> None:
    client.run("y=1", env=env, session=env)
    results = list(client.map([code, code], session=env))
    assert [result.exit_code for result in results] == [0, 0]
    assert "42" in results[1].stdout + str(results[1].displays)


def test_one_run_is_as_one_program(client: Client) -> None:
    result = client.run("print(1)", env="python", session="fresh", fresh=True, timeout_s=10**6)
    assert (result.stdout, result.session.created, result.clamped_from_s) == ("1\n", True, 10**6)
    with pytest.raises(BadRequestError):
        client.run("1", env="python", fresh=True)
    with pytest.raises(BadRequestError):
        client.run("1", env="python", session="fresh", fresh=True, stdin=b"1")


LEFT_BEHIND = """
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.dup2(os.open('/dev/null', os.O_RDWR), 1)
        time.sleep(1000)
    os._exit(0)
subprocess.Popen(['sleep', '1000'], start_new_session=True)
open('/tmp/kept', 'w').close()
open('lost', 'w').close()
"""

COUNT = """
import os
names = []
for pid in os.listdir('/proc'):
    if pid.isdigit():
        try:
            names.append(open(f'/proc/{pid}/cmdline').read())
        except OSError:
            pass
print(sum('sleep' in name for name in names), len(names))
"""


def test_a_program_ends_with_all_that_it_has_started(client: Client) -> None:
    before = results_of(client, COUNT, at_once=1)[0].stdout.split()
    results_of(client, *[LEFT_BEHIND] * 3, at_once=1)
    look = "import os; print(os.listdir('/tmp'), len(os.listdir('/workspace/.fresh')))"
    after, files = results_of(client, COUNT, look, at_once=1)
    assert after.stdout.split() == before
    assert files.stdout == "['kept'] 1\n"


ATTACKS = {
    "forks a thousand children": "import os\nwhile True: os.fork()",
    "kills its runner": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "kills all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "closes its descriptors": "import os; os.closerange(0, 1000)",
    "fills the memory": "x = []\nwhile True: x.append(bytearray(2**24))",
    "lowers its limits": (
        "import resource\n"
        "for kind in range(16):\n"
        "    try: resource.setrlimit(kind, (0, 0))\n"
        "    except Exception: pass"
    ),
    "fills its directory": "x = open('x', 'wb')\nwhile True: x.write(bytes(2**20)); x.flush()",
    "removes its directory": "import os; os.rmdir(os.getcwd())",
    "removes all directories": "import shutil; shutil.rmtree('/workspace/.fresh')",
    "links its directory": (
        "import os, shutil; d = os.getcwd(); os.rmdir(d); os.symlink('/workspace/work', d)"
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_an_attack_costs_its_program_and_the_session_goes_on(client: Client, attack: str) -> None:
    client.run("open('/workspace/work', 'w').write('1')", env="python", session="fresh")
    hostile = nsm.FreshProgram(attack, timeout_s=3.0)
    assert len(results_of(client, hostile, at_once=1)) == 1
    results = results_of(client, *["print(open('/workspace/work').read())"] * 4, at_once=2)
    assert [result.stdout for result in results] == ["1\n"] * 4
    assert client.run("print(2)", env="python", session="fresh").stdout == "2\n"


def test_a_killed_runner_fails_its_program_which_is_not_run_again(client: Client) -> None:
    kill = "open('/workspace/ran', 'a').write('x')\n" + ATTACKS["kills its runner"]
    (result,) = results_of(client, kill + "\nimport time; time.sleep(10)", at_once=1)
    assert (result.exit_code, bool(result.error)) == (137, True)
    assert results_of(client, "print(open('/workspace/ran').read())")[0].stdout == "x\n"


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_program_that_ends_what_forks_python_harms_none(client: Client, how: str) -> None:
    find = """
import os, signal
runner = os.getppid()
children = open(f'/proc/{runner}/task/{runner}/children').read().split()
servers = {*map(int, children)} - {os.getpid()}
"""
    hit = f"{find}for each in servers: os.kill(each, signal.{how})"
    results = results_of(client, hit, "1", f"{find}print(servers)", at_once=1)
    assert [result.exit_code for result in results] == [0] * 3
    assert results[-1].stdout == "set()\n"  # one that goes on later would fork for nobody


def test_what_the_session_has_started_outlives_a_runner(client: Client) -> None:
    client.run("1", env="python", session="fresh")
    results_of(client, "1", at_once=1)
    daemon = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.dup2(os.open('/dev/null', os.O_RDWR), 1)
        open('/workspace/pid', 'w').write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not (os.path.exists('/workspace/pid') and os.path.getsize('/workspace/pid')):
    time.sleep(0.01)
"""
    client.run(daemon, env="python", session="fresh")
    results_of(client, ATTACKS["kills its runner"], at_once=1)
    results_of(client, "1", at_once=1)  # by now the agent has seen the end of that runner
    look = "import os; os.kill(int(open('/workspace/pid').read()), 0); print('lives')"
    assert client.run(look, env="python", session="fresh").stdout == "lives\n"


@pytest.mark.parametrize(
    "taken",
    ["open('.fresh', 'w')", "import os; os.symlink('/tmp', '.fresh')"],
    ids=["file", "link"],
)
def test_without_a_place_for_programs_none_runs(client: Client, taken: str) -> None:
    client.run(taken, env="python", session="fresh")
    for result in results_of(client, *["print(1)"] * 3, at_once=2):
        assert (result.exit_code, result.stdout, ".fresh" in result.error) == (125, "", True)
    client.run("import os; os.unlink('.fresh')", env="python", session="fresh")
    assert results_of(client, "print(1)")[0].stdout == "1\n"


STOP_RUNNERS = """
import os, signal
from pathlib import Path
for path in Path('/proc').glob('[1-9]*/stat'):
    pid = int(path.parent.name)
    if path.read_text().split(')')[1].split()[1] == '1' and pid != os.getpid():
        os.kill(pid, signal.SIGSTOP)
"""


def test_runners_that_are_stopped_go_on(client: Client) -> None:
    client.run("1", env="python", session="fresh")
    stop = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)"
    assert [each.exit_code for each in results_of(client, *[stop] * 3, at_once=2)] == [0] * 3
    client.run(STOP_RUNNERS, env="python", session="fresh")
    assert [each.exit_code for each in results_of(client, *["1"] * 3, at_once=2)] == [0] * 3


def wait_for_file(client: Client, path: str) -> None:
    """Wait until code has made a file."""
    with client.files("fresh").watch(path.rpartition("/")[0]) as changes:
        while path.rpartition("/")[2] not in {entry.name for entry in client.files("fresh").list()}:
            next(changes)


SLOW = "import time; time.sleep(60)"


def test_ctrl_c_ends_a_map_and_its_client_goes_on(client: Client, shared: Supervisor) -> None:
    def interrupt() -> None:
        with shared.client() as other:
            wait_for_file(other, "/workspace/began")
        os.kill(os.getpid(), signal.SIGINT)

    client.run("1", env="python", session="fresh")
    thread = threading.Thread(target=interrupt)
    thread.start()
    began = "open('/workspace/began', 'w').close()\n"
    with pytest.raises(KeyboardInterrupt):
        results_of(client, began + SLOW, "print(1)", at_once=1)
    thread.join()
    assert results_of(client, "print(2)")[0].stdout == "2\n"


def test_leaving_a_map_ends_its_programs(client: Client) -> None:
    with client.map(["print(1)", *[SLOW] * 50], session="fresh", env="python", at_once=2) as found:
        assert next(found).stdout == "1\n"
    started = time.monotonic()
    assert results_of(client, "print(2)")[0].stdout == "2\n"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_session_that_is_killed_or_interrupted_answers_for_all(
    client: Client, shared: Supervisor, how: str
) -> None:
    count = 5 if how == "killed" else 100  # more than are sent at once
    found = client.map(["print(1)", *[SLOW] * count], session="fresh", env="python", at_once=2)
    results = [next(found)]
    with shared.client() as other:
        if how == "killed":
            other.kill("fresh")
        else:
            assert other.interrupt("fresh")
    results += found
    assert sorted(result.number for result in results) == list(range(count + 1))
    assert all(result.error or result.interrupted for result in results[1:])
    if how == "killed":
        with pytest.raises(UnknownSessionError):
            client.map([SLOW], session="fresh", must_exist=True)


def test_forks_saves_and_undo_are_refused_while_programs_run(
    client: Client, shared: Supervisor, tmp_path: Path
) -> None:
    client.run("x = 1", env="python", session="fresh")
    with client.map([SLOW, "print(1)"], session="fresh", at_once=2) as found:
        next(found)
        with shared.client() as other:
            (row,) = [row for row in other.sessions() if row.name == "fresh"]
            assert row.state == "running"
            with pytest.raises(ForkRefusedError, match="fresh interpreters"):
                other.fork("fresh")
            with pytest.raises(BadRequestError, match="fresh interpreters"):
                other.undo("fresh")
            with pytest.raises(BadRequestError, match="fresh interpreters"):
                Saves(other).save("fresh", str(tmp_path / "save"))
            assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_a_session_is_forked_after_its_programs(client: Client) -> None:
    client.run("x = 1", env="python", session="fresh")
    results_of(client, *["print(1)"] * 4, at_once=2)
    client.fork("fresh", "copy")
    assert client.run("print(x)", env="python", session="copy").stdout == "1\n"


def test_two_clients_share_the_runners(client: Client, shared: Supervisor) -> None:
    mine: list[FreshResult] = []

    def run() -> None:
        with shared.client() as other:
            mine.extend(other.map(["print(1)"] * 30, session="fresh", env="python", at_once=1))

    client.run("1", env="python", session="fresh")
    thread = threading.Thread(target=run)
    thread.start()
    results = results_of(client, *["print(2)"] * 30, at_once=2)
    thread.join(60)
    assert {result.stdout for result in results} == {"2\n"}
    assert [result.stdout for result in mine] == ["1\n"] * 30


def test_the_end_of_the_supervisor_is_told_and_nothing_runs_twice(short_dir: Path) -> None:
    with supervisor(short_dir, keep=True) as it, it.client() as client:
        note = "import time; open('/workspace/ran', 'a').write('x'); time.sleep(5)"
        found = client.map(["print(1)", note, note], session="fresh", env="python", at_once=1)
        next(found)
        wait_for_file(client, "/workspace/ran")
        os.kill(it.pid, signal.SIGKILL)
        with supervisor(short_dir):
            with pytest.raises(FateUnknownError, match="Of the 3 that were sent, 1 had ended"):
                next(found)
            assert list(found) == []
            look = "import os; print(open('ran').read(), os.listdir('.fresh'))"
            assert client.run(look, env="python", session="fresh").stdout == "x []\n"


LINES = """\
"print(1)"
{"id": "second", "code": "import sys; print(sys.argv); sys.exit(3)", "argv": ["x.py", "y"]}
no JSON

{"code": 1}
{"code": "print(2)", "unknown": 1}
{"code": "while True: pass", "timeout_s": 0.3}
{"code": "print(chr(0x9b) + '31m')"}
"""


def test_nsm_map_answers_for_each_line(shared: Supervisor) -> None:
    done = shared.run("nsm", "map", "-s", "lines", "-e", "python", "--in-order", "-", stdin=LINES)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["line"] for result in results] == [1, 2, 3, 5, 6, 7, 8]
    assert [result["exit_code"] for result in results] == [0, 3, 125, 125, 125, 124, 0]
    assert [bool(result["error"]) for result in results] == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert (results[1]["id"], results[1]["stdout"]) == ("second", "['x.py', 'y']\n")
    assert done.returncode == 1
    assert done.stdout.isascii(), "it could move a terminal's cursor"
    log = shared.run("nsm", "logs", "lines").stdout
    assert "4 programs, each in a fresh interpreter: 2 failed" in log
    shared.run("nsm", "run", "-s", "lines", "1")
    (row,) = json.loads(shared.run("nsm", "ps", "--json").stdout)
    assert row["executions"] == 5
    shared.run("nsm", "kill", "lines")
    deadline = time.monotonic() + 10  # lines of the audit wait for others
    while "ended after 1 executions and 4 programs" not in shared.run("nsm", "audit").stdout:
        assert time.monotonic() < deadline
    told = map(json.loads, shared.run("nsm", "audit", "--json").stdout.splitlines())
    kinds = [line["event"] for line in told if line.get("name") == "lines"]
    assert kinds.count("fresh") == 4


def test_nsm_run_fresh_leaves_the_session_as_it_was(shared: Supervisor) -> None:
    shared.run("nsm", "run", "-s", "one", "-e", "python", "x = 1")
    fresh = shared.run("nsm", "run", "-s", "one", "--fresh", "print('x' in globals()); 6 * 7; ")
    assert fresh.stdout == "False\n"
    assert shared.run("nsm", "run", "-s", "one", "print(x)").stdout == "1\n"
    kill = "import os; os.kill(os.getpid(), 9)"
    killed = shared.run("nsm", "run", "-s", "one", "--fresh", kill)
    assert (killed.returncode, killed.stderr) == (137, "")
    again = shared.run("nsm", "run", "-s", "one", "--fresh", "--json", "1").stdout
    assert json.loads(again)["restart_reason"] == ""
    assert shared.run("nsm", "run", "--fresh", "1").returncode == 2


@pytest.mark.parametrize("number", ["0", "65", "x"])
def test_nsm_map_refuses_a_wrong_number_at_once(shared: Supervisor, number: str) -> None:
    done = shared.run("nsm", "map", "-s", "one", "-n", number, "-")
    assert done.returncode == 2
    assert "--at-once" in done.stderr
    done = shared.run("nsm", "map", "-s", "one", "-t", "0", "-")
    assert (done.returncode, done.stdout) == (125, "")
    assert "seconds above 0" in done.stderr


def test_programs_of_a_new_session_need_an_environment(client: Client, shared: Supervisor) -> None:
    with pytest.raises(BadRequestError, match="nothing says which environment"):
        client.map(["print(1)"], session="unnamed")
    assert shared.run("nsm", "run", "-s", "unnamed", "--fresh", "print(1)").returncode == 125
    assert "unnamed" not in [row.name for row in client.sessions()]


def test_ctrl_c_ends_nsm_map_after_the_results_that_came(shared: Supervisor) -> None:
    with subprocess.Popen(
        [program("nsm"), "map", "-s", "ctrl", "-e", "python", "-n", "1", "-"],
        env=shared.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'"print(1)"\n"import time; time.sleep(60)"\n' + b'"print(2)"\n' * 100)
        process.stdin.close()
        assert json.loads(process.stdout.readline())["stdout"] == "1\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.wait(30) == 130
