"""Promises of the Node interpreter, with a case for each."""

from __future__ import annotations

import itertools
import re

import pytest

from agent_process import AgentProcess, Reply, jailed_agent
from realjail import BWRAP
from selection import one_in

STATE: dict[str, list[tuple[str, str, list[str]]]] = {
    # name: [(code, stdout, displays), ...]; each step succeeds
    "let, const, class and function persist": [
        (
            "let a = 1; const b = 2; class C { m() { return 'm'; } } function f() { return 'f'; }",
            "",
            [],
        ),
        ("[a, b, new C().m(), f()]", "", ["[ 1, 2, 'm', 'f' ]"]),
    ],
    "and may be declared again": [
        ("let a = 1; const b = 1; class C {} function f() {}", "", []),
        ("let a = 2; const b = 3; class C { x = 1 } function f() { return 4; }", "", []),
        ("[a, b, new C().x, f()]", "", ["[ 2, 3, 1, 4 ]"]),
    ],
    "await": [
        ("const v = await Promise.resolve(5);", "", []),
        ("v + await 1", "", ["6"]),
        (
            "for await (const x of (async function* () { yield 1; yield 2; })()) console.log(x)",
            "1\n2\n",
            [],
        ),
    ],
    "trailing expressions": [
        ("1 + 1", "", ["2"]),
        ("'text'", "", ["'text'"]),
        ("undefined", "", []),
        ("null", "", ["null"]),
        ("({ a: [1, { b: new Map([[1, 2]]) }] })", "", ["{ a: [ 1, { b: [Map] } ] }"]),
        ("{ a: 1 }", "", ["{ a: 1 }"]),
        ("-0", "", ["-0"]),
        ("NaN", "", ["NaN"]),
        ("10n ** 20n", "", ["100000000000000000000n"]),
        ("Symbol('s')", "", ["Symbol(s)"]),
        ("(function named() {})", "", ["[Function: named]"]),
        ("class K {}; K", "", ["[class K]"]),
        ("Promise.resolve(5)", "", ["5"]),
        ("new Promise((r) => setTimeout(r, 5, 6))", "", ["6"]),
        ("(async () => {})()", "", []),
        ("[Promise.resolve(5)]", "", ["[ Promise { 5 } ]"]),
        ("new Error('a value').message", "", ["'a value'"]),
        ("var x = 5", "", []),
        ("if (true) 7", "", ["7"]),
        ("''", "", ["''"]),
        ("false", "", ["false"]),
        ("Object.create(null)", "", ["[Object: null prototype] {}"]),
        ("new Proxy({}, {})", "", ["{}"]),
    ],
    "console and streams": [
        ("console.log('a', { b: 1 })", "a { b: 1 }\n", []),
        ("process.stdout.write('x'); process.stdout.write('y\\n')", "xy\n", ["true"]),
        ("console.error('to stderr')", "", []),
        ("console.log('%d%%', 5)", "5%\n", []),
        ("process.stdout.write('cb\\n', () => {}); process.stdout.isTTY", "cb\n", []),
    ],
    "child processes": [
        (
            "const cp = require('child_process'); cp.execSync('echo sync', { stdio: 'inherit' });",
            "sync\n",
            ["null"],
        ),
        ("cp.spawnSync('sh', ['-c', 'echo x; exit 3'], { stdio: 'inherit' }).status", "x\n", ["3"]),
        (
            "(await events.once(cp.spawn('echo', ['async'], { stdio: [0, 1] }), 'exit'))[0]",
            "async\n",
            ["0"],
        ),
        (
            "cp.execSync('cat; ls /proc/self/fd').toString().trim().split('\\n')",
            "",
            ["[ '0', '1', '2', '3' ]"],
        ),
        ("cp.execSync('cat', { stdio: 'inherit' })", "", ["null"]),
    ],
    "require and import": [
        (
            "let fs = require('fs'); fs.writeFileSync('m.js', 'exports.x = 1'); require('./m').x",
            "",
            ["1"],
        ),
        (
            "fs.writeFileSync('e.mjs', 'export const y = 2'); (await import('./e.mjs')).y",
            "",
            ["2"],
        ),
        ("const { join } = await import('node:path'); join('a', 'b')", "", ["'a/b'"]),
        ("await import ( /* c */ 'node:os' ).then(m => typeof m.EOL)", "", ["'string'"]),
        (
            "'import(' + \"import('x')\" + `import('y') ${typeof import('node:fs')}`",
            "",
            ["\"import(import('x')import('y') object\""],
        ),
        ("/import('x')/.test('import(x)') // import('z')", "", ["false"]),
        ("const o = { import(x) { return x + 1; } }; o.import(1)", "", ["2"]),
        ("let n = 8; n / 2 / 2", "", ["2"]),
        ("`a${`b${1}import(`}`", "", ["'ab1import('"]),
    ],
    "globals": [
        ("typeof process, typeof require, typeof Buffer, typeof fetch", "", ["'function'"]),
        ("process.argv.length", "", ["1"]),
        ("process.execArgv", "", ["[]"]),
        (
            "Object.keys(globalThis).some((k) => k.includes('nsm') || k === 'require')",
            "",
            ["false"],
        ),
        ("globalThis.kept = 1; kept", "", ["1"]),
        ("process.chdir('/'); process.cwd()", "", ["'/'"]),
    ],
    "standard input is empty": [
        ("require('fs').readFileSync(0).length", "", ["0"]),
        (
            "await new Promise((r) => process.stdin.resume().on('end', () => r('end')))",
            "",
            ["'end'"],
        ),
    ],
    "text": [("console.log('\u00e4\u20ac\U0001f600')", "\u00e4\u20ac\U0001f600\n", [])],
    "comments and endings": [
        ("5 // comment", "", ["5"]),
        ("/* only */", "", []),
        ("", "", []),
        ("let s = `a\nb`\n\n;s", "", ["'a\\nb'"]),
    ],
    "timers do not hold an execution up": [
        ("let ticks = 0; const t = setInterval(() => ticks++, 1); 'now'", "", ["'now'"]),
        ("await new Promise((r) => setTimeout(r, 30)); ticks > 1", "", ["true"]),
        ("clearInterval(t)", "", []),
    ],
}


