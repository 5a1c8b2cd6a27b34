"""Jobs of an agent: programs beside its interpreters, their output, input, signals and end."""

from __future__ import annotations

import base64
import os
import signal
import time
from functools import partial
from typing import Any

import pytest

from agent_process import AgentProcess, RefusedError, becomes_true, jailed_agent
from realjail import needs_bwrap
from sandbox.framing import encode_frame
from sandbox.job_output import OutputStore
from sandbox.jobs import MAX_JOBS

pytestmark = [pytest.mark.jail, needs_bwrap]

WAIT_S = 20.0


class Jobs:
    """The supervisor's side of an agent's jobs."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.ended: list[dict[str, Any]] = []
        self._asked = 0

    def post(self, kind: str, **fields: Any) -> str:
        self._asked += 1
        request = f"j{self._asked}"
        self.agent.send(type=kind, id=request, **fields)
        return request

    def answer(self, request: str) -> dict[str, Any]:
        while True:
            frame = self.agent.receive()
            if frame["type"] == "job_ended":
                self.ended.append(frame["job"])
            elif frame.get("id") == request:
                if frame["type"] in ("job_error", "error"):
                    raise RefusedError(frame)
                return frame

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.answer(self.post(kind, **fields))

    def start(self, *argv: str, **fields: Any) -> str:
        job: str = self.ask("job_start", argv=list(argv), **fields)["job"]["job"]
        return job

    def shell(self, line: str, **fields: Any) -> str:
        return self.start("sh", "-c", line, **fields)

    def read(self, job: str, offset: int = 0, **fields: Any) -> dict[str, Any]:
        frame = self.ask("job_read", job=job, offset=offset, **{"wait_s": WAIT_S, **fields})
        return {**frame, "data": base64.b64decode(frame["data"])}

    def output(self, job: str, offset: int = 0, **fields: Any) -> tuple[bytes, int]:
        """All that a job prints until its end, and how many bytes were lost."""
        data, missing = bytearray(), 0
        while True:
            frame = self.read(job, offset, **fields)
            data += frame["data"]
            self.agent.seen.clear()
            missing += frame["missing"]
            offset = frame["offset"] + len(frame["data"])
            if not frame["job"]["running"] and offset == frame["job"]["output_bytes"]:
                return bytes(data), missing

    def has_printed(self, job: str, size: int) -> bool:
        """Tell whether a job has printed as many bytes so far."""
        return bool(self.read(job, bytes=0, wait_s=0)["job"]["output_bytes"] == size)

    def until(self, job: str, text: bytes) -> bytes:
        """The output of a job up to the piece that has a text."""
        data = b""
        while text not in data:
            frame = self.read(job, len(data))
            assert frame["data"], data
            data += frame["data"]
        return data

    def wait(self, job: str) -> dict[str, Any]:
        facts: dict[str, Any] = self.read(job, bytes=0)["job"]
        assert not facts["running"]
        return facts

    def write(self, job: str, data: bytes, **fields: Any) -> dict[str, Any]:
        return self.ask("job_write", job=job, data=base64.b64encode(data).decode(), **fields)


@pytest.fixture
def jobs(jailed: AgentProcess) -> Jobs:
    return Jobs(jailed)


@pytest.fixture(scope="module")
def shared_jobs(shared_jailed: AgentProcess) -> Jobs:
    """Jobs of one agent, for tests that leave none running, and count none."""
    return Jobs(shared_jailed)


def test_the_answer_and_the_end_come_together(jobs: Jobs) -> None:
    job = jobs.ask("job_start", argv=["true"], wait_s=WAIT_S)["job"]["job"]
    told = jobs.agent.reader.next_message()  # without another read
    assert told is not None
    assert (told["type"], told["job"]["job"]) == ("job_ended", job)


@pytest.mark.parametrize(
    ("argv", "fields", "code", "says"),
    [
        (["no-such-program"], {}, "ENOENT", "no such program in PATH"),
        (["/workspace/missing"], {}, "ENOENT", "no such program"),
        (["/workspace/data"], {}, "EACCES", "not executable: its permissions do not allow it"),
        (["/usr"], {}, "EACCES", "a directory, not a program"),
        (["/workspace/not-a-program"], {}, "ENOEXEC", "first line like #!"),
        (["/workspace/orphan-script"], {}, "ENOENT", "interpreter that its first line names"),
        # ENOENT is about the program.
        (["true"], {"cwd": "/nowhere"}, "EINVAL", "working directory '/nowhere': No such"),
    ],
)
def test_a_program_that_cannot_be_started_is_refused_with_the_reason(
    shared_jobs: Jobs, argv: list[str], fields: dict[str, str], code: str, says: str
) -> None:
    prepare = (
        "echo x > data; printf nonsense > not-a-program; chmod +x not-a-program;"
        "echo '#!/no/interpreter' > orphan-script; chmod +x orphan-script"
    )
    shared_jobs.output(shared_jobs.shell(prepare))
    with pytest.raises(RefusedError, match=says) as refused:
        shared_jobs.start(*argv, **fields)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": []},
        {"argv": "true"},
        {"argv": ["a\0b"]},
        {"argv": ["true"], "env": {"A=B": "x"}},
        {"argv": ["true"], "timeout_s": -1},
        {"argv": ["true"], "tty": {"rows": 0, "columns": 80}},
    ],
)
def test_wrong_requests_are_refused(shared_jobs: Jobs, fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        shared_jobs.ask("job_start", **fields)
    assert shared_jobs.output(shared_jobs.start("echo", "fine"))[0] == b"fine\n"


def test_streams_are_apart_and_in_order(shared_jobs: Jobs) -> None:
    job = shared_jobs.shell("echo 1; sleep .05; echo 2 >&2; sleep .05; echo 3")
    assert shared_jobs.output(job)[0] == b"1\n2\n3\n"
    frame = shared_jobs.read(job)
    assert frame["pieces"] == [["stdout", 2], ["stderr", 2], ["stdout", 2]]
    assert shared_jobs.read(job, 3)["pieces"] == [["stderr", 1], ["stdout", 2]]
    assert shared_jobs.read(job, 1, bytes=2)["data"] == b"\n2"


def test_a_key_starts_a_program_once(jobs: Jobs) -> None:
    first = jobs.ask("job_start", argv=["sh", "-c", "echo >> once"], key="k")
    jobs.wait(first["job"]["job"])
    again = jobs.ask("job_start", argv=["sh", "-c", "echo >> once"], key="k")
    assert (first["known"], again["known"]) == (False, True)
    assert again["job"]["job"] == first["job"]["job"]
    assert jobs.output(jobs.shell("wc -l < once"))[0] == b"1\n"


def test_input_with_a_key_is_given_once(jobs: Jobs) -> None:
    job = jobs.start("cat", stdin=True)
    for _ in range(3):
        assert jobs.write(job, b"once\n", key="w")["taken"] == 5
    jobs.ask("job_write", job=job, eof=True, key="e")
    jobs.ask("job_write", job=job, eof=True, key="e")
    assert jobs.output(job)[0] == b"once\n"


def test_input_that_nobody_reads_waits_and_blocks_nothing(jobs: Jobs) -> None:
    job = jobs.start("sleep", "60", stdin=True)
    taken = 0
    while piece := jobs.write(job, bytes(256 * 1024))["taken"]:
        taken += piece
    assert 256 * 1024 <= taken <= 1024 * 1024
    waiting = jobs.post("job_write", job=job, data="eA==", wait_s=WAIT_S)
    assert jobs.output(jobs.start("echo", "alive"))[0] == b"alive\n"
    jobs.ask("job_signal", job=job, signal=signal.SIGKILL)
    with pytest.raises(RefusedError, match=r"has ended|does not read"):
        jobs.answer(waiting)


@pytest.mark.parametrize("line", ["exec <&-", "exec </dev/null"])
def test_input_that_a_job_has_closed_is_refused(jobs: Jobs, line: str) -> None:
    """poll(2) would report it at once, for ever: the agent would be busy with nothing else."""
    job = jobs.shell(f"{line}; echo closed; sleep 60", stdin=True)
    jobs.until(job, b"closed")
    if "null" in line:
        becomes_true(
            lambda: not jobs.read(job, bytes=0, wait_s=0)["job"]["takes_input"], "it is closed"
        )
    with pytest.raises(RefusedError, match="does not read its standard input any more") as refused:
        jobs.write(job, b"x")
    assert refused.value.code == "EPIPE"
    quiet = jobs.start("sleep", "60")
    with pytest.raises(RefusedError, match="was started without input"):
        jobs.write(quiet, b"x")


def test_a_terminal_its_size_and_its_interrupt(jobs: Jobs) -> None:
    line = "stty size; test -t 0 && test -t 2 && echo terminal; trap 'stty size' WINCH; "
    job = jobs.shell(
        line + "echo ready; while :; do sleep .05; done", tty={"rows": 7, "columns": 9}
    )
    seen = jobs.until(job, b"ready")
    assert seen.startswith(b"7 9\r\nterminal")
    jobs.ask("job_resize", job=job, rows=11, columns=13)
    jobs.until(job, b"11 13")
    jobs.ask("job_signal", job=job, signal=signal.SIGINT)
    facts = jobs.wait(job)
    assert (facts["signal"], facts["exit_code"]) == (signal.SIGINT, 130)


@pytest.mark.parametrize(
    ("term", "env", "told"),
    [
        ("vt100", {}, "vt100"),
        ("no-such-terminal", {}, "xterm"),
        ("../x/xterm", {}, "xterm"),
        ("vt100", {"TERM": "mine"}, "mine"),
        (None, {}, "xterm"),
    ],
)
def test_the_type_of_a_terminal(
    shared_jobs: Jobs, term: str | None, env: dict[str, str], told: str
) -> None:
    tty = {"rows": 24, "columns": 80, "term": term}
    job = shared_jobs.shell("echo $TERM", tty=tty, env=env)
    assert shared_jobs.output(job)[0].decode() == f"{told}\r\n"


def test_text_typed_into_a_terminal_is_echoed_and_read(jobs: Jobs) -> None:
    job = jobs.start("cat", stdin=True, tty={"rows": 24, "columns": 80})
    jobs.write(job, b"hello\n")
    jobs.until(job, b"hello\r\nhello\r\n")
    jobs.ask("job_write", job=job, eof=True)
    assert jobs.wait(job)["exit_code"] == 0


CLOSES_ITS_TERMINAL = "printf printed; exec <&- >&- 2>&-; read line < go; exit 7"


def test_a_program_that_closes_its_terminal_goes_on(jobs: Jobs) -> None:
    """A program that exits does so for a moment."""
    jobs.wait(jobs.shell("mkfifo go"))
    job = jobs.start("bash", "-c", CLOSES_ITS_TERMINAL, tty={"rows": 24, "columns": 80})
    jobs.until(job, b"printed")
    assert jobs.output(jobs.shell("echo > go"))[0] == b""
    facts = jobs.wait(job)
    assert (facts["exit_code"], facts["signal"]) == (7, 0)
    assert jobs.output(job)[0] == b"printed"


def test_ctrl_c_that_is_typed_reaches_the_foreground(jobs: Jobs) -> None:
    job = jobs.start("bash", "--norc", "-i", tty={"rows": 24, "columns": 80})
    jobs.write(job, b"sleep 60; echo rc=$?\n")
    becomes_true(lambda: b"sleep" in jobs.output(jobs.shell("cat /proc/*/comm"))[0], "sleep runs")
    jobs.write(job, b"\x03")
    jobs.write(job, b"echo rc=$?\n")
    jobs.until(job, b"rc=130")
    jobs.write(job, b"exit 4\n")
    assert jobs.wait(job)["exit_code"] == 4


@pytest.mark.slow
def test_a_time_limit_and_its_ladder(jobs: Jobs) -> None:
    job = jobs.shell(
        "trap 'echo int' INT; trap 'echo term' TERM; mkfifo no; while :; do read x <>no; done",
        timeout_s=1.0,
        grace_s=3.0,
    )
    assert jobs.output(job)[0] == b"int\nterm\n"
    facts = jobs.wait(job)
    assert (facts["exit_code"], facts["signal"], facts["timed_out"]) == (124, 9, True)


def test_stop_ends_all_that_a_job_has_started(jobs: Jobs) -> None:
    job = jobs.shell("trap '' INT TERM; sleep 61 & setsid sleep 61 & echo ready; wait; wait; wait")
    jobs.until(job, b"ready")
    jobs.ask("job_stop", job=job, grace_s=0.1)
    facts = jobs.wait(job)
    assert (facts["signal"], facts["stopped"]) == (9, True)
    becomes_true(
        lambda: b"sleep\n" not in jobs.output(jobs.shell("cat /proc/*/comm"))[0], "all are gone"
    )


CHILDREN = "sleep 61 & setsid sleep 61 >/dev/null 2>&1 & echo ready; "


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [CHILDREN + "wait", "trap '' INT; trap 'exit 3' TERM; " + CHILDREN + "while :; do wait; done"],
    ids=["int", "term"],
)
@pytest.mark.parametrize("how", ["stop", "limit"])
def test_a_leader_that_obeys_takes_its_children_along(jobs: Jobs, line: str, how: str) -> None:
    jobs.agent.bash("setsid -f sleep 62")
    jobs.agent.python("x = 1")
    limit = {"timeout_s": 2.0} if how == "limit" else {}
    job = jobs.shell(line, grace_s=4.0, **limit)
    jobs.until(job, b"ready")
    if how == "stop":
        becomes_true(lambda: _sleeps(jobs) == ["61", "61", "62"], "the children run")
        jobs.ask("job_stop", job=job, grace_s=4.0)
    assert jobs.wait(job)["signal"] != signal.SIGKILL
    becomes_true(lambda: _sleeps(jobs) == ["62"], "all of the job are gone")


def test_stop_of_a_job_that_has_ended_kills_what_it_left(jobs: Jobs) -> None:
    jobs.agent.bash("setsid -f sleep 62")
    job = jobs.shell(
        "sleep 61 & setsid sleep 61 >/dev/null 2>&1 & until pgrep -c sleep; do :; done"
    )
    assert jobs.wait(job)["exit_code"] == 0
    becomes_true(lambda: _sleeps(jobs) == ["61", "61", "62"], "they are left")
    facts = jobs.ask("job_stop", job=job)["job"]
    assert (facts["running"], facts["stopped"]) == (False, False)
    becomes_true(lambda: _sleeps(jobs) == ["62"], "all of the job are gone")


def _sleeps(jobs: Jobs) -> list[str]:
    """The arguments of each `sleep` in the session."""
    told = jobs.output(jobs.start("pgrep", "-a", "-x", "sleep"))[0].decode()
    return sorted(line.split()[-1] for line in told.splitlines())


def test_too_many_are_refused_with_what_to_do(jobs: Jobs) -> None:
    for _ in range(MAX_JOBS):
        jobs.start("sleep", "60")
    with pytest.raises(RefusedError, match=f"{MAX_JOBS} jobs run in this session") as refused:
        jobs.start("true")
    assert refused.value.code == "EAGAIN"


@pytest.mark.slow  # a thousand jobs
def test_old_jobs_are_forgotten(jobs: Jobs) -> None:
    first = jobs.start("echo", "first")
    jobs.wait(first)
    last = ""
    for _ in range(1000):
        last = jobs.start("true")
        jobs.wait(last)
    with pytest.raises(RefusedError, match=f"job {first} has ended, and only the last") as refused:
        jobs.read(first)
    assert refused.value.code == "ESRCH"
    assert jobs.wait(last)["exit_code"] == 0
    assert len(jobs.ask("job_list")["jobs"]) == 1000


@pytest.mark.slow
def test_a_flood_that_nobody_reads_neither_blocks_nor_stays(jobs: Jobs) -> None:
    flood = jobs.shell("head -c 90000000 /dev/zero; echo end")
    facts = jobs.wait(flood)
    assert facts["output_bytes"] == 90_000_004
    data, missing = jobs.output(flood)
    assert len(data) + missing == facts["output_bytes"]
    assert 1_000_000 < len(data) <= 64 * 1024 * 1024 + 128 * 1024
    assert data.endswith(b"\0end\n")


def test_nothing_is_lost_for_a_reader(jobs: Jobs) -> None:
    job = jobs.shell("seq 300000; head -c 80000000 /dev/zero", env={})
    data, missing = jobs.output(job, hold=True)
    assert missing == 0
    assert len(data) == sum(len(f"{n}\n") for n in range(1, 300_001)) + 80_000_000
    assert data.startswith(b"1\n2\n3\n")


@pytest.mark.slow
def test_a_job_waits_for_a_reader_that_holds_it(jobs: Jobs) -> None:
    job = jobs.shell("head -c 90000000 /dev/zero; echo end")
    jobs.read(job, hold=True, bytes=1)
    before = -1
    while (size := jobs.read(job, bytes=0, wait_s=0.3)["job"]["output_bytes"]) > before:
        before = size
    assert size < 70_000_000
    data, missing = jobs.output(job, hold=True)
    assert (len(data), missing) == (90_000_004, 0)


def test_a_full_file_system_loses_output_and_nothing_else() -> None:
    with jailed_agent(weak=("--size", "1000000", "--tmpfs", "/tmp")) as agent:
        jobs = Jobs(agent)
        jobs.output(jobs.shell("head -c 900000 /dev/zero > /tmp/full"))
        job = jobs.shell("head -c 5000000 /dev/zero; echo end")
        facts = jobs.wait(job)
        data, missing = jobs.output(job)
        assert len(data) + missing == facts["output_bytes"] == 5_000_004
        assert data.endswith(b"end\n")
        assert jobs.output(jobs.start("echo", "fine"))[0] == b"fine\n"


def test_the_end_of_output_is_kept_where_no_block_has_room() -> None:
    with jailed_agent(weak=("--size", "100000", "--tmpfs", "/tmp")) as agent:
        jobs = Jobs(agent)
        jobs.output(jobs.shell("cat /dev/zero > /tmp/full"))
        job = jobs.shell(
            "seq 20000; read a; head -c 3000 /dev/zero >&2; read a; echo end", stdin=True
        )
        lines = sum(len(f"{n}\n") for n in range(1, 20_001))
        for so_far in (lines, lines + 3000):  # what comes at the same time has no order
            becomes_true(partial(jobs.has_printed, job, so_far), "it was read")
            jobs.write(job, b"\n")
        facts = jobs.wait(job)
        data, missing = jobs.output(job)
        assert len(data) + missing == facts["output_bytes"]
        assert len(data) == 4096
        assert data.endswith(bytes(3000) + b"end\n")
        pieces = jobs.ask("job_read", job=job, offset=missing)["pieces"]
        assert pieces == [["stdout", 1092], ["stderr", 3000], ["stdout", 4]]


def test_jobs_run_on_while_an_interpreter_is_replaced(jobs: Jobs) -> None:
    agent = jobs.agent
    agent.python("x = 1")
    job = jobs.shell("sleep 60 & echo ready; read line; echo $line", stdin=True)
    jobs.until(job, b"ready")
    assert agent.python("import os; os._exit(3)").interpreter_restarted
    assert agent.python("print('again')").stdout == "again\n"
    jobs.write(job, b"still here\n")
    assert jobs.output(job)[0] == b"ready\nstill here\n"


def test_a_job_does_not_take_an_interpreter_s_processes_with_it(jobs: Jobs) -> None:
    agent = jobs.agent
    both = '[ "$(pgrep -c -x sleep)" = 2 ]'
    agent.bash(f"sleep 62 & setsid -f sleep 62; until {both}; do :; done")
    job = jobs.shell("trap '' INT TERM; sleep 61; sleep 61")
    jobs.ask("job_stop", job=job, grace_s=0.0)
    jobs.wait(job)
    assert agent.bash("pgrep -c -x sleep").stdout == "2\n"


def test_a_session_with_a_job_is_in_use(jobs: Jobs) -> None:
    job = jobs.start("sleep", "60")
    assert jobs.agent.status()["background"] == 1
    jobs.ask("job_stop", job=job)
    jobs.wait(job)
    assert jobs.agent.status()["background"] == 0


def test_limits_of_jobs_are_those_of_interpreters() -> None:
    with jailed_agent(
        "--limits", '{"processes": 40, "descriptors": 99, "data_bytes": 99000320}'
    ) as agent:
        jobs = Jobs(agent)
        look = "ulimit -u; ulimit -n; ulimit -d; ulimit -Hd;"
        look += "until grep -x 1000 /proc/$$/oom_score_adj; do :; done"
        assert jobs.output(jobs.start("bash", "-c", look))[0] == b"40\n99\n96680\n96680\n1000\n"
        assert agent.python("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    ("limits", "says", "code"),
    [
        ('{"processes": 40}', "limit of processes", "EAGAIN"),
        ('{"descriptors": 30}', "limit of open files: end some jobs", "EMFILE"),
    ],
)
def test_a_limit_that_is_reached_is_told_with_what_to_do(limits: str, says: str, code: str) -> None:
    with jailed_agent("--limits", limits) as agent:
        jobs = Jobs(agent)
        start_all = [jobs.post("job_start", argv=["sleep", "60"], stdin=True) for _ in range(50)]
        with pytest.raises(RefusedError, match=says) as refused:
            list(map(jobs.answer, start_all))
        assert refused.value.code == code


def test_a_new_owner_of_the_channel_finds_the_jobs(jobs: Jobs) -> None:
    agent = jobs.agent
    agent.hello()
    job = jobs.shell("echo one; read line; echo $line; exit 5", stdin=True, key="k")
    jobs.until(job, b"one\n")
    jobs.post("job_read", job=job, offset=4, wait_s=WAIT_S)  # nobody will have the answer
    agent.socket.sendall(encode_frame({"type": "ping"})[:3])  # torn
    assert agent.take_over()["executions"] == {}
    again = jobs.ask("job_start", argv=["false"], key="k")
    assert (again["known"], again["job"]["job"]) == (True, job)
    jobs.write(job, b"two\n")
    assert jobs.output(job) == (b"one\ntwo\n", 0)
    assert jobs.wait(job)["exit_code"] == 5


def test_the_file_of_output_is_out_of_reach(jobs: Jobs) -> None:
    jobs.wait(jobs.shell("head -c 1000000 /dev/zero"))
    assert jobs.output(jobs.shell("ls -A /tmp; ls /proc/1/fd"))[0].count(b"\n") <= 1


def test_gaps_are_told_where_they_are(tmp_path: os.PathLike[str]) -> None:
    store = OutputStore(os.fspath(tmp_path))
    log = store.open_log(time.monotonic)
    other = store.open_log(time.monotonic)
    written = bytes(range(256)) * 4096
    for _ in range(80):
        log.write(0, written)
        other.write(1, b"x")
    offset = kept = missing = 0
    while offset < log.size:
        begin, pieces, data = log.read(offset, 200_000)
        assert pieces == [("stdout", len(data))]
        assert data == (written + written)[begin % len(written) :][: len(data)]
        missing += begin - offset
        kept += len(data)
        offset = begin + len(data)
    assert kept + missing == log.size
    assert 60_000_000 < kept < 64 * 1024 * 1024 + 65536
    assert other.read(0, 100)[2] == b"x" * 80
    store.forget(log)
    store.forget(other)
