"""Completions from the live namespace, and checks of code; what is asked about is never run."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from agent_process import AgentProcess, Interpreter, becomes_true, direct_agent
from realjail import needs_bwrap

jail = pytest.mark.jail


def ask(
    agent: AgentProcess, code: str, interpreter: Interpreter = "python", cursor: int | None = None
) -> dict[str, Any]:
    """The answer to one question; the cursor is at the end unless told."""
    at = len(code) if cursor is None else cursor
    agent.send(type="complete", id="q", interpreter=interpreter, code=code, cursor=at)
    frame = agent.expect("completions")
    assert frame["id"] == "q"
    assert 0 <= frame["start"] <= frame["end"] <= len(code)
    return frame


def check(agent: AgentProcess, code: str, interpreter: Interpreter = "node") -> dict[str, Any]:
    """The answer to one question of whether code is complete."""
    agent.send(type="check", id="c", interpreter=interpreter, code=code)
    return agent.expect("checked")


def told(
    agent: AgentProcess, code: str, interpreter: Interpreter = "python", cursor: int | None = None
) -> dict[str, Any]:
    """Ask like `ask`, until an interpreter with nothing else to do has had the time to answer."""
    frame: dict[str, Any] = {}

    def is_available() -> object:
        nonlocal frame
        frame = ask(agent, code, interpreter, cursor)
        return frame["available"]

    becomes_true(is_available, "an answer within its time")
    return frame


def completed(
    agent: AgentProcess, code: str, interpreter: Interpreter = "python", cursor: int | None = None
) -> list[str]:
    """The text up to the cursor as each match would make it."""
    frame = told(agent, code, interpreter, cursor)
    assert frame["end"] == (len(code) if cursor is None else cursor)
    return [code[: frame["start"]] + match for match in frame["matches"]]


PYTHON = """
import os, collections, enum, json
class Base:
    inherited = 1
    def method(self): pass
    @property
    def trap(self): raise SystemExit('a property was run')
    @staticmethod
    def still(): pass
class Thing(Base):
    __slots__ = ('slot',)
    _private = 1
    def __init__(self):
        self.own = {'inner': 1}
        self.slot = collections.OrderedDict(apple=1)
        self.other = Base()
thing = Thing()
table = {'alpha': 1, 'alp"ine': 2, "al'so": 3, 'beta': 4, 5: 6, 'new\\nline': 7}
gr\u00f6\u00dfe = 1
def function(): pass
function.attribute = [1]
class Colour(enum.Enum):
    RED = 1
