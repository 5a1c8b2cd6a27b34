"""Promises of the Python interpreter, with a case for each. Cases of one list share an
interpreter."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_process import PYTHON, AgentProcess, Reply, becomes_true, json_of
from nsm.wire.code import PLACE
from selection import one_in

CLEAN = {"exit_code": 0, "stdout": "", "stderr": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A piece of code and what its result must be; `stderr_like` is a regular expression."""

    code: str
    stdout: str = ""
    stderr: str | None = ""
    stderr_like: str | None = None
    exit_code: int = 0
    shown: list[str] = field(default_factory=list[str])


def step(code: str, stdout: str = "", **rest: object) -> Step:
    return Step(code=code, stdout=stdout, **rest)  # type: ignore[arg-type]  # a table's shorthand


STATE = {
    "variables, imports and functions": [
        step("import math\nx = 2\ndef f(n): return n * x"),
        step("print(f(math.floor(3.7)))", "6\n"),
    ],
    "working directory and environment": [
        step("import os\nos.mkdir('sub'); os.chdir('sub'); os.environ['K'] = 'v'"),
        step("print(os.path.basename(os.getcwd()), os.environ['K'])", "sub v\n"),
        step(
            "import subprocess; print(subprocess.getoutput('basename $PWD; echo $K'))", "sub\nv\n"
        ),
        step("os.chdir('..'); os.rmdir('sub')"),
    ],
    "a syntax error loses nothing": [
        step("kept = 1"),
        step("def broken(:", stderr=None, exit_code=1),
        step("x = (1,", stderr=None, exit_code=1),
        step("s = '''never closed", stderr=None, exit_code=1),
        step("print(kept)", "1\n"),
    ],
    "an exception loses nothing, not even what ran before it": [
        step("a = 1; b = 2; 1/0; c = 3", stderr=None, exit_code=1),
        step("print(a, b, 'c' in globals())", "1 2 False\n"),
    ],
    "sys.exit ends the execution and keeps state": [
        step("import sys; kept = 1; sys.exit(3); kept = 2", exit_code=3),
        step("print(kept)", "1\n"),
        step("sys.exit()"),
        step("sys.exit(None)"),
        step("sys.exit(True)", exit_code=1),
        step("sys.exit('a message')", stderr="a message\n", exit_code=1),
        step("sys.exit(256)"),
        step("sys.exit(-1)", exit_code=255),
        step("sys.exit(10**20)", exit_code=255),
        step("sys.exit(-(10**20))", exit_code=255),
        step("sys.exit(2.5)", stderr="2.5\n", exit_code=1),
        step("class I(int):\n    def __and__(self, _): 1 / 0\nsys.exit(I(7))", exit_code=7),
        step(
            "class A:\n    def __str__(self): sys.exit(0)\nsys.exit(A())",
            stderr="sys.exit got a A that cannot be printed\n",
            exit_code=1,
        ),
        step("raise SystemExit(7)", exit_code=7),
        step("raise SystemExit"),
    ],
    "modules written a moment ago": [
        step("open('fresh_module.py', 'w').write('value = 1'); import fresh_module", shown=[]),
        step("print(fresh_module.value)", "1\n"),
        step("open('later_module.py', 'w').write('value = 2'); None"),
        step("import later_module; print(later_module.value)", "2\n"),
    ],
    "future imports": [
        step("from __future__ import annotations"),
        step(
            "def f(x: undefined_name): ...\nprint(f.__annotations__)", "{'x': 'undefined_name'}\n"
        ),
    ],
    "warnings once for each place of each execution": [
        step("import warnings"),
        step(
            "warnings.warn('first')\nwarnings.warn('second')",
            stderr_like=r"<exec \d+>:1: UserWarning: first\n.*<exec \d+>:2: UserWarning: second",
        ),
        step("warnings.warn('first')", stderr_like="UserWarning: first"),
    ],
    "logging and faulthandler": [
        step("import logging; logging.warning('careful')", stderr="WARNING:root:careful\n"),
        step("import faulthandler; faulthandler.dump_traceback()", stderr_like="<exec \\d+>"),
    ],
}


@pytest.mark.parametrize("name", STATE)
def test_state(agent: AgentProcess, name: str) -> None:
    for number, wanted in enumerate(STATE[name]):
        reply = agent.python(wanted.code)
        where = f"step {number} of {name}: {reply}"
        assert reply.stdout == wanted.stdout, where
        assert reply.exit_code == wanted.exit_code, where
        assert not reply.interpreter_restarted, where
        if wanted.stderr_like is not None:
            assert re.search(wanted.stderr_like, reply.stderr, re.DOTALL), where
        elif wanted.stderr is not None:
            assert reply.stderr == wanted.stderr, where
        if wanted.shown:
            assert reply.shown == wanted.shown, where


MAIN_MODULE = {
    "name": (
        "print(__name__, __import__('sys').modules['__main__'].__dict__ is globals())",
        "__main__ True",
    ),
    "guard": ("if __name__ == '__main__': print('main')", "main"),
    "nothing of the agent": ("print(sorted(k for k in globals() if not k.startswith('_')))", "[]"),
    "argv": ("import sys; print(sys.argv)", "['']"),
    "pickle": (
        "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).x)",
        "1",
    ),
    "dataclasses": (
        """
from dataclasses import dataclass
@dataclass
class P:
    x: int
    y: 'int' = 2
print(P(1))
""",
        "P(x=1, y=2)",
    ),
    "type hints": (
        "import typing as t\nclass C: ...\ndef f(x: 'C'): ...\nprint(sorted(t.get_type_hints(f)))",
        "['x']",
    ),
    "multiprocessing": (
        """
import multiprocessing
def square(x): return x * x
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(square, range(4)))
""",
        "[0, 1, 4, 9]",
    ),
    "annotations": ("x: int = 3\nprint(x)", "3"),
    "closures see later globals": ("def g(): return later\nlater = 5\nprint(g())", "5"),
    "comprehensions and classes": ("n = 2\nprint([i * n for i in range(3)])", "[0, 2, 4]"),
    "star import": ("from os.path import *\nprint(basename('/a/b'))", "b"),
    "exec and eval": ("exec('v = 1'); print(eval('v + 1'))", "2"),
    "unicode names": ("na\u00efve = 1; print(na\u00efve)", "1"),
    "carriage returns": ("x = 1\r\nprint(x)\r\n", "1"),
    "no code": ("", ""),
    "only a comment": ("# nothing", ""),
    "tabs": ("if True:\n\tprint('tab')", "tab"),
    "null byte is refused": (
        "try:\n    compile('\\0', 'x', 'exec')\nexcept (ValueError, SyntaxError):\n    print('no')",
        "no",
    ),
}


