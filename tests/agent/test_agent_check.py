"""Checks of whether code is complete, which a prompt makes when Enter is pressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent_process import PYTHON, AgentProcess, Interpreter, becomes_true, direct_agent
from realjail import needs_bwrap

jail = pytest.mark.jail

PYTHON_CASES: dict[str, str] = {
    "": "complete",
    "   ": "complete",
    "# only this": "complete",
    "x = 1": "complete",
    "x = 1; y = 2": "complete",
    "x = 1\ny = 2": "complete",
    "\ufeffx = 1": "complete",
    "x = 1\r\n": "complete",
    "await f()": "complete",
    "async with a as b: pass\n": "complete",
    "foo(1,\n    2)": "complete",
    "'''a\nb'''": "complete",
    "for x in y:\n    pass\n": "complete",
    "for x in y:\n    pass\n    ": "complete",
    "if a:\n    b\nelse:\n    c\n\n": "complete",
    "for x in y:": "incomplete",
    "for x in y:\n    pass": "incomplete",
    "if a: b": "incomplete",
    "def f():\n    # to do": "incomplete",
    "class A:\n    x = 1\n\n    def f(self):\n        pass": "incomplete",
    "@decorator": "incomplete",
    "try:\n    pass\n": "incomplete",
    "foo(": "incomplete",
    "[1,\n 2": "incomplete",
    "{": "incomplete",
    "'''a": "incomplete",
    "x = \\": "incomplete",
    "print('''\n": "incomplete",
    "f'''{a": "incomplete",
    "'a": "invalid",
    "a b": "invalid",
    "x =": "invalid",
    ")": "invalid",
    "[)": "invalid",
    "  x": "invalid",
    "x\n  y": "invalid",
    "return 1": "invalid",
    "else": "invalid",
    "for x in y:\nz": "invalid",
    "x = 1\0": "invalid",
    "if a:\n    b\n  c": "invalid",
}
BASH_CASES: dict[str, str] = {
    "": "complete",
    "echo a; echo b": "complete",
    "# only this": "complete",
    "# ends in \\": "complete",
    "if a; then b; fi": "complete",
    "cat <<E\na\nE": "complete",
    "echo 'a\nb'": "complete",
    "echo a\\\\": "complete",
    "echo !(a)": "complete",
    "f() { :; }": "complete",
    "if a": "incomplete",
    "if a; then": "incomplete",
    "while read x; do": "incomplete",
    "case a in": "incomplete",
    "f() {": "incomplete",
    "a |": "incomplete",
    "a &&": "incomplete",
    "(a": "incomplete",
    "[[ a &&": "incomplete",
    "echo 'a": "incomplete",
    'echo "a': "incomplete",
    "echo $(a": "incomplete",
    "echo ${a": "incomplete",
    "echo `a": "incomplete",
    "a=(": "incomplete",
    "cat <<E": "incomplete",
    "x=$(cat <<E": "incomplete",
    "echo a \\": "incomplete",
    "fi": "invalid",
    "}": "invalid",
    ")": "invalid",
    "a ;;": "invalid",
    "fi # syntax error: unexpected end of file": "invalid",
    "fi\nbash: line 1: syntax error: unexpected end of file": "invalid",
}
NODE_CASES: dict[str, str] = {
    "": "complete",
    "1": "complete",
    "let a = 1; let b": "complete",
    "// only this": "complete",
    "{ a: 1 }": "complete",
    "{ a: 1, b: 2 }": "complete",
    "{ a: 1, b: { c: 2 } }": "complete",
    "await f()": "complete",
    "for await (const a of b) {}": "complete",
    "`a${b}`": "complete",
    "import('x')": "complete",
    "class A { b = 1 }": "complete",
    "/[/]/.test(a)": "complete",
    "{": "incomplete",
    "{ a: 1, b: {": "incomplete",
    "{ a: 1,": "incomplete",
    "foo(": "incomplete",
    "foo(1": "incomplete",
    "foo(1,": "incomplete",
    "[1,": "incomplete",
    "a +": "incomplete",
    "a.": "incomplete",
    "let x =": "incomplete",
    "if (a)": "incomplete",
    "if (a) {": "incomplete",
    "try {}": "incomplete",
    "x => {": "incomplete",
    "async () => { await a": "incomplete",
    "await f(": "incomplete",
    "for await (const a of b) {": "incomplete",
    "`a": "incomplete",
    "`a${b": "incomplete",
    "`a${": "incomplete",
    "`a${b}": "incomplete",
    "`a${`b": "incomplete",
    "/* a": "incomplete",
    "1\n/* a\n": "incomplete",
    "'a\\": "incomplete",
    "'a\\\n": "incomplete",
    "'a": "invalid",
    '"a': "invalid",
    "/a": "invalid",
    "a b": "invalid",
    "foo(1 2": "invalid",
    "}": "invalid",
    "[)": "invalid",
    "let a; let a": "invalid",
    "return": "invalid",
    "import a from 'b'": "invalid",
    "0x": "invalid",
    "await )": "invalid",
}


def check(
    agent: AgentProcess, code: str, interpreter: Interpreter = "python", **options: Any
) -> Mapping[str, Any]:
    """The answer to one check; other frames may come before it."""
    agent.send(type="check", id="c", interpreter=interpreter, code=code, **options)
    return agent.expect("checked")


def judged(
    agent: AgentProcess, code: str, interpreter: Interpreter = "python"
) -> Mapping[str, Any]:
    """Ask like `check`, until there was time for an answer."""
    frame: Mapping[str, Any] = {}

    def is_known() -> bool:
        nonlocal frame
        frame = check(agent, code, interpreter)
        return bool(frame["status"] != "unknown")

    becomes_true(is_known, "an answer within its time")
    return frame


def test_the_capability_is_told(shared: AgentProcess) -> None:
    assert "check" in shared.ready["capabilities"]


@pytest.mark.parametrize("code", PYTHON_CASES)
def test_python(shared: AgentProcess, code: str) -> None:
    frame = judged(shared, code)
    assert (frame["id"], frame["status"]) == ("c", PYTHON_CASES[code])


def test_python_of_its_own_version(shared: AgentProcess) -> None:
    version = tuple(map(int, shared.ready["python"].split(".")))
    assert judged(shared, "match x:")["status"] == (
        "incomplete" if version >= (3, 10) else "invalid"
    )


@pytest.mark.parametrize("code", BASH_CASES)
def test_bash(shared: AgentProcess, code: str) -> None:
    assert judged(shared, code, "bash")["status"] == BASH_CASES[code]


@pytest.mark.node
@pytest.mark.parametrize("code", NODE_CASES)
def test_node(shared: AgentProcess, code: str) -> None:
    shared.node("")
    assert judged(shared, code, "node")["status"] == NODE_CASES[code]


@pytest.mark.parametrize(
    ("interpreter", "code", "indent"),
    [
        ("python", "for x in y:", "    "),
        ("python", "for x in y:  # each", "    "),
        ("python", "if a:\n  if b:", "    "),
        ("python", "if a:\n  b\n  if c:", "    "),
        ("python", "if a:\n\tif b:", "\t\t"),
        ("python", "def f():\n    x = 1", "    "),
        ("python", "def f():\n    if a:\n        return 1", "    "),
        ("python", "def f():\n    return 1", ""),
        ("python", "foo(\n", "    "),
        ("python", "foo(a,", ""),
        ("python", "x = '''\n    a:", ""),
        ("python", "x = 1", ""),
        ("python", "  x", ""),
        ("bash", "while read x; do", "    "),
        ("bash", "if a; then\n  b", "  "),
        ("bash", "echo 'a (", ""),
        ("bash", "cat <<E\n  a", ""),
        ("node", "if (a) {", "    "),
        ("node", "if (a) {\n  if (b) {", "    "),
        ("node", "const a = `\n  {", ""),
    ],
)
def test_the_next_lines_indentation(
    shared: AgentProcess, interpreter: Interpreter, code: str, indent: str
) -> None:
    if interpreter == "node":
        if "node" not in shared.ready["interpreters"]:
            pytest.skip("node is missing")
        shared.node("")
    assert judged(shared, code, interpreter)["indent"] == indent


def test_nothing_is_run(agent: AgentProcess) -> None:
    cases: list[tuple[Interpreter, str]] = [
        ("python", "open('run', 'w')"),
        ("bash", '> run; echo $(> run) "`> run`" $(( $(> run) ))'),
        ("node", "require('fs').writeFileSync('run', '')"),
    ]
    for interpreter, code in cases:
        if interpreter in agent.ready["interpreters"]:
            agent.run("", interpreter)
            assert judged(agent, code, interpreter)["status"] == "complete"
    assert not (agent.workspace / "run").exists()


def test_the_environment_changes_nothing(agent: AgentProcess) -> None:
    (agent.workspace / "startup").write_text(f"> {agent.workspace}/run\n")
    agent.bash(f"export BASH_ENV={agent.workspace}/startup; shopt -s extglob; alias fi=if")
    assert judged(agent, "echo", "bash")["status"] == "complete"
    assert not (agent.workspace / "run").exists()


def test_checks_while_code_runs(agent: AgentProcess) -> None:
    cases: list[tuple[Interpreter, str, str, str]] = [
        ("python", "print('on', flush=True)\nwhile True: pass", "foo(", "incomplete"),
        ("bash", "echo on; while :; do :; done", "if a", "incomplete"),
        ("node", "console.log('on'); while (true) {}", "foo(", "incomplete"),
    ]
    for interpreter, code, question, status in cases:
        if interpreter not in agent.ready["interpreters"]:
            continue
        seen = len(agent.seen)
        request = agent.begin(code, interpreter, stream=True)
        while not any(frame["type"] == "output" for frame in agent.seen[seen:]):
            agent.receive()
        assert judged(agent, question, interpreter)["status"] == status
        agent.send(type="interrupt", id=request)
        assert agent.result(request).interrupted


def test_an_interpreter_is_not_started_for_it(agent: AgentProcess) -> None:
    assert judged(agent, "x")["status"] == "complete"
    assert judged(agent, "x", "bash")["status"] == "complete"
    if "node" in agent.ready["interpreters"]:
        assert check(agent, "x", "node")["status"] == "unknown"
    agent.send(type="status")
    assert agent.expect("status")["background"] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"interpreter": "python"}, "code"),
        ({"interpreter": "python", "code": 3}, "code"),
        ({"interpreter": "ruby", "code": "x"}, "ruby"),
        ({"code": "x"}, "None"),
        ({"interpreter": ["python"], "code": "x"}, "python"),
    ],
)
def test_questions_that_are_none(shared: AgentProcess, fields: dict[str, Any], words: str) -> None:
    shared.send(type="check", id="c", **fields)
    frame = shared.expect("error")
    assert frame["id"] == "c"
    assert words in frame["message"]
    shared.send(type="check", code="x", interpreter="python")
    assert "needs an id" in shared.expect("error")["message"]


DEEP = {
    "brackets": "(" * 30_000,
    "pairs": "[" * 20_000 + "]" * 20_000,
    "signs": "-" * 60_000 + "1",
    "sum": "1+" * 30_000 + "1",
    "attributes": "a" + ".a" * 30_000,
    "calls": "a" + "()" * 30_000,
    "nots": "not " * 15_000 + "a",
    "lambdas": "lambda:" * 9_000 + "a",
    "choices": "a if b else " * 5_000 + "a",
    "elifs": "if a: b\n" + "elif a: b\n" * 6_000,
    "blocks": "".join(" " * i + "if a:\n" for i in range(300)),
    "f-strings": "f'{" * 20_000,
    "groups": "{ " * 30_000,
    "substitutions": "$(" * 30_000,
    "functions": "() => " * 10_000 + "1",
    "templates": "`${" * 20_000,
    "long": "x = 1\n" * 10_000,
    "surrogates": "\ud800" * 1000,
    "huge": "x" * 8 * 1024 * 1024,
}


@pytest.mark.parametrize("interpreter", ["python", "bash", "node"])
@pytest.mark.parametrize("name", DEEP)
def test_deep_and_long_texts(shared: AgentProcess, interpreter: Interpreter, name: str) -> None:
    if interpreter not in shared.ready["interpreters"]:
        pytest.skip("node is missing")
    shared.run(
        {"python": "kept = 1", "bash": "kept=1", "node": "var kept = 1"}[interpreter], interpreter
    )
    frame = check(shared, DEEP[name], interpreter)
    assert frame["status"] in {"complete", "incomplete", "invalid", "unknown"}
    if name == "huge":
        assert frame["status"] == "unknown"
    code = {"python": "print(kept)", "bash": "echo $kept", "node": "console.log(kept)"}
    assert shared.run(code[interpreter], interpreter).stdout == "1\n"


def test_many_at_once(agent: AgentProcess) -> None:
    for number in range(40):
        agent.send(type="check", id=f"c{number}", interpreter="python", code="foo(")
    frames = [agent.expect("checked") for _ in range(40)]
    assert {frame["id"] for frame in frames} == {f"c{number}" for number in range(40)}
    statuses = [frame["status"] for frame in frames]
    assert set(statuses) <= {"incomplete", "unknown"}
    assert statuses.count("incomplete") >= 4
    assert judged(agent, "foo(")["status"] == "incomplete"


def test_another_python_is_asked_itself(agent: AgentProcess) -> None:
    """The environment's Python may be another than the one that runs the agent."""
    other = agent.workspace / "python"
    other.write_text(f'#!/bin/sh\necho asked >> {agent.workspace}/asked\nexec {PYTHON} "$@"\n')
    other.chmod(0o755)
    with direct_agent(agent.workspace, "--python", str(other)) as second:
        assert judged(second, "for x in y:")["status"] == "incomplete"
        # Once, or more often where it was too slow to answer.
        assert (agent.workspace / "asked").read_text().startswith("asked\n")
        other.write_text("#!/bin/sh\nexec sleep 600\n")
        assert check(second, "for x in y:")["status"] == "unknown"
        other.write_text("#!/bin/sh\nyes complete\n")
        assert check(second, "for x in y:")["status"] == "unknown"
        other.unlink()
        assert check(second, "for x in y:")["status"] == "unknown"


# Against code that means harm.


@jail
@needs_bwrap
def test_everybody_is_killed_meanwhile(jailed: AgentProcess) -> None:
    jailed.send(type="hello", limits={"processes": 200})
    request = jailed.begin(
        "import os, time\nwhile True:\n  try: os.kill(-1, 9)\n  except OSError: pass",
        stream=True,
        timeout_s=1,
        grace_s=0.2,
    )
    before = len(jailed.seen)
    statuses = {check(jailed, "if a", "bash")["status"] for _ in range(30)}
    assert statuses <= {"incomplete", "unknown"}
    results = [frame for frame in jailed.seen[before:] if frame["type"] == "result"]
    result = results[0] if results else jailed.expect("result")
    assert (result["id"], result["timed_out"]) == (request, True)
    assert judged(jailed, "if a", "bash")["status"] == "incomplete"


@jail
@needs_bwrap
def test_no_processes_are_left(jailed: AgentProcess) -> None:
    jailed.python("")
    for code in ("foo(", "1"):
        assert judged(jailed, code)["status"] in {"incomplete", "complete"}
    code = (
        "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()), os.getpid())"
    )
    found = jailed.python(code).stdout.strip()
    assert found.partition("] ")[0] == f"[1, {found.partition('] ')[2]}"
