"""The harness itself: what it takes for a case, and that wrong answers do fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import sandbox_agent
from conformance import program
from conformance.campaign import run_case
from conformance.cases import Case, CaseError, Language, Step, load_all, load_file
from conformance.judge import Answer, problems
from conformance.table import as_values, table
from conformance.targets import LostAnswerError, Session, any_agent, own_agent, parts_of


def write(tmp_path: Path, text: str, folder: str = "python") -> Path:
    path = tmp_path / folder / "some.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def only(tmp_path: Path, text: str, folder: str = "python") -> Case:
    (case,) = load_file(write(tmp_path, text, folder))
    return case


HEAD = "[[case]]\nname = 'a'\nspec = 's'\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "code = '1'\nstdot = 'x'", "unknown key 'stdot'"),
        (HEAD + "[[case.step]]\ncode = '1'\nname = 'x'", "unknown key 'name'"),
        (HEAD + "[[case.step]]\ncode = '1'\n[[case.stop]]", "unknown key 'stop'"),
        ("colour = 1\n" + HEAD + "code = '1'", "unknown key 'colour'"),
        (HEAD, "has no code"),
        ("[[case]]\nname = 'a'\ncode = '1'", "says by no `spec`"),
        ("[[case]]\nspec = 'a'\ncode = '1'", "has no name"),
        ("spec = 's'", "holds no [[case]]"),
        (HEAD + "code = 1", "text is a string"),
        (HEAD + "code = [{times = 2, txt = 'a'}]", "unknown key 'txt'"),
        (HEAD + "code.python = '1'\ncode.ruby = '1'", "code by language has"),
        (HEAD + "code = '1'\nexit_code = 'one'", "exit_code is"),
        (HEAD + "code = '1'\nexit_code = true", "exit_code is"),
        (HEAD + "code = '1'\ntimed_out = 'maybe'", "timed_out is"),
        (HEAD + "code = '1'\nstdout_like = '('", "stdout_like"),
        (HEAD + "code = '1'\nstdout = 'a'\nstdout_has = 'a'", "has an exact stdout"),
        (HEAD + "code = '1'\nprobe = 'no'", "probe is one of"),
        (HEAD + "code = '1'\nlanguage = 'ruby'", "language 'ruby'"),
        (HEAD + "code = '1'\nneeds = 'root'", "needs ['root']"),
        (HEAD + "code = '1'\ntimeout_s = '1'", "wrong type"),
        (HEAD + "code = '1'\ndisplays = 'x'", "displays is"),
        (HEAD + "code = '1", "Expected"),
    ],
)
def test_a_mistake_in_a_file_is_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CaseError) as error:
        list(load_file(write(tmp_path, text)))
    assert says in str(error.value)
    assert "some.toml" in str(error.value)


def test_what_toml_cannot_hold(tmp_path: Path) -> None:
    case = only(tmp_path, HEAD + "code = ['a', {char = 0}, {text = 'xy', times = 3}, 'b']")
    assert case.steps[0].code == "a\0xyxyxyb"
    case = only(tmp_path, HEAD + "code = [{char = 0xD800}, {char = 10, times = 2}]")
    assert case.steps[0].code == "\ud800\n\n"


def test_a_case_for_any_language(tmp_path: Path) -> None:
    text = HEAD + "code.python = 'p'\ncode.bash = 'b'\nstdout.python = '1'\nstdout.bash = '2'"
    found = {case.language: case.steps[0] for case in load_file(write(tmp_path, text, "any"))}
    assert {language: (s.code, s.stdout) for language, s in found.items()} == {
        "python": ("p", "1"),
        "bash": ("b", "2"),
    }
    every = list(load_file(write(tmp_path, HEAD + "code = ''", "any")))
    assert [case.language for case in every] == ["python", "bash", "node"]


def test_two_cases_of_one_name(tmp_path: Path) -> None:
    write(tmp_path, (HEAD + "code = ''\n") * 2)
    with pytest.raises(CaseError, match="same name"):
        load_all(tmp_path)


def test_a_file_in_no_folder_of_the_suite(tmp_path: Path) -> None:
    write(tmp_path, HEAD + "code = ''", "ruby")
    with pytest.raises(CaseError, match="none of the folders"):
        load_all(tmp_path)


RIGHT = Answer(
    exit_code=0, displays=[], truncated={}, timed_out=False, interrupted=False, restarted=False
)


@pytest.mark.parametrize(
    ("step", "answer", "says"),
    [
        (Step(code=""), replace(RIGHT, stdout="x"), "stdout is 'x', expected ''"),
        (Step(code=""), replace(RIGHT, stderr="x"), "stderr is 'x'"),
        (Step(code=""), replace(RIGHT, exit_code=1), "exit code 1, expected 0"),
        (Step(code="", exit_code=(1, 2)), RIGHT, "exit code 0, expected 1 or 2"),
        (Step(code=""), replace(RIGHT, timed_out=True), "timed_out is True"),
        (Step(code="", interrupted=True), RIGHT, "interrupted is False"),
        (Step(code=""), replace(RIGHT, restarted=True, reason="r"), "restarted is True"),
        (Step(code="", restarted=True), replace(RIGHT, restarted=True), "no reason is given"),
        (
            Step(code="", restarted=True, reason_has="b"),
            replace(RIGHT, restarted=True, reason="a"),
            "has no 'b'",
        ),
        (Step(code="", stdout=None, stdout_has=("a",)), RIGHT, "has no 'a'"),
        (
            Step(code="", stdout=None, stdout_lacks=("a",)),
            replace(RIGHT, stdout="cat"),
            "which it must not",
        ),
        (Step(code="", stdout=None, stdout_like=("^a$",)), RIGHT, "does not match"),
        (Step(code="", displays=({"text/plain": "1"},)), RIGHT, "0 displays"),
        (
            Step(code="", displays=({"text/plain": "1"},)),
            replace(RIGHT, displays=[{"text/plain": "2"}]),
            "expected '1'",
        ),
        (
            Step(code="", displays=({"image/png": True},)),
            replace(RIGHT, displays=[{"text/plain": "2"}]),
            "has no image/png",
        ),
        (Step(code=""), replace(RIGHT, displays=[{"text/plain": "2"}]), "1 displays"),
        (Step(code="", truncated=("stdout",)), RIGHT, "is not truncated"),
        (Step(code=""), replace(RIGHT, truncated={"stdout": "f"}), "is left out"),
        (
            Step(code="", truncated=("stdout",)),
            replace(RIGHT, truncated={"stdout": None}),
            "no file is named",
        ),
        (Step(code="", refused=True), RIGHT, "was not refused"),
        (Step(code=""), Answer(refused="no"), "refused: no"),
        (Step(code=""), Answer(ended="gone"), "session ended: gone"),
        (Step(code="", stdout="a"), Answer(text="b", stdout="b"), "expected 'a'"),
        (Step(code="", displays=({"text/plain": "1"},)), Answer(text="2"), "has no display"),
        (Step(code="", stdout="x", displays=None), Answer(text="2"), "has no stdout"),
    ],
)
def test_a_wrong_answer_is_told(step: Step, answer: Answer, says: str) -> None:
    assert any(says in problem for problem in problems(step, answer))


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (Step(code=""), RIGHT),
        (Step(code=""), Answer()),
        (Step(code=""), Answer(text="(no output)\n")),
        (Step(code="", stdout="a"), Answer(text="a\n[exit code 0]", stdout="a\n")),
        (Step(code="", stdout="a"), Answer(text="[...]", cut=frozenset({"stdout"}))),
        (Step(code="", stdout="1\n", displays=({"text/plain": "2"},)), Answer(text="1\n2\n")),
        (Step(code="", stdout=None, stdout_like=("^a.c$",)), replace(RIGHT, stdout="a\nc")),
        (Step(code="", exit_code=None), replace(RIGHT, exit_code=77)),
        (Step(code="", restarted="either"), replace(RIGHT, restarted=True, reason="r")),
        (Step(code="", refused="either"), Answer(refused="why")),
        (Step(code="", may_end=True), Answer(ended="why")),
        (Step(code="", displays=None), replace(RIGHT, displays=[{}])),
        (
            Step(code="", displays=({"text/plain": "1", "image/png": True},)),
            replace(RIGHT, displays=[{"text/plain": "1", "image/png": "AAAA"}]),
        ),
    ],
)
def test_a_right_answer_is_right(step: Step, answer: Answer) -> None:
    assert problems(step, answer) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("(no output)\n", ("", "")),
        ("a\n", ("a\n", "")),
        ("a\n[session 'x' is new]", ("a\n", "")),
        ("a\n--- stderr ---\nb\n[exit code 1]", ("a\n", "b\n")),
        (
            "--- stderr ---\nb\n[session 'x' is new]\n[timed out after 1 s; exit code 1]",
            ("", "b\n"),
        ),
        ("[exit code 1]", ("", "")),
        ("[1, 2]", ("[1, 2]", "")),
    ],
)
def test_the_text_of_mcp_in_parts(text: str, parts: tuple[str, str]) -> None:
    assert parts_of(text) == parts


class Liar:
    """A target whose session has one fault."""

    name = "liar"

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._said = [""]
        self._state = ""

    def lacks(self, case: Case) -> str:
        return ""

    @contextmanager
    def session(self, case: Case) -> Generator[Session]:
        yield self

    def run(self, step: Step, language: Language) -> Answer:
        right = ""
        if "nsm_state}" in step.code:
            right = step.code.partition("f'")[2].partition(" ")[0] + f" {self._state}\n"
        elif "nsm_state" in step.code:
            self._state = step.code.split("'")[1]
        self._said.append(right)
        if self._fault == "stale":
            return replace(RIGHT, stdout=self._said[-2])
        if self._fault == "forgetful" and right:
            return replace(RIGHT, stdout=right.split()[0] + " other\n")
        if self._fault == "silent" and right:
            raise LostAnswerError("no answer in time")
        if self._fault == "restarting" and right:
            return replace(RIGHT, stdout=right, restarted=True, reason="r")
        return replace(RIGHT, stdout=right)


@pytest.mark.parametrize("fault", ["stale", "forgetful", "silent", "restarting"])
def test_the_probe_finds_what_the_answer_itself_hides(tmp_path: Path, fault: str) -> None:
    case = only(tmp_path, HEAD + "code = 'pass'")
    assert run_case(case, Liar("none")).status == "passed"
    report = run_case(case, Liar(fault))
    assert report.status == "failed", report
    assert "the next execution" in report.problems[0]


OLD_AGENT = """
import contextlib, io, sys
sys.path.insert(0, sys.argv[1])
from sandbox.framing import MessageReader, encode_frame
import os
reader, state = MessageReader(), {}
os.write(1, encode_frame({"type": "ready", "protocol": 1, "interpreters": ["python"]}))
while True:
    while (frame := reader.next_message()) is None:
        data = os.read(0, 65536)
        if not data:
            sys.exit()
        reader.receive_data(data)
    out, code = os.pipe(), 0
    kept = os.dup(1)
    os.dup2(out[1], 1)
    try:
        exec(frame["code"], state)
    except Exception:
        code = 1
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(out[1])
    text = open(out[0], "rb").read().decode()
    os.close(kept)
    answer = {"type": "result", "id": frame["id"], "stdout": text, "stderr": "", "exit_code": code}
    os.write(1, encode_frame(answer))