@pytest.mark.parametrize("name", one_in(2, MAIN_MODULE))
def test_main_module(agent: AgentProcess, name: str) -> None:
    code, printed = MAIN_MODULE[name]
    reply = agent.python(code)
    assert (reply.stdout.rstrip("\n"), reply.stderr) == (printed, "")


def test_source_of_functions_of_earlier_executions(agent: AgentProcess) -> None:
    agent.python("def first(x):\n    return x + 1  # one")
    agent.python("def second(x):\n    return x + 2  # two")
    agent.python("import inspect")
    reply = agent.python("print(inspect.getsource(first) + inspect.getsource(second))")
    assert "return x + 1  # one" in reply.stdout
    assert "return x + 2  # two" in reply.stdout


# What is displayed.

DISPLAYS: dict[str, tuple[str, list[str]]] = {
    "trailing expression": ("1 + 1", ["2"]),
    "only the last": ("1\n2\n3", ["3"]),
    "None is not": ("None", []),
    "a statement is not": ("x = 1", []),
    "nor with a semicolon before it": ("x = 1; x", ["1"]),
    "a semicolon behind it suppresses it": ("'\u00fc'; # a comment", []),
    "and behind a continued line": ("(1\n) \\\n;", []),
    "a semicolon in it does not": ("';'  # ;", ["';'"]),
    "nor one where it awaits": ("import asyncio\nawait asyncio.sleep(0, 1);", []),
    "inside a block is not": ("if True:\n    5", []),
    "a string": ("'a\\nb'", ["'a\\nb'"]),
    "a call": ("len('abc')", ["3"]),
    "await": ("import asyncio\nawait asyncio.sleep(0, 'slept')", ["'slept'"]),
    "a lambda's value": ("(lambda: 4)()", ["4"]),
}


@pytest.mark.parametrize("name", DISPLAYS)
def test_displays(shared: AgentProcess, name: str) -> None:
    code, shown = DISPLAYS[name]
    reply = shared.python(code)
    assert (reply.shown, reply.stdout, reply.stderr) == (shown, "", "")


def test_display_keeps_its_place_among_what_is_printed(shared: AgentProcess) -> None:
    reply = shared.python("print('a'); display(1, 'b')\nprint('c')\n'last'")
    assert (reply.stdout, reply.shown) == ("a\n1\n'b'\nc\n", ["'last'"])
    shared.python(
        """
class Picture:
    def __init__(self, name): self.name = name
    def __repr__(self): return self.name
    def _repr_png_(self): return b'png'
class Table:
    def __repr__(self): return 'table'
    def _repr_html_(self): return '<table>'
"""
    )
    reply = shared.python(
        "display(Picture('<Figure>')); print('a'); display(Table()); print('b')\n"
        "display(Picture('a caption')); display(3)\nTable()"
    )
    assert reply.stdout == "[image 1]\na\ntable\nb\n[image 2]\na caption\n3\n"
    assert [bundle.get(PLACE) for bundle in reply.displays] == [1, 0, 2, None]
    assert shared.python("display(Picture(''))").displays[0][PLACE] == 1


@pytest.mark.parametrize(
    "value",
    [
        "[1, {'a': (1,), 2: []}, set(), {3}, frozenset({4}), ()]",
        "(lambda x: x.append(x) or x)([1])",
        "__import__('collections').Counter('hello')",
        "__import__('collections').defaultdict(list, {1: [2]})",
        "({1: 2}.keys(), {1: 2}.values(), {1: 2}.items())",
        "type('Own', (list,), {'__repr__': lambda self: 'own' * 50})([1])",
        "'x' * 200",
    ],
)
def test_what_fits_into_a_line_is_shown_as_repr_has_it(shared: AgentProcess, value: str) -> None:
    assert shared.python(value).shown == [shared.python(f"print(repr({value}))").stdout[:-1]]


def test_long_containers_are_shown_over_lines(shared: AgentProcess) -> None:
    reply = shared.python("[{'name': 'x' * 30, 'values': list(range(20))}, {'name': 'y' * 60}]")
    assert reply.shown == [
        (
            "[{'name': 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',\n"
            "  'values': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,\n"
            "             19]},\n"
            " {'name': 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'}]"
        )
    ]
    (text,) = shared.python("value = [list(range(30))] * 3 + ['x' * 90]\nvalue").shown
    assert shared.python(f"{text} == value").shown == ["True"]
    (deep,) = shared.python("x = []\nfor i in range(400): x = [x]\nx").shown
    assert deep == "[" * 401 + "]" * 401


def test_big_containers_say_how_much_is_left_out(shared: AgentProcess) -> None:
    (text,) = shared.python("list(range(1_000_000))").shown
    last = int(text.split(",\n")[-2].rpartition(" ")[2])
    assert text.endswith(f" ... {1_000_000 - last - 1:,} more]")
    assert 20_000 <= len(text) < 25_000
    (text,) = shared.python("{n: list(range(1000)) for n in range(1000)}").shown
    assert text.endswith(" ... 995 more}")