@pytest.mark.parametrize("name", STATE)
def test_state(shared: AgentProcess, name: str) -> None:
    for number, (code, stdout, shown) in enumerate(STATE[name]):
        reply = shared.node(code)
        where = f"step {number} of {name}: {code!r}: {reply}"
        assert reply.exit_code == 0, where
        assert reply.stdout == stdout, where
        assert reply.shown == shown, where
        assert not reply.interpreter_restarted, where


FAILURES = {
    "thrown error": (
        "function f() { throw new TypeError('bad'); }\nf()",
        r"Uncaught TypeError: bad\n    at f \(<exec-\d+>:1:22\)\n    at <exec-\d+>:2:1\n",
    ),
    "thrown value": ("throw 5", r"Uncaught 5\n"),
    "thrown undefined": ("throw undefined", r"Uncaught undefined\n"),
    "rejected await": (
        "await Promise.reject(new Error('rej'))",
        r"Uncaught Error: rej\n    at <exec-\d+>:1:22\n",
    ),
    "rejected promise": (
        "Promise.reject(new Error('rej')); 1",
        r"Uncaught Error: rej\n    at <exec-\d+>:1:16\n",
    ),
    "rejected trailing promise": (
        "new Promise((_, no) => setTimeout(no, 5, new Error('rej')))",
        r"(?s)Uncaught Error: rej\n.*",
    ),
    "rejected async function": (
        "(async () => { throw new Error('a'); })()",
        r"Uncaught Error: a\n    at <exec-\d+>:1:22\n(.*\n)*",
    ),
    "reference error": (
        "nothing_here",
        r"Uncaught ReferenceError: nothing_here is not defined\n    at <exec-\d+>:1:1\n",
    ),
    "cause": (
        "throw new Error('a', { cause: new Error('b') })",
        r"(?s)Uncaught Error: a\n.*\[cause\]: Error: b.*",
    ),
    "stack overflow": (
        "function r() { r(); } r()",
        r"(?s)Uncaught RangeError: Maximum call stack.*",
    ),
    "syntax error": (
        "let ok = 1;\nlet q = ) 5",
        r"<exec-\d+>:2\nlet q = \) 5\n        \^\nSyntaxError: Unexpected token '\)'\n",
    ),
    "unclosed bracket": ("let q = {", r"(?s).*SyntaxError: .*"),
    "unclosed template": ("let q = `abc", r"(?s).*SyntaxError: .*"),
    "unclosed comment": ("/* abc", r"(?s).*SyntaxError: .*"),
    "static import of what is not there": (
        "import { nothing } from 'fs'",
        r"Uncaught .*SyntaxError: .*'fs' does not provide an export named 'nothing'\n    at .*\n",
    ),
    "syntax error in a module": (
        "import fs from 'fs'\nlet q = )",
        r"<exec-\d+>:2\nlet q = \)\n        \^\nSyntaxError: Unexpected token\n",
    ),
    "runtime syntax error": ("JSON.parse('{')", r"(?s)Uncaught SyntaxError: .*at JSON.parse.*"),
    "missing module": (
        "require('no-such-module')",
        r"(?s)Uncaught Error: Cannot find module 'no-such-module'.*",
    ),
    "missing import": (
        "await import('no-such-module')",
        r"(?s)Uncaught Error.*: Cannot find package.*",
    ),
    "failing inspect": (
        "({ [require('util').inspect.custom]() { throw new Error('insp'); } })",
        r"(?s)Uncaught Error: insp.*",
    ),
    "failed command": (
        "require('child_process').execSync('exit 3')",
        r"(?s)Uncaught Error: Command failed.*",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(shared: AgentProcess, name: str) -> None:
    code, stderr = FAILURES[name]
    reply = shared.node(code)
    assert reply.exit_code == 1, reply
    assert re.fullmatch(stderr, reply.stderr), reply.stderr
    assert "node:inspector" not in reply.stderr
    assert "[eval]:" not in reply.stderr
    assert not reply.interpreter_restarted
    assert shared.node("console.log('on')").stdout == "on\n"


def test_text_on_stderr_is_no_failure(shared: AgentProcess) -> None:
    reply = shared.node("console.error('Uncaught Error: not really'); console.warn('w')")
    assert (reply.stderr, reply.exit_code) == ("Uncaught Error: not really\nw\n", 0)


def test_an_error_in_a_timer_ends_nothing(agent: AgentProcess) -> None:
    code = "let kept = 1, go; const wait = new Promise((r) => { go = r; });"
    first = agent.node(code + "setTimeout(() => { go(); throw new Error('late'); }, 1);")
    reply = agent.node("await wait; await new Promise(setImmediate); kept")
    assert reply.shown == ["1"]
    assert "Uncaught Error: late" in first.stderr + reply.stderr
    assert (first.exit_code, reply.exit_code) == (0, 0)
    assert not agent.node("1").interpreter_restarted


def test_a_big_write_is_whole_before_the_result(shared: AgentProcess) -> None:
    reply = shared.node("process.stdout.write('x'.repeat(900_000)); console.log('end')")
    assert len(reply.stdout) == 900_004
    assert reply.stdout.endswith("end\n")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("console.log('bye'); process.exit(3)", 3),
        ("console.log('bye'); process.exit()", 0),
        (
            "console.log('bye'); setTimeout(() => process.exit(5), 1); await new Promise(() => {})",
            5,
        ),
        ("console.log('bye'); process.kill(process.pid, 'SIGKILL'); for (;;);", 137),
        ("console.log('bye'); process.abort()", 134),
        ("console.log('bye'); process.reallyExit(4)", 4),
        ("process.on('exit', () => console.log('bye')); process.exit(6)", 6),
    ],
)
def test_the_end_of_the_process_is_answered(
    shared: AgentProcess, code: str, exit_code: int
) -> None:
    shared.node("let kept = 1")
    reply = shared.node(code)
    assert (reply.stdout, reply.exit_code) == ("bye\n", exit_code)
    assert reply.interpreter_restarted
    assert "debugger" not in reply.stderr
    later = shared.node("typeof kept")
    assert later.shown == ["'undefined'"]
    assert later.interpreter_restarted
    assert not shared.node("1").interpreter_restarted


