"""Node code that the conformance cases do not tell: one-shots, notes, declarations of any kind
in place of any other, modules, stacks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agent_process import AgentProcess, Reply, jailed_agent
from realjail import BWRAP
from selection import one_in


def test_an_exit_that_is_interrupted_is_still_an_exit(agent: AgentProcess) -> None:
    """An endless handler holds the exit up; ended, it must not leave a runner that can't run."""
    code = "process.on('exit', () => { for (;;); }); process.exit(0)"
    agent.node("'up'")  # else the limit may come before the code has begun
    held = agent.node(code, timeout_s=1)
    assert held.exit_code == 124
    later = agent.node("console.log('fresh')", timeout_s=10)
    assert (later.exit_code, later.stdout) == (0, "fresh\n")
    assert held.interpreter_restarted or later.interpreter_restarted


def test_standard_output_blocks_as_in_plain_node(agent: AgentProcess) -> None:
    """Non-blocking, a flood of `fs.writeSync(1, ...)` would end with EAGAIN."""
    reply = agent.node(
        "const flags = require('fs').readFileSync('/proc/self/fdinfo/1', 'utf8');"
        r"(parseInt(/flags:\s+(\d+)/.exec(flags)[1], 8) & 0o4000) === 0"
    )
    assert reply.shown == ["true"]


ONE_SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    # name: code, and what is not as usual: no output, exit code 0, "0" displayed
    "an async function": (
        "async function f() { await new Promise((r) => setTimeout(r)); console.log('done') }; f()",
        {"stdout": "done\n", "shown": []},
    ),
    "a timer": ("setTimeout(() => console.log('done'), 20); 0", {"stdout": "done\n"}),
    "a file's callback": (
        "require('fs').readFile('/proc/self/stat', () => console.log('done')); 0",
        {"stdout": "done\n"},
    ),
    "a child's callback": (
        "require('child_process').exec('echo done', (_, out) => process.stdout.write(out)); 0",
        {"stdout": "done\n"},
    ),
    "a worker": (
        "new (require('worker_threads').Worker)('console.log(`done`)', { eval: true }); 0",
        {"stdout": "done\n"},
    ),
    "beforeExit and exit": (
        (
            "process.once('beforeExit', () => setTimeout(() => console.log('more'), 5));"
            "process.on('exit', (code) => console.log('exit', code)); 0"
        ),
        {"stdout": "more\nexit 0\n"},
    ),
    "an error in a timer ends it": (
        (
            "setTimeout(() => { throw new Error('late') }, 20);"
            "setTimeout(() => console.log('never'), 60000); 0"
        ),
        {"exit_code": 1, "stderr": "Uncaught Error: late\n"},
    ),
    "a late rejection ends it": (
        "setTimeout(() => Promise.reject(5), 20); setInterval(() => {}, 1000); 0",
        {"exit_code": 1, "stderr": "Uncaught 5\n"},
    ),
    "an error ends it at once": (
        "setTimeout(() => console.log('never'), 60000); throw 5",
        {"exit_code": 1, "stderr": "Uncaught 5\n", "shown": []},
    ),
    "an error that code listens for": (
        (
            "process.on('uncaughtException', (e, from) => console.log('caught', e, from));"
            "setTimeout(() => console.log('done'), 20); throw 5"
        ),
        {"stdout": "caught 5 uncaughtException\ndone\n", "shown": []},
    ),
    "a rejection that code listens for": (
        (
            "process.on('uncaughtException', (e, from) => console.log('caught', e, from));"
            "Promise.reject(5); 0"
        ),
        {"stdout": "caught 5 unhandledRejection\n"},
    ),
    "process.exit": ("setTimeout(() => process.exit(7), 5); 0", {"exit_code": 7}),
    "process.exitCode": ("process.exitCode = 4; 0", {"exit_code": 4}),
    "process.exitCode at exit": (
        "process.on('exit', () => { process.exitCode = 9 }); 0",
        {"exit_code": 9},
    ),
    "an await that nothing settles": (
        "await new Promise(() => {})",
        {"exit_code": 13, "stderr": "Warning: Detected unsettled top-level await\n", "shown": []},
    ),
    "a promise that nothing settles": (
        "new Promise(() => {})",
        {"shown": ["Promise { <pending> }"]},
    ),
}