def test_underscore_holds_the_last_value(shared: AgentProcess) -> None:
    shared.python("41 + 1")
    assert shared.python("print(_)").stdout == "42\n"
    shared.python("None")
    assert shared.python("_ + 1").shown == ["43"]


def test_a_display_hook_of_the_users_own(shared: AgentProcess) -> None:
    shared.python(
        "import sys; keep = sys.displayhook; sys.displayhook = lambda v: print('mine', v)"
    )
    assert shared.python("5").stdout == "mine 5\n"
    shared.python("sys.displayhook = keep")


def test_rich_representations(shared: AgentProcess) -> None:
    shared.python(
        """
class Rich:
    def __repr__(self): return 'plain'
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '**m**'
    def _repr_png_(self): return b'png'
    def _repr_json_(self): return {'a': [1, None]}
    def _repr_latex_(self): return None
class Bundle:
    def __repr__(self): return 'plain'
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/csv': 'a,b', 'image/jpeg': b'jpg'}, {'meta': 1}
class Broken:
    def __repr__(self): return 'plain'
    def _repr_html_(self): raise ValueError('no html')
    def _repr_json_(self): return {float('nan'): object()}
"""
    )
    assert shared.python("Rich()").displays == [
        {
            "text/plain": "plain",
            "text/html": "<b>",
            "text/markdown": "**m**",
            "image/png": base64.b64encode(b"png").decode(),
            "application/json": {"a": [1, None]},
        }
    ]
    assert shared.python("Bundle()").displays == [
        {
            "text/plain": "plain",
            "text/csv": "a,b",
            "image/jpeg": base64.b64encode(b"jpg").decode(),
        }
    ]
    broken = shared.python("Broken()")
    assert broken.displays == [{"text/plain": "plain"}]
    assert "ValueError: no html" in broken.stderr
    assert broken.exit_code == 0
    # A class has its instances' methods; that does not make it one of them.
    assert list(shared.python("Rich").displays[0]) == ["text/plain"]


def test_a_repr_that_fails_is_the_codes_error(shared: AgentProcess) -> None:
    reply = shared.python("class A:\n    def __repr__(self): return 1/0\nA()")
    assert reply.exit_code == 1
    assert "ZeroDivisionError" in reply.stderr
    assert "sandbox_agent" not in reply.stderr


def test_displays_survive_the_end_of_the_interpreter(agent: AgentProcess) -> None:
    reply = agent.python(
        "class Seen:\n    def __repr__(self): return 'seen'\n"
        "    def _repr_html_(self): return '<seen>'\n"
        "display(Seen()); print('printed'); import os; os._exit(3)"
    )
    assert (reply.shown, reply.stdout, reply.exit_code) == (["seen"], "seen\nprinted\n", 3)


def test_displays_are_bounded(agent: AgentProcess) -> None:
    reply = agent.python(
        "class Long:\n    def __repr__(self): return '.'\n"
        "    def _repr_html_(self): return 'x' * 1_000_000\n"
        "for i in range(30): display(Long())\nprint('end')"
    )
    assert 5 <= sum("text/html" in bundle for bundle in reply.displays) <= 8
    assert reply.shown[-1].startswith("[display left out")
    assert (len(reply.displays), reply.stdout) == (30, ".\n" * 30 + "end\n")
    assert agent.python("'next'").shown == ["'next'"]


def test_the_beginning_of_a_long_value_is_shown(agent: AgentProcess) -> None:
    shown = f"'{'x' * (2**20 - 1)}\n[... {100_000_002 - 2**20:,} characters more ...]"
    assert agent.python("'x' * 10**8").shown == [shown]
    heavy = "def _repr_html_(self): return 'x' * 10**7\n def __repr__(self): return 'heavy'"
    assert agent.python(f"class A:\n {heavy}\nA()").shown[0].startswith("heavy\n[display left")


PYPLOT = """
import matplotlib.pyplot as plt
plt.figure(1); plt.figure(2)
"""

MATPLOTLIB = {
    "matplotlib/__init__.py": "",
    "matplotlib/figure.py": """
class Figure:
    stale = True
    def __init__(self, number):
        self.number = number
        self.children = ['background', 'axes']
    def __repr__(self): return f'<Figure {self.number}>'
    def get_children(self): return self.children
    def savefig(self, file, **options):
        if self.number == 13: raise RuntimeError('cannot draw')
        self.stale = True
        if isinstance(file, str): print(file, 'has', self.number)
        else: file.write(b'png of %d' % self.number + b'+' * (len(self.children) - 2))
    def show(self, warn=True): raise AttributeError('no window')
""",
    "matplotlib/pyplot.py": """
import atexit
from matplotlib.figure import Figure
figures = {}
current = None
def get_fignums(): return sorted(figures)
def gcf(): return figures[current] if current in figures else figure(99)
def savefig(file): gcf().savefig(file)
def show():
    import warnings
    warnings.warn('FigureCanvasAgg is non-interactive, and thus cannot be shown', stacklevel=2)
    warnings.warn('Another warning', stacklevel=2)
def figure(number):
    global current
    current = number
    return figures.setdefault(number, Figure(number))
def close(which):
    for figure in [each for each in figures.values() if which in ('all', each)]:
        del figures[figure.number]
atexit.register(close, 'all')
""",
}


def add_modules(agent: AgentProcess, modules: Mapping[str, str]) -> None:
    for name, text in modules.items():
        path = agent.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def pictures(reply: Reply) -> list[bytes]:
    return [base64.b64decode(each["image/png"]) for each in reply.displays]