def test_closed_descriptors_mean_a_fresh_interpreter(agent: AgentProcess) -> None:
    reply = agent.node("require('fs').closeSync(1)")
    assert reply.exit_code == 0
    later = agent.node("console.log('fresh')")
    assert later.stdout == "fresh\n"
    assert later.interpreter_restarted


def test_closing_every_descriptor_is_answered(agent: AgentProcess) -> None:
    code = (
        "const fs = require('fs'); for (let i = 3; i < 300; i++) try { fs.closeSync(i) } catch {}"
    )
    reply = agent.node(code, timeout_s=5, grace_s=0.2)
    assert reply.interpreter_restarted
    assert agent.node("console.log('fresh')").stdout == "fresh\n"


def test_workers_and_forks_of_the_users_own(agent: AgentProcess) -> None:
    code = """
const { Worker } = require('worker_threads');
await new Promise((r) => new Worker('console.log("in a worker")', { eval: true }).on('exit', r));
require('fs').writeFileSync('child.js', 'process.send(process.argv[2])');
await new Promise((r) => require('child_process').fork('./child.js', ['sent']).on('message', r));
"""
    reply = agent.node(code)
    assert (reply.stdout, reply.shown, reply.stderr) == ("in a worker\n", ["'sent'"], "")


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


FINISHED = "done\n"
ONE_SHOTS: dict[str, tuple[str, str, int, str, list[str]]] = {
    # name: (code, stdout, exit code, stderr, displays)
    "an async function": (
        "async function f() { await new Promise((r) => setTimeout(r)); console.log('done'); }; f()",
        FINISHED,
        0,
        "",
        [],
    ),
    "a timer": ("setTimeout(() => console.log('done'), 20); 'value'", FINISHED, 0, "", ["'value'"]),
    "a file's callback": (
        "require('fs').readFile('/proc/self/stat', () => console.log('done'))",
        FINISHED,
        0,
        "",
        [],
    ),
    "a child's callback": (
        "require('child_process').exec('echo done', (_, out) => process.stdout.write(out)); 0",
        FINISHED,
        0,
        "",
        ["0"],
    ),
    "a worker": (
        "new (require('worker_threads').Worker)('console.log(`done`)', { eval: true }); 0",
        FINISHED,
        0,
        "",
        ["0"],
    ),
    "beforeExit and exit": (
        (
            "process.once('beforeExit', () => setTimeout(() => console.log('more'), 5));"
            "process.on('exit', (code) => console.log('exit', code)); 0"
        ),
        "more\nexit 0\n",
        0,
        "",
        ["0"],
    ),
    "an error in a timer ends it": (
        (
            "setTimeout(() => { throw new Error('late') }, 20);"
            "setTimeout(() => console.log('never'), 60000); 0"
        ),
        "",
        1,
        "Uncaught Error: late\n",
        ["0"],
    ),
    "a late rejection ends it": (
        "setTimeout(() => Promise.reject(5), 20); setInterval(() => {}, 1000); 0",
        "",
        1,
        "Uncaught 5\n",
        ["0"],
    ),
    "an error ends it at once": (
        "setTimeout(() => console.log('never'), 60000); throw 5",
        "",
        1,
        "Uncaught 5\n",
        [],
    ),
    "an error that code listens for": (
        (
            "process.on('uncaughtException', (e, from) => console.log('caught', e, from));"
            "setTimeout(() => console.log('done'), 20); throw 5"
        ),
        "caught 5 uncaughtException\ndone\n",
        0,
        "",
        [],
    ),
    "a rejection that code listens for": (
        (
            "process.on('uncaughtException', (e, from) => console.log('caught', e, from));"
            "Promise.reject(5); 0"
        ),
        "caught 5 unhandledRejection\n",
        0,
        "",
        ["0"],
    ),
    "process.exit": ("setTimeout(() => process.exit(7), 5); 0", "", 7, "", ["0"]),
    "process.exitCode": ("process.exitCode = 4; 'value'", "", 4, "", ["'value'"]),
    "process.exitCode at exit": (
        "process.on('exit', () => { process.exitCode = 9 })",
        "",
        9,
        "",
        [],
    ),
    "an await that nothing settles": (
        "await new Promise(() => {})",
        "",
        13,
        "Warning: Detected unsettled top-level await\n",
        [],
    ),
    "a promise that nothing settles": (
        "new Promise(() => {})",
        "",
        0,
        "",
        ["Promise { <pending> }"],
    ),
}