@pytest.mark.parametrize("name", one_in(4, ONE_SHOTS))
def test_a_one_shot_ends_as_a_program_does(agent: AgentProcess, name: str) -> None:
    code, unusual = ONE_SHOTS[name]
    reply = agent.node(code, one_shot=True)
    found = {
        "stdout": reply.stdout,
        "exit_code": reply.exit_code,
        "stderr": re.sub(r"    at .*\n", "", reply.stderr),
        "shown": reply.shown,
    }
    assert found == {"stdout": "", "exit_code": 0, "stderr": "", "shown": ["0"], **unusual}
    assert not reply.interpreter_restarted


@pytest.mark.parametrize(
    "code", ["setInterval(() => {}, 5); 0", "setTimeout(() => { for (;;); }, 5); 0", "for (;;);"]
)
def test_a_one_shot_that_does_not_end_is_stopped(agent: AgentProcess, code: str) -> None:
    agent.python("'up'")
    reply = agent.node(code, one_shot=True, timeout_s=1.5)
    assert (reply.timed_out, reply.exit_code, reply.stderr) == (True, 124, "")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("setTimeout(() => {}, 1)", "[Timeout]"),
        ("setImmediate(() => {})", "[Immediate]"),
        ("require('child_process').exec('true', () => {})", "[ChildProcess]"),
        ("require('net').createServer()", "[Server]"),
        ("class Own extends require('events') { seen = 5 }; new Own()", "seen: 5,"),
        ("new Proxy(setTimeout(() => {}, 1), {})", "Timeout {"),
    ],
)
@pytest.mark.parametrize("one_shot", one_in(2, [False, True]))
def test_handles_of_the_loop_are_shown_by_their_names(
    agent: AgentProcess, code: str, shown: str, one_shot: bool
) -> None:
    (found,) = agent.node(code, one_shot=one_shot).shown
    assert found == shown if shown.startswith("[") else shown in found


def notes(reply: Reply) -> list[str]:
    found: list[str] = reply.frame.get("notes", [])
    return found


def test_timers_and_children_under_way_are_counted_once(agent: AgentProcess) -> None:
    agent.node("1")
    code = "setTimeout(() => {}, 60000); setInterval(() => {}, 60000);"
    code += "require('child_process').exec('sleep 60'); 'value'"
    reply = agent.node(code)
    assert reply.shown == ["'value'"]
    (note,) = notes(reply)
    assert "2 timers" in note
    assert "1 child process" in note
    assert note.endswith("are still under way; their output comes with the next call")
    assert notes(agent.node("'ordinary'")) == []
    assert notes(agent.node("setTimeout(() => {}, 60000); 0")) == [
        "1 timer is still under way; its output comes with the next call"
    ]
    assert notes(agent.node("setTimeout(() => {}, 60000).unref(); 0")) == []


def test_errors_that_code_listens_for_are_not_told(agent: AgentProcess) -> None:
    code = "process.on('uncaughtException', (e) => console.log('caught', e)); setTimeout(() => {"
    reply = agent.node(code + "throw 5 }, 1); await new Promise((r) => setTimeout(r, 30))")
    assert (reply.stdout, reply.stderr, reply.exit_code) == ("caught 5\n", "", 0)
    # The execution's own error is its answer all the same.
    assert agent.node("throw 6").stderr == "Uncaught 6\n"


KINDS = {
    "const": "const it = {};",
    "let": "let it = {};",
    "var": "var it = {};",
    "several": "let other = 0, it = {};",
    "destructured const": "const { a: [it], ...rest } = { a: [{}] };",
    "destructured var": "var [it = 9] = [{}];",
    "function": "const early = it(); function it() { return {}; }",
    "async function": "async function it() { return {}; }",
    "generator": "function* it() { yield {}; }",
    "class": "class it { static value = {}; }",
    "import": "import * as it from 'data:text/javascript,export const value = {}';",
    "named import": "import { value as it } from 'data:text/javascript,export const value = {}';",
    "export": "export const it = {};",
    "loop": "for (var it = {}; false;);",
    "block": "if (true) { var it = {}; }",
}