"""


def test_an_agent_that_knows_the_base_exchange_only(tmp_path: Path) -> None:
    """The target is judged by what it can do: the rest is not applicable."""
    (tmp_path / "old.py").write_text(OLD_AGENT)
    directory = Path(sandbox_agent.__file__).parent
    target = any_agent(f"{sys.executable} {tmp_path}/old.py {directory}")
    cases = {
        "passed": "code = 'print(1)'\nstdout = \"1\\n\"",
        "failed": "code = 'raise SystemError'\nexit_code = 2",
        "not applicable": "code = '1'\ndisplays = ['1']",
    }
    for status, text in cases.items():
        report = run_case(only(tmp_path, HEAD + text), target)
        assert report.status == status, report
    bash = only(tmp_path, HEAD + "code = ':'", "bash")
    assert run_case(bash, target).note == "has no bash"


def test_an_agent_that_tells_less_than_it_says(tmp_path: Path) -> None:
    """A flag that is not there must not pass for one that is right."""
    promise = OLD_AGENT.replace('"ready",', '"ready", "capabilities": ["execute.result"],')
    (tmp_path / "less.py").write_text(promise)
    directory = Path(sandbox_agent.__file__).parent
    target = any_agent(f"{sys.executable} {tmp_path}/less.py {directory}")
    report = run_case(only(tmp_path, HEAD + "code = 'pass'"), target)
    assert report.status == "failed"
    assert "the result has no displays, truncated, timed_out" in report.problems[0]


def test_an_agent_that_ends(tmp_path: Path) -> None:
    with pytest.raises(LostAnswerError, match="the agent ended; its log: 'why"):
        any_agent("/bin/sh -c 'echo why >&2'")


def test_a_case_about_a_module_that_is_not_installed(tmp_path: Path) -> None:
    text = "code = 'import {0}'\nmodules = ['json', '{0}']"
    target = own_agent()
    here = run_case(only(tmp_path, HEAD + text.format("xml")), target)
    assert here.status == "passed", here
    assert run_case(only(tmp_path, HEAD + text.format("no_such")), target).note == (
        "has no module no_such"
    )


RUN = Path(program.__file__).with_name("run.py")


def test_the_program(tmp_path: Path) -> None:
    write(tmp_path, HEAD + "code = '1'\ndisplays = ['2']\n[[case]]\nname='b'\nspec='s'\ncode=''")
    done = subprocess.run(
        [sys.executable, RUN, "--cases", str(tmp_path), "--json", tmp_path / "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "| python/some | python   |     2 |      1 |      1 |              0 |" in done.stdout
    assert "display 1 as text/plain is '1', expected '2'" in done.stdout
    found = json.loads((tmp_path / "json").read_text())
    assert {each["name"]: each["status"] for each in found} == {"a": "failed", "b": "passed"}


def test_the_program_with_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--agent", "/nonexistent"]) == 2
    assert "/nonexistent" in capsys.readouterr().err


def test_a_table_of_no_cases() -> None:
    assert table([]).splitlines()[-1].split() == "| all | | 0 | 0 | 0 | 0 |".split()
    assert as_values([]) == []