SHOWS = {
    "IPython/core/interactiveshell.py": """
class InteractiveShell:
    @staticmethod
    def initialized(): return False
""",
    "IPython/core/display_functions.py": """
def display(*values, raw=False): print('a shell is missing')
def publish_display_data(data): print('a shell is missing')
def clear_output(wait=False): print('a shell is missing')
""",
    "IPython/display.py": "from IPython.core.display_functions import *",
    "PIL/ImageShow.py": """
viewers = []
class Viewer: pass
def register(viewer, order): viewers.append(viewer)
""",
    "bokeh/util/browser.py": "def get_browser_controller(browser=None): return browser",
    "plotly/io/__init__.py": """
def to_html(figure, full_html, include_plotlyjs, validate): return '<b>figure</b>'
""",
    "plotly/io/_renderers.py": """
class ExternalRenderer: pass
class renderers(dict): default = None
renderers = renderers()
""",
}
"""Parts of libraries that show values, as the libraries have them."""


def test_libraries_that_show_values_elsewhere_display_them(agent: AgentProcess) -> None:
    add_modules(agent, SHOWS)
    agent.python("class Rich:\n    def _repr_html_(self): return '<i>rich</i>'")
    reply = agent.python(
        "from IPython.display import *\n"
        "display(Rich(), 5); display({'text/html': 'raw'}, raw=True)\n"
        "publish_display_data({'text/html': 'data'}); clear_output()"
    )
    assert [each["text/html"] for each in reply.displays] == ["<i>rich</i>", "raw", "data"]
    assert "missing" not in reply.stdout
    reply = agent.python(
        "import PIL.ImageShow; print(PIL.ImageShow.viewers[0].show(Rich(), title=''))"
    )
    assert [each["text/html"] for each in reply.displays] == ["<i>rich</i>"]
    reply = agent.python(
        "import bokeh.util.browser as b; open('page.html', 'w').write('<i>page</i>')\n"
        "print(b.get_browser_controller().open('file:///proc/self/cwd/page.html', new=2))"
    )
    assert reply.displays[0]["text/html"] == "<i>page</i>"
    reply = agent.python(
        "from plotly.io._renderers import *\n"
        "renderers[renderers.default].render({'data': [{'type': 'bar'}]})"
    )
    assert (reply.stdout, reply.displays[0]["text/html"]) == ("Figure of bar\n", "<b>figure</b>")


def test_open_figures_are_displayed_and_closed(agent: AgentProcess) -> None:
    add_modules(agent, MATPLOTLIB)
    assert agent.python("import sys; 'matplotlib' in sys.modules").shown == ["False"]
    reply = agent.python(PYPLOT + "None")
    assert pictures(reply) == [b"png of 1", b"png of 2"]
    assert reply.shown == ["<Figure 1>", "<Figure 2>"]
    assert agent.python("1").shown == ["1"]
    shown = agent.python("_ = plt.figure(3); plt.show()")
    assert pictures(shown) == [b"png of 3"]
    assert "Another warning" in shown.stderr
    assert "non-interactive" not in shown.stderr
    broken = agent.python("_ = plt.figure(13); 1/0")
    assert "cannot draw" in broken.stderr
    assert broken.exit_code == 1
    assert agent.python("plt.figures").shown == ["{}"]


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        ("plt.show(); plt.close('all')", (1, 2)),
        ("plt.show(); plt.show()", (1, 2)),
        ("last = plt.gcf(); plt.show(); last.savefig('x'); plt.show()", (1, 2)),
        ("last = plt.gcf(); plt.show(); last.children.append(0); last.stale = True", (1, 2, 2)),
        ("plt.show(); plt.savefig('x')", (1, 2)),
        ("plt.show(); assert plt.gcf().number == 99", (1, 2, 99)),
        ("plt.show(); _ = plt.gcf().children.pop()", (1, 2)),
        ("display(plt.gcf()); plt.close('all')", (2,)),
        ("display(plt.gcf())", (2, 1)),
        ("plt.gcf()", (2, 1)),
        ("plt.gcf().show(); plt.close('all')", (2,)),
        ("plt.close('all')", ()),
    ],
)
def test_each_figure_that_is_shown_is_one_picture(
    agent: AgentProcess, code: str, numbers: tuple[int, ...]
) -> None:
    add_modules(agent, MATPLOTLIB)
    reply = agent.python(PYPLOT + code)
    assert reply.exit_code == 0, reply.stderr
    seen = [each.rstrip(b"+") for each in pictures(reply)]
    assert seen == [b"png of %d" % number for number in numbers]


@pytest.mark.parametrize("end", ["", "; import sys; sys.exit(0)", "; plt.show()"])
def test_figures_of_a_one_shot_are_displayed_before_the_program_ends(
    agent: AgentProcess, end: str
) -> None:
    add_modules(agent, MATPLOTLIB)
    reply = agent.python(f"import matplotlib.pyplot as plt; _ = plt.figure(1){end}", one_shot=True)
    assert (reply.exit_code, pictures(reply)) == (0, [b"png of 1"])


# Await.


def test_the_loop_lives_as_long_as_the_interpreter(agent: AgentProcess) -> None:
    agent.python("import asyncio")
    assert agent.python("one = await asyncio.sleep(0, asyncio.get_running_loop())").exit_code == 0
    assert agent.python("one is await asyncio.sleep(0, asyncio.get_running_loop())").shown == [
        "True"
    ]
    assert agent.python("asyncio.get_event_loop_policy().get_event_loop() is one").shown[-1:] == [
        "True"
    ]


def test_tasks_run_while_the_session_idles(agent: AgentProcess) -> None:
    code = """
import asyncio
from pathlib import Path
async def work():
    await asyncio.sleep(0.05)
    Path('ticked').touch()
    return 'result'
async def start(): return asyncio.create_task(work())
task = await start()
"""
    assert agent.python(code).exit_code == 0
    becomes_true((agent.workspace / "ticked").exists, "the task has run")
    assert agent.python("await task").shown == ["'result'"]