@pytest.mark.parametrize("first", one_in(3, KINDS))
def test_any_declaration_may_replace_any_other(agent: AgentProcess, first: str) -> None:
    """After each `first` comes each other, and so the other way round, in one session."""
    for number, second in enumerate(KINDS):
        for step, kind in enumerate((first, second)):
            value = 2 * number + step
            code = KINDS[kind].replace("{}", str(value))
            reply = agent.node(code)
            assert (reply.exit_code, reply.stderr, reply.shown) == (0, "", []), (first, second)
            shown = agent.node(
                "typeof it === 'number' ? it : it.value ?? (await (it().next?.().value ?? it()))"
            )
            assert shown.shown == [str(value)], (first, second, shown)


CONSTANTS = ["const it = 1", "const { it } = { it: 1 }", "var it = 0", "function it() {}"]
ASSIGNMENTS = [
    "it = 2",
    "it += 1",
    "it++",
    "[it] = [2]",
    "({ it } = { it: 2 })",
    "({ a: it = 3 } = {})",
    "for (it of [2]);",
    "(() => { 'use strict'; it = 2; })()",
    "(function f(it2) { it = it2; })(2)",
]


@pytest.mark.parametrize("code", CONSTANTS)
def test_a_constant_stays_one_until_it_is_replaced(shared: AgentProcess, code: str) -> None:
    shared.node(code)
    shared.node("const it = 1")
    for assignment in ASSIGNMENTS:
        reply = shared.node(assignment)
        assert "TypeError: Assignment to constant variable.\n" in reply.stderr, assignment
        assert "TypeError" in shared.node("const it = 1; " + assignment).stderr, assignment
    assert shared.node("it").shown == ["1"]
    inner = "(function (it) { it++; { let it = 1; it++; } return it; })(5)"
    assert shared.node(inner).shown == ["6"]
    assert shared.node("let it = 1; it++; it").shown == ["2"]


ODD = {
    # code after `const odd = 1; function oddly() {}`: what is shown
    "`const odd = ${'let odd'}`; // const odd = 5": "'const odd = let odd'",
    "/let odd = 2; function odd/.source": "'let odd = 2; function odd'",
    "'let odd = 2; class odd {}'": "'let odd = 2; class odd {}'",
    "({ let: 1, const: 2, odd }).odd": "1",
    "{ odd: 3 }": "{ odd: 3 }",
    "(() => { let odd = 5; { const odd = 6; } return odd; })()": "5",
    "let odd = 1; odd": "1",
    "\ufefflet odd = 2; odd": "2",
    "#!/usr/bin/env node\nlet odd = 3; odd": "3",
    "const odd = 4\r\nlet oddly = 5\r\nodd + oddly": "9",
    "'use strict'\nlet oddly = 6\noddly": "6",
    "let\nodd\n=\n7\n;odd": "7",
    "let odd = 8, oddly = () => odd\n;[1].forEach(() => odd++); oddly()": "9",
    "odd: for (const odd of [1, 2]) { if (odd) continue odd; }\n10": "10",
    "for (const odd of [11]) odd": "11",
    "for await (const odd of [Promise.resolve(12)]) odd": "12",
    "let odd = await 13, oddly = await (async () => odd)(); oddly": "13",
    "class oddly { static #odd = 14; static odd = this.#odd; }\noddly.odd": "14",
    "const oddly = function () { return oddly.name; }; oddly()": "'oddly'",
    "var oddly = class { }; oddly.name": "'oddly'",
    "try { throw 15 } catch (odd) { odd++; odd }": "16",
    "1; let oddly = 17": "1",
    "var await_ = 1, let_ = 2; let of = 3; for (of of [18]); of": "18",
    "let async = 19; async": "19",
    "var oddly\nvar oddly = 20; oddly": "20",
    "oddly = 21; <!-- let odd\noddly": "21",
}