"""

PYTHON_CASES: dict[str, list[str]] = {
    "thi": ["thing"],
    "thing.o": ["thing.other", "thing.own"],
    "thing.own.ke": ["thing.own.keys"],
    "thing . meth": ["thing . method"],
    "thing.me": ["thing.method"],
    "Thing.still.__na": ["Thing.still.__name__"],
    "thing._pri": ["thing._private"],
    "thing.trap.": [],
    "thing.nothing.": [],
    "function.attribute.app": ["function.attribute.append"],
    "os.path.joi": ["os.path.join"],
    "Colour.RE": ["Colour.RED"],
    "retur": ["return"],
    "isinst": ["isinstance"],
    "f'{thi": ["f'{thing"],
    "f'{{thi": [],
    "f'{x} thi": [],
    "'thi": [],
    "# thi": [],
    "x = '# ' + thi": ["x = '# ' + thing"],
    "f().thi": [],
    "1.re": [],
    "table['al": ["table['al\\'so']", "table['alp\"ine']", "table['alpha']"],
    'table["alp': ['table["alp\\"ine"]', 'table["alpha"]'],
    "table[ 'be": ["table[ 'beta']"],
    "thing.slot['a": ["thing.slot['apple']"],
    "table['''be": [],
    "thing['be": [],
    "import json.deco": ["import json.decoder"],
    "import os, collec": ["import os, collections"],
    "from json import deco": ["from json import decoder"],
    "from json import dump": ["from json import dump", "from json import dumps"],
    "from json import dump, loa": ["from json import dump, load", "from json import dump, loads"],
    "from email.mime import tex": ["from email.mime import text"],
    "from nowhere.at import al": [],
}


@pytest.fixture(scope="module")
def python(shared: AgentProcess) -> AgentProcess:
    assert shared.python(PYTHON).exit_code == 0
    return shared


@pytest.mark.parametrize("code", PYTHON_CASES)
def test_python(python: AgentProcess, code: str) -> None:
    assert completed(python, code) == PYTHON_CASES[code]


def test_all_names_but_the_private_ones(python: AgentProcess) -> None:
    names = completed(python, "")
    assert {"thing", "table", "print", "while", "display", "gr\u00f6\u00dfe"} <= set(names)
    assert not any(name.startswith("_") for name in names)
    assert "__name__" in completed(python, "__")
    assert {"thing.method", "thing.trap", "thing.slot"} <= set(completed(python, "thing."))


def test_the_cursor_counts_code_points(python: AgentProcess) -> None:
    code = "'\U0001f600\U0001f600'; thing.own; x"
    assert completed(python, code, cursor=len(code) - 3)[0].endswith("; thing.own")
    frame = told(python, "'\U0001f600'; thing.own; x", cursor=10)
    assert (frame["start"], frame["end"]) == (5, 10)
    assert frame["matches"] == ["thing"]


def test_a_quote_that_is_there_is_not_repeated(python: AgentProcess) -> None:
    assert completed(python, "table['be']", cursor=9) == ["table['beta"]


def test_modules_of_the_working_directory(agent: AgentProcess) -> None:
    (agent.workspace / "mine").mkdir()
    (agent.workspace / "mine" / "within.py").write_text("open('run', 'w')")
    (agent.workspace / "my_module.py").write_text("open('run', 'w')")
    agent.python("")
    assert completed(agent, "import my_m") == ["import my_module"]
    assert completed(agent, "from mine import wi") == ["from mine import within"]
    assert not (agent.workspace / "run").exists()


# Nothing of the namespace is run.

HOSTILE = """
import sys
class Ran(BaseException): pass
def ran(*args, **kwargs):
    open('run', 'a').write('x')
    raise Ran
class Meta(type):
    __mro__ = __dict__ = __class__ = __name__ = property(ran)
    __getattribute__ = __getattr__ = __dir__ = __iter__ = __eq__ = __instancecheck__ = ran
    __hash__ = ran
    mro_ = 1
class Evil(metaclass=Meta):
    __class__ = property(ran)
    __slots__ = ('there',)
    __getattribute__ = __getattr__ = __dir__ = __repr__ = __eq__ = __hash__ = __bool__ = ran
    __len__ = __iter__ = __getitem__ = __str__ = __get__ = ran
    def method(self): pass
evil = object.__new__(Evil)
type.__setattr__(Evil, 'held', evil)
class Name(str):
    __eq__ = ran
    startswith = isidentifier = isprintable = __len__ = ran
    def __hash__(self): return str.__hash__(self)
class Table(dict):
    __iter__ = keys = items = __getitem__ = __contains__ = get = __len__ = ran
table = Table(alpha=1)
class Holder: pass
holder = Holder()
holder.__dict__ = Table(beta=1, deep=holder)
dict.__setitem__(holder.__dict__, Name('gamma'), 1)
class Strange(metaclass=type('M', (type,), {'__getattribute__': ran, '__dict__': 1})):
    inner = 1
class Module(type(sys)):
    __getattribute__ = __dir__ = ran
    __dict__ = property(ran)
module = Module('module')
class Other:
    __slots__ = ('slot', '__dict__')
class Borrower:
    __slots__ = ('own',)
    slot = Other.__dict__['slot']
    __dict__ = Other.__dict__['__dict__']
borrower = Borrower()
import io
class Named(io.BytesIO):
    name = property(ran)
class Text(io.TextIOWrapper):
    __dict__ = io.TextIOWrapper.__dict__['name']