def test_a_loop_that_code_asked_for_is_the_one(agent: AgentProcess) -> None:
    agent.python("import asyncio\nasync def work(event): event.set(); return 1")
    agent.python(
        "event = asyncio.Event()\ntask = asyncio.get_event_loop().create_task(work(event))"
    )
    assert agent.python("await event.wait(), await task").shown == ["(True, 1)"]


def test_await_in_every_form(shared: AgentProcess) -> None:
    code = """
import asyncio, contextlib
async def numbers():
    for i in range(3):
        await asyncio.sleep(0)
        yield i
@contextlib.asynccontextmanager
async def scope():
    print('in'); yield 'x'; print('out')
async for i in numbers(): print(i)
async with scope() as x: print(x)
print([i async for i in numbers()])
value = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
print(value)
"""
    assert shared.python(code).stdout == "0\n1\n2\nin\nx\nout\n[0, 1, 2]\n[1, 2]\n"


def test_asyncio_run_works_in_every_execution(shared: AgentProcess) -> None:
    shared.python("import asyncio\nasync def main(): return await asyncio.sleep(0, 'ran')")
    for _ in range(3):
        assert shared.python("asyncio.run(main())").shown == ["'ran'"]
        assert shared.python("await main()").shown == ["'ran'"]


def test_a_loop_runs_all_through_code_that_awaits(shared: AgentProcess) -> None:
    reply = shared.python(
        "import asyncio\n"
        "task = asyncio.create_task(asyncio.sleep(0, 'done'))\n"
        "loop = asyncio.get_running_loop()\n"
        "print(await task)\n"
        "asyncio.get_running_loop() is loop"
    )
    assert (reply.stdout, reply.shown, reply.stderr) == ("done\n", ["True"], "")
    reply = shared.python("asyncio.get_running_loop()")
    assert "RuntimeError: no running event loop" in reply.stderr  # as at other prompts
    reply = shared.python(
        "nothing = asyncio.sleep(0)\ntry: asyncio.run(nothing)\nfinally: await nothing"
    )
    assert "asyncio.run() cannot be called from a running event loop" in reply.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="not here: a task cannot be given a context")
def test_what_code_that_awaits_sets_a_context_variable_to(shared: AgentProcess) -> None:
    shared.python("import asyncio, contextvars; v = contextvars.ContextVar('v', default=0)")
    shared.python("await asyncio.sleep(0); token = v.set(1)")
    assert shared.python("print(v.get()); v.reset(token); v.get()").shown == ["0"]
    shared.python("v.set(2)")
    assert shared.python("await asyncio.sleep(0, v.get())").shown == ["2"]


# What code leaves under way.

STILL = "still under way: what is printed there comes with the next result"


def test_what_is_still_under_way_is_told_once(agent: AgentProcess) -> None:
    reply = agent.python(
        "import asyncio, threading\nend = threading.Event()\n"
        "thread = threading.Thread(target=end.wait); thread.start()\n"
        "threading.Thread(target=end.wait, daemon=True).start()\n"
        "tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(2)]\n"
        "await asyncio.sleep(0)"
    )
    assert reply.frame["notes"] == [f"1 thread and 2 asyncio tasks {STILL}"]
    assert "notes" not in agent.python("pass").frame
    reply = agent.python("threading.Thread(target=end.wait).start()")
    assert reply.frame["notes"] == [f"1 thread {STILL}"]
    agent.python("end.set(); [task.cancel() for task in tasks];")


def test_an_idle_pool_is_not_under_way(agent: AgentProcess) -> None:
    code = """
import asyncio, concurrent.futures, sys, threading
pool = concurrent.futures.ThreadPoolExecutor(1)
name = pool.submit(threading.get_ident).result()
while sys._current_frames()[name].f_code.co_name != "_worker": pass
"""
    assert "notes" not in agent.python(code).frame


def test_a_one_shot_waits_for_threads_and_calls_exit_functions(agent: AgentProcess) -> None:
    reply = agent.python(
        "import atexit, threading, time\n"
        "atexit.register(print, 'bye')\n"
        "def work(): main.join(0.05); print('worked')\n"
        "main = threading.main_thread()\n"
        "threading.Thread(target=work).start()\n"
        "raise SystemExit(3)",
        one_shot=True,
    )
    assert (reply.stdout, reply.stderr, reply.exit_code) == ("worked\nbye\n", "", 3)
    assert "notes" not in reply.frame


def test_what_a_one_shot_leaves_running_is_counted(agent: AgentProcess) -> None:
    helper = "from multiprocessing import resource_tracker as r; r.ensure_running()\n"
    assert "notes" not in agent.python(helper, one_shot=True).frame
    code = f"{helper}import os, subprocess; subprocess.Popen(['sleep', '300'])\n"
    for end in ("os._exit(0)", "raise SystemExit"):
        (note,) = agent.python(code + end, one_shot=True).frame["notes"]
        assert note.startswith("1 background process was still running when the code ended")


def test_a_one_shot_waits_within_its_time_limit(agent: AgentProcess) -> None:
    reply = agent.python(
        "import threading; threading.Thread(target=threading.Event().wait).start(); print('end')",
        one_shot=True,
        timeout_s=1.5,
    )
    assert (reply.stdout, reply.stderr, reply.exit_code) == ("end\n", "", 124)
    assert reply.frame["notes"] == ["the code had ended, but not 1 thread that it started"]


def test_a_one_shot_cancels_tasks_as_asyncio_run_does(agent: AgentProcess) -> None:
    code = """
import asyncio
async def work():
    try: await asyncio.sleep(60)
    finally: print('cancelled')
async def fail():
    try: await asyncio.sleep(60)
    finally: raise ValueError('at the end')
tasks = [asyncio.create_task(work()), asyncio.create_task(fail())]
await asyncio.sleep(0)
"""
    reply = agent.python(code, one_shot=True)
    assert (reply.stdout, reply.exit_code) == ("cancelled\n", 0)
    assert "ValueError: at the end" in reply.stderr
    assert "sandbox_agent" not in reply.stderr
    assert reply.frame["notes"] == [
        "2 asyncio tasks cancelled, since the code had ended: await what has to finish"
    ]


