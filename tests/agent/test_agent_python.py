"""Python code that the conformance cases do not tell: notes, places of displays,
figures, one-shots, and what the agent keeps for itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent_process import AgentProcess, Reply, json_of
from nsm.wire.code import PLACE

# What is displayed.


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
def test_short_values_are_shown_as_repr_has_them(shared: AgentProcess, value: str) -> None:
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
        ("last = plt.gcf(); plt.show(); last.savefig('x'); plt.show()", (1, 2)),
        ("last = plt.gcf(); plt.show(); last.children.append(0); last.stale = True", (1, 2, 2)),
        ("plt.show(); plt.savefig('x')", (1, 2)),
        ("plt.show(); assert plt.gcf().number == 99", (1, 2, 99)),
        ("plt.show(); _ = plt.gcf().children.pop()", (1, 2)),
        ("display(plt.gcf()); plt.close('all')", (2,)),
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


@pytest.mark.parametrize("end", ["; import sys; sys.exit(0)", "; plt.show()"])
def test_figures_of_a_one_shot_are_displayed_before_the_program_ends(
    agent: AgentProcess, end: str
) -> None:
    add_modules(agent, MATPLOTLIB)
    reply = agent.python(f"import matplotlib.pyplot as plt; _ = plt.figure(1){end}", one_shot=True)
    assert (reply.exit_code, pictures(reply)) == (0, [b"png of 1"])


# What code leaves under way.

STILL = "still under way: what is printed there comes with the next result"


def test_threads_and_tasks_under_way_are_told_once(agent: AgentProcess) -> None:
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


def test_processes_left_by_a_one_shot_are_counted(agent: AgentProcess) -> None:
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


# Streams and descriptors.


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