text = Text(Named())
sys.modules['itertools'] = sys.modules['keyword'] = real = object.__new__(Evil)
# In the namespace itself, with the hash of a name that will be asked for.
real = object.__new__(Evil)
globals()[Name('evil')] = globals().pop('evil')
globals()[Name('thread')] = 1
globals()[3] = globals()[()] = 4
sys.modules[Name('json')] = sys.modules.pop('json')
sys.path.insert(0, real)
"""

HOSTILE_CASES: dict[str, list[str] | None] = {
    "": None,
    "rea": ["real"],
    "evil.": None,
    "real.": None,
    "real.meth": ["real.method"],
    "real.there.": None,
    "real.method.__na": ["real.method.__name__"],
    "Evil.": None,
    "Evil.meth": ["Evil.method"],
    "Evil.held.meth": None,
    "Meta.": None,
    "table.": None,
    "table['al": ["table['alpha']"],
    "holder.be": ["holder.beta"],
    "holder.deep.deep.be": ["holder.deep.deep.beta"],
    "holder.gam": [],
    "Strange.inn": ["Strange.inner"],
    "module.": None,
    "borrower.ow": ["borrower.own"],
    "borrower.own.": [],
    "borrower.slot.": [],
    "Name.": None,
    "thread.": None,
    "text.": None,
    "import js": None,
    "from json import du": None,
    "import ": None,
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    with direct_agent(tmp_path_factory.mktemp("hostile")) as agent:
        reply = agent.python(HOSTILE)
        assert reply.exit_code == 0, reply.stderr
        yield agent


@pytest.mark.parametrize("code", HOSTILE_CASES)
def test_nothing_is_run(hostile: AgentProcess, code: str) -> None:
    frame = told(hostile, code)
    expected = HOSTILE_CASES[code]
    if expected is not None:
        assert [code[: frame["start"]] + match for match in frame["matches"]] == expected
    assert not (hostile.workspace / "run").exists()


def test_hostile_objects_run_their_code_when_they_are_used(agent: AgentProcess) -> None:
    """The cases above can fail."""
    agent.python(HOSTILE)
    for code in (
        "dir(real)",
        "isinstance(real, int)",
        "'alpha' in table",
        "dir(module)",
        "text.name",
    ):
        (agent.workspace / "run").unlink(missing_ok=True)
        assert agent.python(f"try: {code}\nexcept Ran: pass").exit_code == 0
        assert (agent.workspace / "run").exists(), code


def test_twenty_thousand_names(agent: AgentProcess) -> None:
    agent.python(
        "class Many: pass\n"
        "many = Many()\n"
        "for i in range(20_000):\n"
        "    globals()[f'name_{i}'] = many.__dict__[f'field_{i}'] = i\n"
        "    setattr(Many, f'class_{i}', i)\n"
        "keys = dict.fromkeys(map(str, range(20_000)))"
    )
    for code in ("name_", "many.", "many.field_1", "keys['", "Many."):
        frame = told(agent, code)
        assert len(frame["matches"]) == 500
    assert completed(agent, "many.field_19999") == ["many.field_19999"]


def test_names_of_a_size(agent: AgentProcess) -> None:
    agent.python("globals()['long' * 1000] = 1\nglobals()['lo\\x1b[2J'] = 1\nlonely = 1")
    assert completed(agent, "lon") == ["lonely"]
    agent.python("d = {'k' * 5000: 1, 'k\\x1b': 2, 'kind': 3}")
    assert completed(agent, "d['k") == ["d['kind']"]


def test_names_that_other_threads_make(agent: AgentProcess) -> None:
    agent.python(
        "import threading\n"
        "class A: pass\n"
        "a = A()\n"
        "stop = False\n"
        "def churn():\n"
        "    while not stop:\n"
        "        for i in range(100): setattr(a, f'x{i}', 1)\n"
        "        for i in range(100): delattr(a, f'x{i}')\n"
        "threading.Thread(target=churn, daemon=True).start()\n"
        "a.kept = 1"
    )
    for _ in range(20):
        frame = ask(agent, "a.ke")
        assert not frame["available"] or frame["matches"] in ([], ["kept"])
    assert agent.python("stop = True").exit_code == 0
    assert completed(agent, "a.ke") == ["a.kept"]


def test_state_is_as_it_was(agent: AgentProcess) -> None:
    agent.python("import sys, gc\nbefore = set(sys.modules)\n_ = 5")
    for code in ("", "sys.", "import x", "from os import pa", "before.", "d['"):
        ask(agent, code)
    reply = agent.python("print(sorted(set(sys.modules) - before), _)")
    assert reply.stdout == "[] 5\n"


# Where nobody could answer.


def unavailable(frame: dict[str, Any]) -> bool:
    return frame["available"] is False and frame["matches"] == [] and frame["start"] == frame["end"]


def test_without_an_interpreter_that_waits_for_code_nothing_is_available(
    agent: AgentProcess,
) -> None:
    assert unavailable(ask(agent, "pri")), "none is started for it"
    assert check(agent, "x")["status"] == "unknown"
    request = agent.begin("print('on', flush=True)\nwhile True: pass", stream=True)
    agent.running("on")
    assert unavailable(ask(agent, "pri"))
    agent.send(type="interrupt", id=request)
    assert agent.result(request).interrupted
    assert completed(agent, "prin") == ["print"]
    agent.bash("here=1")
    assert unavailable(ask(agent, "echo $her", "bash")), "no shell is asked"


BUSY = """
import asyncio, os
async def hog():
    open('busy', 'w')
    while not os.path.exists('free'): pass
    open('done', 'w')