# Hints.


@pytest.mark.parametrize(
    ("code", "note"),
    [
        (
            "files = !ls -l",
            (
                "`files = !ls -l` is IPython syntax: run the command in a Bash environment, or "
                "with subprocess.run('ls -l', shell=True)"
            ),
        ),
        (
            "import os\n%matplotlib inline",
            (
                "`%matplotlib inline` is a magic of IPython, which plain Python does not have: "
                "leave the line out: figures are shown anyway"
            ),
        ),
        (
            "%%unknown\nx",
            (
                "`%%unknown` is a magic of IPython, which plain Python does not have: leave it "
                "out, or write it in Python"
            ),
        ),
        ("df.head?", "`df.head?` is IPython syntax: help(df.head) prints the documentation"),
        (
            "x = 1\npip install numpy",
            (
                "`pip install numpy` is a shell command: run it in a Bash environment, or with "
                "subprocess.run('pip install numpy', shell=True)"
            ),
        ),
        (
            "ls -la",
            (
                "`ls -la` is a shell command: run it in a Bash environment, or with "
                "subprocess.run('ls -la', shell=True)"
            ),
        ),
        ("cd sub/dir", "`cd sub/dir` is a shell command: os.chdir changes the directory"),
    ],
)
def test_a_hint_for_what_is_not_python(shared: AgentProcess, code: str, note: str) -> None:
    reply = shared.python(code)
    assert (reply.exit_code, reply.frame["notes"]) == (1, [note])


@pytest.mark.parametrize(
    "call", ["asyncio.run(f())", "asyncio.get_event_loop().run_until_complete(f())"]
)
def test_a_hint_for_a_second_event_loop(shared: AgentProcess, call: str) -> None:
    code = f"import asyncio\nasync def f(): pass\nawait asyncio.sleep(0)\n{call}"
    (note,) = shared.python(code).frame["notes"]
    assert note.startswith("code with `await` runs in an event loop already: write `await f()`")


def test_a_hint_for_a_missing_ipython(shared: AgentProcess) -> None:
    missing = "import sys; sys.modules['IPython'] = None; from IPython.display import HTML"
    (note,) = shared.python(f"try:\n    {missing}\nfinally: del sys.modules['IPython']").frame[
        "notes"
    ]
    assert note.startswith("`display(...)` is built in here and needs no import")


@pytest.mark.parametrize(
    "code",
    ["x = (1 +", "undefined", "def f(): return ls\nf()", "'%d' % 'a'", "raise NameError", "x?y"],
)
def test_no_hint_for_other_errors(shared: AgentProcess, code: str) -> None:
    reply = shared.python(code)
    assert reply.exit_code == 1
    assert "notes" not in reply.frame


# Debuggers.


@pytest.mark.parametrize(
    "code",
    ["x = 1\nbreakpoint()\nx", "import pdb\ndef f():\n    pdb.set_trace()\n    return 1\nf()"],
)
def test_a_debugger_ends_the_code_with_a_message(shared: AgentProcess, code: str) -> None:
    reply = shared.python(code)
    assert reply.stderr == (
        "The debugger ended the code: standard input is empty, so nobody can answer its prompt. "
        "Leave breakpoint() and pdb out, and print what you want to see.\n"
    )
    assert reply.exit_code == 1
    assert "(Pdb)" in reply.stdout
    assert "sandbox_agent" not in reply.stdout
    assert shared.python("import sys; sys.gettrace()").shown == []


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_tracers_see_frames_of_code_only(agent: AgentProcess, kind: str) -> None:
    agent.python(
        "import asyncio, sys\nfiles = {}\ndef seen(frame, event, argument):\n"
        "    files.setdefault(frame.f_code.co_filename, frame.f_code.co_name); return seen\n"
        f"sys.set{kind}(seen)\nprint(1)\n2"
    )
    assert agent.python(f"sys.get{kind}() is seen").shown == ["True"]
    assert agent.python(
        f"sys.set{kind}(None); {{*files}} <= {{'<exec 1>', '<exec 2>', '<exec 3>'}}"
    )
    agent.python(f"sys.set{kind}(seen)\nprint(await asyncio.sleep(0, 3))\n4")
    reply = agent.python(f"sys.set{kind}(None); [each for each in files if 'agent' in each]")
    assert reply.shown == ["[]"]


def test_context_variables_and_errors_in_awaits(shared: AgentProcess) -> None:
    reply = shared.python("async def bad():\n    raise ValueError('inside')\nawait bad()")
    assert reply.exit_code == 1
    assert re.fullmatch(
        r"Traceback \(most recent call last\):\n"
        r'  File "<exec \d+>", line 3, in <module>\n    await bad\(\)\n'
        r'  File "<exec \d+>", line 2, in bad\n    raise ValueError\(\'inside\'\)\n'
        r"ValueError: inside\n",
        reply.stderr,
    )
    assert shared.python("import sys\nasync def leave(): sys.exit(4)\nawait leave()").exit_code == 4
    assert shared.python("print('on')").stdout == "on\n"


def test_a_closed_loop_is_replaced(shared: AgentProcess) -> None:
    shared.python("import asyncio\nawait asyncio.sleep(0)")
    shared.python("asyncio.get_event_loop_policy().get_event_loop().close()")
    assert shared.python("await asyncio.sleep(0, 1)").shown == ["1"]


def test_an_exception_in_an_idle_task_ends_nothing(agent: AgentProcess) -> None:
    agent.python(
        "import asyncio, sys, os\nasync def leave():\n"
        "    await asyncio.sleep(0.01); open('left', 'w').close(); sys.exit(3)\nkept = 1"
    )
    agent.python("async def start(): return asyncio.create_task(leave())\nt = await start()")
    becomes_true((agent.workspace / "left").exists, "the task has ended")
    reply = agent.python("kept")
    assert reply.shown == ["1"]
    assert not reply.interpreter_restarted


