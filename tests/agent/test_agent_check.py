"""Checks of whether code is complete, which a prompt makes when Enter is pressed: Node's part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent_process import AgentProcess, Interpreter, becomes_true

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
    agent: AgentProcess, code: str, interpreter: Interpreter = "node", **options: Any
) -> Mapping[str, Any]:
    """The answer to one check; other frames may come before it."""
    agent.send(type="check", id="c", interpreter=interpreter, code=code, **options)
    return agent.expect("checked")


def judged(agent: AgentProcess, code: str, interpreter: Interpreter = "node") -> Mapping[str, Any]:
    """Ask like `check`, until there was time for an answer."""
    frame: Mapping[str, Any] = {}

    def is_known() -> bool:
        nonlocal frame
        frame = check(agent, code, interpreter)
        return bool(frame["status"] != "unknown")

    becomes_true(is_known, "an answer within its time")
    return frame


@pytest.mark.node
@pytest.mark.parametrize("code", NODE_CASES)
def test_node(shared: AgentProcess, code: str) -> None:
    shared.node("")
    assert judged(shared, code, "node")["status"] == NODE_CASES[code]


@pytest.mark.node
def test_nothing_is_run(agent: AgentProcess) -> None:
    agent.node("")
    assert judged(agent, "require('fs').writeFileSync('run', '')")["status"] == "complete"
    assert not (agent.workspace / "run").exists()


@pytest.mark.node
def test_checks_while_code_runs(agent: AgentProcess) -> None:
    request = agent.begin("console.log('on'); while (true) {}", "node", stream=True)
    while not any(frame["type"] == "output" for frame in agent.seen):
        agent.receive()
    assert judged(agent, "foo(")["status"] == "incomplete"
    agent.send(type="interrupt", id=request)
    assert agent.result(request).interrupted


def test_python_and_bash_are_unknown(shared: AgentProcess) -> None:
    """A prompt parses Python and Bash itself."""
    for interpreter in ("python", "bash"):
        assert check(shared, "x", interpreter)["status"] == "unknown"


@pytest.mark.node
def test_an_interpreter_is_not_started_for_it(agent: AgentProcess) -> None:
    assert check(agent, "x")["status"] == "unknown"
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


@pytest.mark.node
@pytest.mark.parametrize("name", DEEP)
def test_deep_and_long_texts(shared: AgentProcess, name: str) -> None:
    shared.node("var kept = 1")
    frame = check(shared, DEEP[name])
    assert frame["status"] in {"complete", "incomplete", "invalid", "unknown"}
    if name == "huge":
        assert frame["status"] == "unknown"
    assert shared.node("console.log(kept)").stdout == "1\n"