@pytest.mark.parametrize("before", ["const odd = 1; function oddly() {}", "let oddly; var odd = 1"])
def test_odd_declarations(agent: AgentProcess, before: str) -> None:
    for code, shown in ODD.items():
        assert agent.node(before).exit_code == 0
        reply = agent.node(code)
        assert (reply.shown, reply.stderr, reply.exit_code) == ([shown], "", 0), code


def test_redeclared_code_keeps_its_lines(shared: AgentProcess) -> None:
    shared.node("let thrower; function other() {}")
    code = "\n\nfunction thrower() {\n  throw new Error('x');\n}\nlet other = 1;\n\nthrower();"
    assert re.search(
        r"at thrower \(<exec-\d+>:4:9\)\n    at <exec-\d+>:8:1", shared.node(code).stderr
    )


def test_modules_are_found_from_the_working_directory(agent: AgentProcess) -> None:
    code = """
for (const directory of ['.', 'sub']) {
  fs.mkdirSync(directory + '/node_modules/pkg', { recursive: true });
  fs.writeFileSync(directory + '/node_modules/pkg/index.js', `exports.from = '${directory}'`);
  fs.writeFileSync(directory + '/m.mjs', `export const from = '${directory}'`);
}
fs.writeFileSync('top.js', 'exports.from = "top"');
const found = async () => [require('pkg').from, (await import('pkg')).from,
  (await import('./m.mjs')).from, require('./top').from];
"""
    assert agent.node(code).exit_code == 0
    assert agent.node("await found()").shown == ["[ '.', '.', '.', 'top' ]"]
    assert agent.node("process.chdir('sub'); await found()").shown == [
        "[ 'sub', 'sub', 'sub', 'top' ]"
    ]
    assert agent.node("require.main === module").shown == ["true"]


@pytest.mark.skipif(BWRAP is None, reason="bubblewrap is missing: `make setup` installs it")
def test_modules_are_found_in_the_project() -> None:
    with jailed_agent(weak=("--tmpfs", "/project")) as agent:
        code = """
fs.mkdirSync('/project/node_modules/pkg', { recursive: true });
fs.writeFileSync('/project/node_modules/pkg/index.js', 'exports.from = "pkg"');
fs.writeFileSync('/project/x.js', 'exports.from = "x"');
[require('pkg').from, require('./x').from, (await import('./x.js')).from,
  (await import('pkg')).from]
"""
        assert agent.node(code).shown == ["[ 'pkg', 'x', 'x', 'pkg' ]"]
        failed = agent.node("require('./y')")
        assert "Cannot find module './y'" in failed.stderr


@pytest.mark.parametrize(
    "code",
    [
        "console.log(new Error('mine').stack)",
        "console.error('first'); console.trace('mine')",
        "function f() { throw new Error('mine') }\ntry { f() } catch (e) { console.log(e) }",
        "try { process.stdout.write(5) } catch (e) { console.log(e.stack) }",
        "try { require('./missing') } catch (e) { console.log(e.stack) }",
        "await null; console.log(new Error('mine').stack)",
    ],
)
def test_no_stack_shows_frames_of_ours(shared: AgentProcess, code: str) -> None:
    reply = shared.node(code)
    said = reply.stdout + reply.stderr
    assert reply.exit_code == 0
    assert re.search(r"    at .*<exec-\d+>:\d+:\d+", said), said
    assert not re.search(r"node:inspector|\[eval\]|node:internal/worker", said), said


@pytest.mark.slow
def test_typescript_runs_or_says_what_it_needs(agent: AgentProcess) -> None:
    reply = agent.node("let typed: number = 3; typed")
    if reply.exit_code == 0:  # this Node takes types away itself, since 22.13
        assert reply.shown == ["3"]
        assert agent.node("typed + (1 as number)").shown == ["4"]
    else:
        assert "Unexpected token ':'" in reply.stderr
        assert "`nsm env add NAME --npm esbuild`" in reply.frame["notes"][0]
    wrong = agent.node("let z = ;")
    assert "notes" not in wrong.frame
    assert "let z = ;\n        ^\nSyntaxError" in wrong.stderr