# Tracebacks.


def test_a_traceback_shows_the_users_lines_and_nothing_of_the_agent(shared: AgentProcess) -> None:
    shared.python("def inner(x):\n    return 1 / x")
    reply = shared.python("def outer():\n    return inner(0)\n\nouter()")
    text = re.sub(r"\n +[~^]+\n", "\n", re.sub(r"<exec \d+>", "<exec>", reply.stderr))
    text = re.sub(r"\n +[~^]+(?=\n)", "", text)
    assert text == (
        "Traceback (most recent call last):\n"
        '  File "<exec>", line 4, in <module>\n    outer()\n'
        '  File "<exec>", line 2, in outer\n    return inner(0)\n'
        '  File "<exec>", line 2, in inner\n    return 1 / x\n'
        "ZeroDivisionError: division by zero\n"
    )
    assert reply.exit_code == 1


def test_the_name_counts_executions(agent: AgentProcess) -> None:
    agent.python("1")
    assert '"<exec 2>"' in agent.python("1/0").stderr


def test_a_syntax_error_points_at_the_place(shared: AgentProcess) -> None:
    reply = shared.python("x = 1\ny = x x\n")
    lines = reply.stderr.splitlines()
    assert re.fullmatch(r'  File "<exec \d+>", line 2', lines[0])
    assert lines[1] == "    y = x x"
    assert lines[2].index("^") in {8, 10}
    assert lines[3].startswith("SyntaxError: ")
    assert reply.exit_code == 1


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('second') from e",
        "try:\n    1/0\nexcept Exception:\n    raise ValueError('second')",
    ],
)
def test_chained_exceptions(shared: AgentProcess, code: str) -> None:
    reply = shared.python(code)
    assert "ZeroDivisionError" in reply.stderr
    assert "ValueError: second" in reply.stderr
    assert "sandbox_agent" not in reply.stderr


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def f(): f()\nf()", "RecursionError"),
        ("import importlib; importlib.import_module('no_such')", "ModuleNotFoundError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class E(BaseException): ...\nraise E('odd')", "E: odd"),
        ("class E(Exception):\n    def __str__(self): 1/0\nraise E", "E: <"),
        ("raise 5", "TypeError: exceptions must derive"),
        ("assert 1 == 2, 'unequal'", "AssertionError: unequal"),
        ("x = 'a' * 10**15", "MemoryError"),
    ],
)
def test_exceptions_end_with_their_name_and_without_frames_of_the_agent(
    shared: AgentProcess, code: str, part: str
) -> None:
    reply = shared.python(code)
    assert part in reply.stderr
    assert "sandbox_agent" not in reply.stderr
    assert reply.exit_code == (130 if "KeyboardInterrupt" in code else 1)
    assert not reply.interpreter_restarted


def test_an_excepthook_of_the_users_own(shared: AgentProcess) -> None:
    shared.python("import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)")
    reply = shared.python("1/0")
    assert (reply.stdout, reply.stderr, reply.exit_code) == ("hook ZeroDivisionError\n", "", 1)
    shared.python("sys.excepthook = sys.__excepthook__")


def test_exceptions_in_threads(shared: AgentProcess) -> None:
    reply = shared.python(
        "import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start()\nt.join()"
    )
    assert "ZeroDivisionError" in reply.stderr
    assert reply.exit_code == 0


# Streams and descriptors.


def test_writes_of_all_kinds_keep_their_order(shared: AgentProcess) -> None:
    reply = shared.python(
        """
import os, subprocess, sys, ctypes
print('a', flush=False)
os.write(1, b'b\\n')
sys.stdout.write('c')
sys.stdout.buffer.write(b'd\\n')
subprocess.run(['echo', 'e'])
os.system('echo f')
print('g', end='')
libc = ctypes.CDLL(None); libc.puts(b'h'); libc.fflush(None)
print('1', file=sys.stderr)
os.write(2, b'2\\n')
subprocess.run('echo 3 >&2', shell=True)
"""
    )
    assert reply.stdout == "a\nb\ncd\ne\nf\ngh\n"
    assert reply.stderr == "1\n2\n3\n"


def test_input_is_empty(shared: AgentProcess) -> None:
    reply = shared.python("input('name? ')")
    assert reply.stdout == "name? "
    assert "EOFError: EOF when reading a line" in reply.stderr
    assert shared.python("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"
    assert shared.python("import os; print(os.read(0, 10))").stdout == "b''\n"
    assert shared.python("import subprocess as s; s.run(['cat'])").exit_code == 0


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.close(1); os.close(2); os.close(0)",
        "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import sys; sys.stdout = sys.stderr = sys.stdin = None",
        "import os; f = os.open('/dev/null', os.O_RDWR); os.dup2(f, 1); os.dup2(f, 2)",
        "import sys; del sys.stdout",
        "import os; os.set_blocking(1, False)",
        "import sys, io; sys.stdout.detach()",
    ],
)
def test_descriptors_and_streams_are_restored(shared: AgentProcess, code: str) -> None:
    shared.python(code)
    reply = shared.python(
        "import sys, os\nprint('out'); print('err', file=sys.stderr)\nos.system('echo sh')"
    )
    assert (reply.stdout, reply.stderr) == ("out\nsh\n", "err\n")
    assert not reply.interpreter_restarted


def test_code_may_redirect_its_own_stdout(shared: AgentProcess) -> None:
    shared.python("import contextlib, io, sys")
    reply = shared.python(
        "with contextlib.redirect_stdout(io.StringIO()) as s: print('in')\ns.getvalue()"
    )
    assert (reply.stdout, reply.shown) == ("", ["'in\\n'"])
    shared.python("sys.stdout = mine = io.StringIO()")
    assert shared.python("print('kept')").stdout == ""
    assert shared.python("sys.stdout = sys.__stdout__; mine.getvalue()").shown == ["'kept\\n'"]