@pytest.mark.parametrize("name", one_in(4, ONE_SHOTS))
def test_a_one_shot_ends_as_a_program_does(agent: AgentProcess, name: str) -> None:
    code, stdout, exit_code, stderr, shown = ONE_SHOTS[name]
    reply = agent.node(code, one_shot=True)
    said = re.sub(r"    at .*\n", "", reply.stderr)
    if name in {"a file's callback", "process.exitCode at exit"}:
        shown = reply.shown
    found = (reply.stdout, reply.exit_code, said, reply.shown)
    assert found == (stdout, exit_code, stderr, shown)
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
@pytest.mark.parametrize("one_shot", [False, True])
def test_what_keeps_the_loop_going_is_shown_as_its_name(
    agent: AgentProcess, code: str, shown: str, one_shot: bool
) -> None:
    (found,) = agent.node(code, one_shot=one_shot).shown
    assert found == shown if shown.startswith("[") else shown in found


def notes(reply: Reply) -> list[str]:
    found: list[str] = reply.frame.get("notes", [])
    return found


def test_what_is_still_under_way_is_counted_once(agent: AgentProcess) -> None:
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


def test_process_exit_code_counts_for_its_execution(shared: AgentProcess) -> None:
    reply = shared.node("process.exitCode = 3; 'value'")
    assert (reply.exit_code, reply.shown) == (3, ["'value'"])
    assert shared.node("process.exitCode").exit_code == 0
    assert shared.node("process.exitCode = 3; throw 5").exit_code == 1
    assert shared.node("1").exit_code == 0


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


