"""The harness itself: what it takes for a case, and that wrong answers do fail."""

from __future__ import annotations

import json
import shlex
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
from conformance.cases import Case, CaseError, Language, Step, load_file
from conformance.judge import Answer, problems
from conformance.targets import LostAnswerError, Session, any_agent, own_agent


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
        (HEAD, "has no code"),
        ("[[case]]\nname = 'a'\ncode = '1'", "says by no `spec`"),
        (HEAD + "code.python = '1'\ncode.ruby = '1'", "code by language has"),
        (HEAD + "code = '1'\nexit_code = 'one'", "exit_code is"),
        (HEAD + "code = '1'\nstdout_like = '('", "stdout_like"),
        (HEAD + "code = '1'\nstdout = 'a'\nstdout_has = 'a'", "has an exact stdout"),
        (HEAD + "code = '1", "Expected"),
    ],
)
def test_a_mistake_in_a_file_is_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CaseError) as error:
        list(load_file(write(tmp_path, text)))
    assert says in str(error.value)
    assert "some.toml" in str(error.value)


RIGHT = Answer(
    exit_code=0, displays=[], truncated={}, timed_out=False, interrupted=False, restarted=False
)


@pytest.mark.parametrize(
    ("step", "answer", "says"),
    [
        (Step(code=""), replace(RIGHT, stdout="x"), "stdout is 'x', expected ''"),
        (Step(code=""), replace(RIGHT, exit_code=1), "exit code 1, expected 0"),
        (Step(code=""), replace(RIGHT, timed_out=True), "timed_out is True"),
        (Step(code="", interrupted=True), RIGHT, "interrupted is False"),
        (Step(code="", restarted=True), replace(RIGHT, restarted=True), "no reason is given"),
        (Step(code="", stdout=None, stdout_has=("a",)), RIGHT, "has no 'a'"),
        (Step(code="", stdout=None, stdout_like=("^a$",)), RIGHT, "does not match"),
        (Step(code="", displays=({"text/plain": "1"},)), RIGHT, "0 displays"),
        (Step(code="", truncated=("stdout",)), RIGHT, "is not truncated"),
        (Step(code="", refused=True), RIGHT, "was not refused"),
        (Step(code=""), Answer(refused="no"), "refused: no"),
        (Step(code=""), Answer(ended="gone"), "session ended: gone"),
        (Step(code="", stdout="a"), Answer(text="b", stdout="b"), "expected 'a'"),
    ],
)
def test_a_wrong_answer_is_told(step: Step, answer: Answer, says: str) -> None:
    assert any(says in problem for problem in problems(step, answer))


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
    target = any_agent(shlex.join([sys.executable, f"{tmp_path}/old.py", str(directory)]))
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
    target = any_agent(shlex.join([sys.executable, f"{tmp_path}/less.py", str(directory)]))
    report = run_case(only(tmp_path, HEAD + "code = 'pass'"), target)
    assert report.status == "failed"
    assert "the result has no displays, truncated, timed_out" in report.problems[0]


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