def test_closing_every_descriptor_answers_and_starts_again(agent: AgentProcess) -> None:
    reply = agent.python("import os\nprint('before')\nos.closerange(0, 1000)")
    assert reply.stdout == "before\n"
    assert reply.interpreter_restarted
    later = agent.python("print('after', 'os' in globals())")
    assert later.stdout == "after False\n"
    assert later.interpreter_restarted
    assert not agent.python("1").interpreter_restarted


def test_descriptors_that_replace_private_ones_are_noticed(agent: AgentProcess) -> None:
    code = "import os\nfor fd in range(3, 1000):\n    try: os.dup2(2, fd)\n    except OSError: pass"
    reply = agent.python(code)
    assert reply.exit_code == 0
    assert reply.interpreter_restarted
    assert agent.python("print(1)").stdout == "1\n"


def test_children_inherit_nothing_private(shared: AgentProcess) -> None:
    code = "import subprocess; print(subprocess.getoutput('ls /proc/self/fd'), end='')"
    assert shared.python(code).stdout.split() == ["0", "1", "2", "3"]  # 3 is ls reading
    fork = """
import os
pid = os.fork()
if not pid:
    print(max(map(int, os.listdir('/proc/self/fd'))) < 100)
    os._exit(0)
_ = os.waitpid(pid, 0)
"""
    assert shared.python(fork).stdout == "True\n"


def test_a_forked_child_that_reaches_the_end_just_ends(shared: AgentProcess) -> None:
    reply = shared.python(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint(pid > 0)\npid > 0"
    )
    assert sorted(reply.stdout.split()) == ["False", "False", "True"]  # the child shows on stdout
    assert reply.shown == ["True"]
    assert shared.python("print('one')").stdout == "one\n"


def test_a_program_that_replaces_the_interpreter(agent: AgentProcess) -> None:
    reply = agent.python(
        "import os\nprint('me')\nos.execvp('sh', ['sh', '-c', 'echo other; exit 5'])"
    )
    assert (reply.stdout, reply.exit_code) == ("me\nother\n", 5)
    assert reply.interpreter_restarted


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os; os.abort()", 134),
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_an_interpreter_that_dies(agent: AgentProcess, code: str, exit_code: int) -> None:
    agent.python("kept = 1")
    agent.bash("kept=2")
    reply = agent.python(f"print('before'); {code}")
    assert (reply.stdout, reply.exit_code) == ("before\n", exit_code)
    assert reply.interpreter_restarted
    assert "its state and its background processes are gone" in reply.restart_reason
    later = agent.python("'kept' in globals()")
    assert later.shown == ["False"]
    assert later.interpreter_restarted
    assert later.restart_reason == reply.restart_reason
    assert not agent.python("1").interpreter_restarted
    assert agent.bash("echo $kept").stdout == "2\n"


def test_ten_thousand_lines_and_a_big_write(shared: AgentProcess) -> None:
    reply = shared.python("for i in range(10_000): print(i)")
    assert reply.stdout == "".join(f"{i}\n" for i in range(10_000))
    big = shared.python("print('x' * 700_000)")
    assert len(big.stdout) == 700_001


def test_background_threads_print_into_the_next_execution(agent: AgentProcess) -> None:
    agent.python(
        "import threading\ngo = threading.Event()\n"
        "def late(): go.wait(); print('late'); done.set()\ndone = threading.Event()\n"
        "threading.Thread(target=late).start()"
    )
    assert agent.python("go.set(); done.wait(120)").stdout == "late\n"


def test_sources_and_memory_do_not_pile_up(agent: AgentProcess) -> None:
    for _ in range(600):
        agent.python("1")
    count = agent.python("import linecache; sum(n.startswith('<exec') for n in linecache.cache)")
    assert int(count.shown[0]) <= 500
    assert json_of(agent.python("import os; print(len(os.listdir('/proc/self/fd')))")) < 20


def test_the_environments_packages_are_importable(tmp_path: Path, agent: AgentProcess) -> None:
    reply = agent.python(
        "import sys\nprint(sys.path[0] == '', sys.flags.isolated, sys.flags.no_site)"
    )
    assert reply.stdout == "True 1 0\n"


def test_a_loop_that_is_asked_for_before_the_first_await_is_the_one(agent: AgentProcess) -> None:
    reply = agent.python(
        "import asyncio, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "loop = asyncio.get_event_loop()\n"
        "future = loop.create_future()\n"
        "loop.call_soon(future.set_result, 5)\n"
        "print(await future, asyncio.get_running_loop() is loop)"
    )
    assert reply.stdout == "5 True\n", reply.stderr


@pytest.mark.parametrize("terms", [100, 900, 3000, 20_000])
def test_a_text_as_deep_as_python_takes_it(shared: AgentProcess, terms: int) -> None:
    code = f"x = {'1+' * terms}1\nprint(x)"
    plain = subprocess.run([PYTHON, "-"], input=code, capture_output=True, text=True, check=False)
    reply = shared.python(code)
    assert (reply.stdout, reply.exit_code) == (plain.stdout, plain.returncode)
    assert not reply.interpreter_restarted


def test_nothing_stays_of_the_rehearsal(agent: AgentProcess) -> None:
    """The agent has run code once before anybody asked."""
    code = """
import linecache, sys
print([name for name in linecache.cache if name.startswith("<exec")])
print(sorted(name for name in globals() if not name.startswith("__")), sys.displayhook(None))
"""
    reply = agent.python(code)
    assert reply.stdout == "['<exec 1>']\n['linecache', 'sys'] None\n"
    assert not reply.interpreter_restarted
    assert reply.displays == []
    assert 'File "<exec 2>", line 1' in agent.python("1 / 0").stderr