def test_functions_of_earlier_executions_see_the_new_value(shared: AgentProcess) -> None:
    shared.node("const captured = 1; const look = () => captured")
    assert shared.node("let captured = 2; look()").shown == ["2"]


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


def test_what_replaces_another_kind_keeps_its_lines(shared: AgentProcess) -> None:
    shared.node("let thrower; function other() {}")
    code = "\n\nfunction thrower() {\n  throw new Error('x');\n}\nlet other = 1;\n\nthrower();"
    assert re.search(
        r"at thrower \(<exec-\d+>:4:9\)\n    at <exec-\d+>:8:1", shared.node(code).stderr
    )


MODULES: dict[str, tuple[str, list[str]]] = {
    "import { join as j, sep } from 'path'\nimport * as os from 'os'\nj('a', typeof os, sep)": (
        "",
        ["'a/object/'"],
    ),
    "console.log(basename('a/b')); import { basename } from 'path'": ("b\n", []),
    "import 'fs'": ("", []),
    "import data from 'data:text/javascript,export default 5'; data": ("", ["5"]),
    "export let x = 1; export { x as y }; export default class {}\nconsole.log(x)": ("1\n", []),
    "export default { a: 1 }": ("", []),
    "export default async function main() { return 7 }\nawait main()": ("", ["7"]),
    "import.meta.dirname === process.cwd() && import.meta.url.startsWith('file://')": (
        "",
        ["true"],
    ),
    "#!/usr/bin/env node\nimport fs from 'fs'; typeof fs": ("", ["'object'"]),
    "import { createRequire } from 'module'; createRequire(import.meta.url)('fs').sep2": ("", []),
    "const text = `\nimport fs from 'fs'\n`; text.length": ("", ["21"]),
}


@pytest.mark.parametrize("one_shot", [False, True])
def test_import_and_export(agent: AgentProcess, one_shot: bool) -> None:
    for code, (stdout, shown) in itertools.islice(MODULES.items(), 1 if one_shot else None):
        reply = agent.node(code, one_shot=one_shot)
        assert (reply.stdout, reply.stderr, reply.shown) == (stdout, "", shown), code


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
