"""Python code that the conformance cases do not tell: notes, places of displays,
figures, one-shots, and what the agent keeps for itself."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping
from typing import Any

import pytest

from agent_process import AGENT, AgentProcess, Reply, json_of
from nsm.wire.code import PLACE
from venvs import make_venv

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
    ("code", "about", "instead"),
    [
        ("files = !ls -l", "`files = !ls -l` is IPython", "subprocess.run('ls -l', shell=True)"),
        ("import os\n%matplotlib inline", "`%matplotlib inline` is a magic", "shown anyway"),
        ("%%unknown\nx", "`%%unknown` is a magic of IPython", "leave it out"),
        ("df.head?", "`df.head?` is IPython syntax", "help(df.head)"),
        (
            "x = 1\npip install numpy",
            "`pip install numpy` is a shell",
            "'pip install numpy', shell",
        ),
        ("ls -la", "`ls -la` is a shell command", "subprocess.run('ls -la', shell=True)"),
        ("cd sub/dir", "`cd sub/dir` is a shell command", "os.chdir"),
        *[
            (
                f"import asyncio\nasync def f(): pass\nawait asyncio.sleep(0)\n{call}",
                "code with `await` runs in an event loop already",
                "`await f()`",
            )
            for call in ("asyncio.run(f())", "asyncio.get_event_loop().run_until_complete(f())")
        ],
        (
            (
                "import sys; sys.modules['IPython'] = None\n"
                "try: from IPython.display import HTML\nfinally: del sys.modules['IPython']"
            ),
            "`display(...)` is built in",
            "needs no import",
        ),
    ],
)
def test_an_error_of_other_shells_has_a_hint(
    shared: AgentProcess, code: str, about: str, instead: str
) -> None:
    reply = shared.python(code)
    (note,) = reply.frame["notes"]
    assert (reply.exit_code, note.startswith(about), instead in note) == (1, True, True), note


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


# Times of imports, in results.

SLOW_S = 0.06
SLOW = f"import time; time.pass_for_imports({SLOW_S})"
CLOCK = """
import sys, time
real, now_s = time.monotonic, 0.0
def monotonic():
    asks = sys._getframe(1).f_globals["__name__"]
    return now_s if asks == "sandbox.workers.python.library" else real()
def pass_for_imports(seconds):
    global now_s
    now_s += seconds
time.monotonic, time.pass_for_imports = monotonic, pass_for_imports
"""
"""A clock that stands still for whoever times imports, so that no import is slow by chance."""

MODULES = {
    "clock_of_imports": CLOCK,
    "slow": f"{SLOW}; import slow_too",
    "slow_too": SLOW,
    "quick": "",
    "broken": f"{SLOW}; 1/0",
}


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    """An agent on a Python with slow modules."""
    directory = tmp_path_factory.mktemp("venv")
    packages = make_venv(directory, MODULES)
    (packages / "clock.pth").write_text("import clock_of_imports\n")
    (packages / "whole").mkdir()
    (packages / "whole/__init__.py").write_text("")
    (packages / "whole/part.py").write_text(SLOW)
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / "own.py").write_text(SLOW)
    python = str(directory / "bin/python3")
    agent = AgentProcess(
        [python, "-I", str(AGENT), "--workspace", str(workspace)], workspace=workspace
    )
    try:
        yield agent
    finally:
        agent.close()


def told(agent: AgentProcess, code: str, **options: Any) -> dict[str, float]:
    """Times of imports that the result of some code has, in a new interpreter."""
    reply = agent.python(code, reset=True, **options)
    assert reply.exit_code == 0, reply.stderr
    found: dict[str, float] = reply.frame.get("imports", {})
    return found


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import slow", ["slow"]),
        ("import slow_too, slow, quick", ["slow_too", "slow"]),
        ("import whole.part as part", ["whole.part"]),
        ("from whole import part", ["whole.part"]),
        ("import importlib; importlib.import_module('slow')", ["slow"]),
        ("def f():\n    import slow\nf(); f()", ["slow"]),
        ("import asyncio\nawait asyncio.sleep(0)\nimport slow", ["slow"]),
        ("import quick", []),
        ("import own", []),
        ("try:\n    import broken\nexcept ZeroDivisionError: pass", []),
        ("import threading as t\nx = t.Thread(target=__import__, args=('slow',))\nx.start()", []),
        ("import os\nif os.fork() == 0:\n    import slow; os._exit(0)\n_ = os.wait()", []),
    ],
)
def test_slow_imports_of_installed_modules_are_told(
    imports: AgentProcess, code: str, modules: list[str]
) -> None:
    found = told(imports, code)
    assert list(found) == modules
    for module in modules:
        with_another = module == "slow" and "slow_too" not in found  # which it imports itself
        assert found[module] == pytest.approx(2 * SLOW_S if with_another else SLOW_S)


def test_each_import_is_told_once(imports: AgentProcess) -> None:
    assert list(told(imports, "import slow_too")) == ["slow_too"]
    reply = imports.python("import slow_too, slow")
    assert list(reply.frame["imports"]) == ["slow"]
    assert "imports" not in imports.python("import slow").frame


def test_a_one_shot_tells_them(imports: AgentProcess) -> None:
    assert list(told(imports, "import slow", one_shot=True)) == ["slow"]


def test_a_traceback_shows_nothing_of_it(imports: AgentProcess) -> None:
    code = """
import traceback
try:
    import broken
except ZeroDivisionError:
    traceback.print_exc()
"""
    lines = imports.python(code, reset=True).stderr.splitlines()
    assert len([line for line in lines if line.startswith("  File ")]) == 2, lines
    lines = imports.python("import nonesuch", reset=True).stderr.splitlines()
    assert len([line for line in lines if line.startswith("  File ")]) == 1, lines


def test_forged_times_of_imports_are_bounded(imports: AgentProcess) -> None:
    code = """
import json, os, struct
def say(module, seconds):
    text = json.dumps({"type": "imported", "module": module, "seconds": seconds}).encode()
    os.write(FD, struct.pack(">I", len(text)) + text)
for FD in range(100, 1100):
    try:
        kind = os.readlink(f"/proc/self/fd/{FD}")
    except OSError:
        continue
    if kind.startswith("socket:"):
        break
for name in ("a b", "; rm -rf ~", "x" * 101, "a..b", "\\u0430", "", None, 7, ["x"]):
    say(name, 1.0)
for seconds in (-1, 1e10, "1", None, True):
    say("seconds", seconds)
for number in range(1000):
    say(f"m{number}", 0.25)
"""
    found = told(imports, code)
    assert found == {f"m{number}": 0.25 for number in range(16)}