asyncio.get_event_loop().call_later(0.05, lambda: asyncio.ensure_future(hog()))
async def nap(): await asyncio.sleep(0)
await nap()
here = 1
"""


def waits_for_an_answer(agent: AgentProcess, code: str, interpreter: Interpreter) -> bool:
    """Return whether the agent waits for the interpreter before it says that it does not answer."""
    agent.send(type="complete", id="q", interpreter=interpreter, code=code, cursor=len(code))
    agent.send(type="ping")
    first, second = agent.receive(), agent.receive()
    assert {first["type"], second["type"]} == {"completions", "pong"}
    assert unavailable(first if first["type"] == "completions" else second)
    return bool(first["type"] == "pong")


def test_a_busy_interpreter_is_not_waited_for(agent: AgentProcess) -> None:
    assert agent.python(BUSY).exit_code == 0
    becomes_true((agent.workspace / "busy").exists, "the loop is busy")
    assert waits_for_an_answer(agent, "here", "python")
    # The question before has no answer yet: the interpreter is not asked another.
    assert not waits_for_an_answer(agent, "her", "python")
    (agent.workspace / "free").touch()
    becomes_true((agent.workspace / "done").exists, "the loop is free")
    # The late answer is for nobody, and not taken for that to a later question.
    becomes_true(lambda: ask(agent, "here")["available"], "it answers again")
    assert completed(agent, "her") == ["here"]
    assert [f["type"] for f in agent.seen if f["type"] == "error"] == []


def test_an_interpreter_that_dies_meanwhile(agent: AgentProcess) -> None:
    agent.python(BUSY.replace("open('done', 'w')", "os._exit(3)"))
    becomes_true((agent.workspace / "busy").exists, "the loop is busy")
    agent.send(type="complete", id="q", interpreter="python", code="her", cursor=3)
    (agent.workspace / "free").touch()
    assert unavailable(agent.expect("completions"))
    becomes_true(lambda: agent.python("1").interpreter_restarted, "it has died")
    assert "print" in completed(agent, "pri")


def test_code_and_questions_take_turns(agent: AgentProcess) -> None:
    agent.python("here = 1")
    for number in range(30):
        agent.send(type="complete", id=f"q{number}", interpreter="python", code="her", cursor=3)
        assert agent.python(f"print({number})").stdout == f"{number}\n"
    frames = [frame for frame in agent.seen if frame["type"] == "completions"]
    assert [frame["id"] for frame in frames] == [f"q{number}" for number in range(30)]
    assert all(frame["matches"] == ["here"] for frame in frames if frame["available"])


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("complete", {"code": "x", "cursor": 2}, "whole number, 0 to 1"),
        ("complete", {"code": "x", "cursor": -1}, "cursor"),
        ("complete", {"code": "x", "cursor": True}, "cursor"),
        ("complete", {"code": "x", "cursor": 0.0}, "cursor"),
        ("complete", {"cursor": 0}, "code"),
        ("complete", {"code": "x", "cursor": 1, "interpreter": "ruby"}, "ruby"),
        ("check", {}, "code"),
        ("check", {"code": 3}, "code"),
        ("check", {"interpreter": "ruby", "code": "x"}, "ruby"),
        ("check", {"interpreter": None, "code": "x"}, "None"),
        ("check", {"interpreter": ["python"], "code": "x"}, "python"),
        ("check", {"id": None, "code": "x"}, "needs an id"),
    ],
)
def test_questions_that_are_none(
    shared: AgentProcess, kind: str, fields: dict[str, Any], words: str
) -> None:
    asked = {"type": kind, "id": "q", "interpreter": "python", **fields}
    shared.send(**asked)
    frame = shared.expect("error")
    assert frame.get("id") == asked["id"]
    assert words in frame["message"]


LONG = {
    "huge": "x" * 8 * 1024 * 1024,
    "dots": "a." * 30_000,
    "blanks": "a" + " " * 60_000,
    "quotes": "'\"" * 30_000,
    "backslashes": "'" + "\\" * 60_000,
    "backticks": "`${" * 20_000,
    "comments": "/*" * 30_000,
    "modules": "import " + "a." * 30_000,
    "brackets": "a[" * 30_000,
    "surrogates": "\ud800" * 1000,
    "NUL": "\0" * 100,
    "pairs": "[" * 20_000 + "]" * 20_000,
    "signs": "-" * 60_000 + "1",
    "sum": "1+" * 30_000 + "1",
    "functions": "() => " * 10_000 + "1",
    "lines": "x = 1\n" * 10_000,
}


@pytest.mark.parametrize("interpreter", ["python", "node"])
@pytest.mark.parametrize("name", LONG)
def test_long_and_deep_texts_are_bounded(
    shared: AgentProcess, interpreter: Interpreter, name: str
) -> None:
    if interpreter not in shared.ready["interpreters"]:
        pytest.skip("node is missing")
    shared.run("", interpreter)
    if name == "huge":
        assert unavailable(ask(shared, LONG[name], interpreter))
    else:
        assert len(told(shared, LONG[name], interpreter)["matches"]) <= 500
    status = check(shared, LONG[name], interpreter)["status"]
    assert status in {"complete", "incomplete", "invalid", "unknown"}
    if name == "huge" or interpreter == "python":  # a prompt parses Python itself
        assert status == "unknown"


# Node.

NODE = """
class Base { inherited() {} }
class Thing extends Base {
  constructor() { super(); this.own = { inner: 1 }; this.text = 'abc'; this.number = 5; }
  method() {}
  get trap() { ran(); }
  static st\u00e4tic = 1;
}
const thing = new Thing();
let later_name = thing;
var global_name = 1;
const fs = require('fs');
function ran() { fs.appendFileSync('run', 'x'); throw new Error('run'); }
const handler = new Proxy({}, { get: ran });
const proxy = new Proxy({ target: 1 }, handler);
const behind = Object.create(proxy, { own: { value: { proxy } } });
const text = 'abc', big = 5n, none = null;
const array = [1, 2], bytes = new Uint8Array(1000000);
const keyed = { 'not a name': 1, valid: 2, 'va\\0valley': 3, [Symbol('s')]: 3 };
undefined
"""

NODE_CASES: dict[str, list[str]] = {
    "thi": ["thing", "this"],
    "thing.o": ["thing.own"],
    "thing.own.inn": ["thing.own.inner"],
    "thing?.own?.inn": ["thing?.own?.inner"],
    "thing . meth": ["thing . method"],
    "thing.tr": ["thing.trap"],
    "thing.trap.": [],
    "Thing.st": ["Thing.st\u00e4tic"],
    "later": ["later_name"],
    "globalThis.global_n": ["globalThis.global_name"],
    "text.trimS": ["text.trimStart"],
    "none.": [],
    "array.fla": ["array.flat", "array.flatMap"],
    "bytes.subar": ["bytes.subarray"],
    "keyed.va": ["keyed.valid", "keyed.valueOf"],
    "process.stdout.writableHigh": ["process.stdout.writableHighWaterMark"],
    "Buffer.allocUnsafeS": ["Buffer.allocUnsafeSlow"],
    "require('os'); fs.readFileS": ["require('os'); fs.readFileSync"],
    "console.tim": ["console.time", "console.timeEnd", "console.timeLog", "console.timeStamp"],
    "typeof thing.o": ["typeof thing.own"],
    "inst": ["instanceof"],
    "f().thi": [],
    "5.to": [],
    "'thi": [],
    "`a ${thi": ["`a ${thing", "`a ${this"],
    "// thi": [],
    "'\U0001f600' + late": ["'\U0001f600' + later_name"],
    "1\nlate": ["1\nlater_name"],
    "proxy.": [],
    "behind.ow": ["behind.own"],
    "behind.own.proxy.": [],
}


@pytest.fixture(scope="module")
def node(shared: AgentProcess) -> AgentProcess:
    if "node" not in shared.ready["interpreters"]:
        pytest.skip("node is missing")
    assert shared.node(NODE).exit_code == 0
    return shared


@pytest.mark.node
@pytest.mark.parametrize("code", NODE_CASES)
def test_node(node: AgentProcess, code: str) -> None:
    found = completed(node, code, "node")
    assert found == NODE_CASES[code]
    assert not (node.workspace / "run").exists()


NODE_HOSTILE = """
const fs = require('fs');
const append = fs.appendFileSync;
let armed = false;
const ran = function () { if (armed) { armed = false; append('run', 'x'); armed = true; } };
const real = {};
for (const [object, names] of [
  [Object, ['getOwnPropertyNames', 'keys', 'getPrototypeOf', 'hasOwn', 'defineProperty']],
  [Reflect, Reflect.ownKeys(Reflect).filter((n) => typeof n === 'string')],
  [Array.prototype, ['push', 'map', 'filter', 'sort', 'slice', 'concat', 'find', 'indexOf']],
  [String.prototype, ['startsWith', 'split', 'slice', 'replace', 'trim']],
  [Set.prototype, ['add', 'has', 'values']],
  [Function.prototype, ['call', 'apply', 'bind']],
]) {
  for (const name of names) {
    const original = object[name];
    object[name] = function (...args) { ran(); return real.apply(original, this, args); };
  }
}
Object.defineProperty(globalThis, 'getter', { get: ran, configurable: true });
Object.defineProperty(globalThis, 'process', { get: ran, configurable: true });
Object.defineProperty(Array.prototype, '0', { set: ran, get: ran, configurable: true });
Object.defineProperty(Object.prototype, 'get', { get: ran, set: ran, configurable: true });
const thing = { own: { inner: 1 } };
Symbol.prototype[Symbol.toPrimitive];
"""


@pytest.mark.node
def test_node_runs_nothing(agent: AgentProcess) -> None:
    code = NODE_HOSTILE.replace("const real = {};", "const real = { apply: Reflect.apply };")
    agent.node(code)
    agent.node("armed = true; undefined")
    before = (agent.workspace / "run").read_text() if (agent.workspace / "run").exists() else ""
    for question in ("th", "thing.", "thing.own.in", "getter.", "process.", "Reflect.", ""):
        told(agent, question, "node")
    assert completed(agent, "thing.own.in", "node") == ["thing.own.inner"]
    after = (agent.workspace / "run").read_text() if (agent.workspace / "run").exists() else ""
    assert after == before


@pytest.mark.node
def test_node_that_is_busy(agent: AgentProcess) -> None:
    agent.node(
        "const here = 1; setTimeout(() => { require('fs').writeFileSync('busy', '');"
        " while (!require('fs').existsSync('free')); }, 20); undefined"
    )
    becomes_true((agent.workspace / "busy").exists, "node is busy")
    assert waits_for_an_answer(agent, "her", "node")
    assert not waits_for_an_answer(agent, "her", "node")
    (agent.workspace / "free").touch()
    becomes_true(lambda: ask(agent, "here", "node")["available"], "it answers again")
    assert completed(agent, "her", "node") == ["here"]


@pytest.mark.node
def test_node_with_much(agent: AgentProcess) -> None:
    agent.node(
        "var text = 'x'.repeat(1e7); const many = {};"
        " for (let i = 0; i < 3e4; i++) many['n' + i] = i;"
        " const array = new Array(1e6).fill(0); undefined"
    )
    assert len(told(agent, "many.", "node")["matches"]) == 500
    assert completed(agent, "tex", "node") == ["text"]
    assert completed(agent, "text.padS", "node") == ["text.padStart"]
    assert completed(agent, "array.inclu", "node") == ["array.includes"]


# Whether code is complete, which a prompt asks when Enter is pressed.

CHECKS: dict[str, str] = {
    "": "complete",
    "1": "complete",
    "// only this": "complete",
    "{ a: 1 }": "complete",
    "{ a: 1, b: { c: 2 } }": "complete",
    "await f()": "complete",
    "for await (const a of b) {}": "complete",
    "`a${b}`": "complete",
    "import('x')": "complete",
    "class A { b = 1 }": "complete",
    "/[/]/.test(a)": "complete",
    "{": "incomplete",
    "{ a: 1,": "incomplete",
    "foo(1": "incomplete",
    "a +": "incomplete",
    "let x =": "incomplete",
    "if (a)": "incomplete",
    "try {}": "incomplete",
    "x => {": "incomplete",
    "async () => { await a": "incomplete",
    "for await (const a of b) {": "incomplete",
    "`a": "incomplete",
    "`a${b": "incomplete",
    "`a${`b": "incomplete",
    "/* a": "incomplete",
    "'a\\": "incomplete",
    "'a": "invalid",
    "/a": "invalid",
    "a b": "invalid",
    "}": "invalid",
    "let a; let a": "invalid",
    "return": "invalid",
    "import a from 'b'": "invalid",
    "await )": "invalid",
}


def judged(agent: AgentProcess, code: str) -> str:
    """Ask like `check`, until there was time for an answer."""
    status = "unknown"

    def is_known() -> bool:
        nonlocal status
        status = check(agent, code)["status"]
        return bool(status != "unknown")

    becomes_true(is_known, "an answer within its time")
    return status


@pytest.mark.node
def test_node_says_whether_code_is_complete_and_runs_none(shared: AgentProcess) -> None:
    shared.node("")
    for code, status in CHECKS.items():
        assert judged(shared, code) == status, code
    assert judged(shared, "require('fs').writeFileSync('checked', '')") == "complete"
    assert not (shared.workspace / "checked").exists()


@pytest.mark.node
def test_node_checks_code_while_other_code_runs(agent: AgentProcess) -> None:
    request = agent.begin("console.log('on'); while (true) {}", "node", stream=True)
    agent.running("on")
    assert judged(agent, "foo(") == "incomplete"
    agent.send(type="interrupt", id=request)
    assert agent.result(request).interrupted


@jail
@needs_bwrap
def test_answers_that_are_forged(jailed: AgentProcess) -> None:
    """Code shares the interpreter's process, so that it may answer what it likes."""
    jailed.python(
        "import os, json, threading, time\n"
        "fds = [int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) >= 200]\n"
        "def frame(message):\n"
        "    body = json.dumps(message).encode()\n"
        "    return len(body).to_bytes(4, 'big') + body\n"
        "def forge():\n"
        "    for number in range(1, 40):\n"
        "        for answer in (\n"
        "            {'prefix': 'pri', 'matches': ['\\x1b[2J', 7, None, 'x' * 5000, 'forged']},\n"
        "            {'prefix': 7, 'matches': 'abc'}, {'matches': [1] * 1000}, {'status': ['x']},\n"
        "        ):\n"
        "            data = frame({'type': 'answer', 'id': number, **answer})\n"
        "            for fd in fds:\n"
        "                try: os.write(fd, data)\n"
        "                except OSError: pass\n"
        "    time.sleep(0.01)\n"
        "threading.Thread(target=forge, daemon=True).start()"
    )
    for _ in range(20):
        frame = ask(jailed, "pri")
        assert set(frame["matches"]) <= {"forged", "print"}
    jailed.send(type="ping")
    jailed.expect("pong")
