"""Sessions of an image's Python, whose interpreters are forks of one that has imported already."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from image_world import Layout, environment_of, give_to_jails, make_image, make_store, python_layer
from isolation.stage import open_stage
from isolation.weaken import Weakness
from isolation.weakjails import WeakLauncher, forking
from nsm.dataclass import replace
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.jail.templates import template as template_module
from nsmd.model.values import Environment, SessionLimits
from nsmd.packages.images.image_root import shown_image
from processes import tree
from realjail import (
    LiveSession,
    jail_spec,
    launched,
    new_launcher,
    open_directory,
    open_session,
    talking_to,
)

pytestmark = pytest.mark.jail

HEAVY = """
import os, random, time
made_in = os.getpid()
number = random.random()
"""

SHARING = """
import mmap
memory = mmap.mmap(-1, 4096)
"""
STAYING = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
"""
OPENING = """
import os
import re
numbers = os.pipe()
"""
THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""

DEAF = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
"""
UNFORKING = """
import os, time
os.register_at_fork(before=lambda: time.sleep(1e6))
"""

FILTERING = """
import ctypes, struct
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
"""
TALKING = """
import os, socket
def replace_input():  # the last that runs before the fork, after the worker has looked
    empty = os.stat(0)
    ends = socket.socketpair()
    for fd in range(3, 4096):
        try:
            if os.path.samestat(os.stat(fd), empty):
                break
        except OSError:
            pass
    os.dup2(ends[0].fileno(), 0)
    os.dup2(ends[1].fileno(), fd)
os.register_at_fork(before=replace_input)
"""

REACHING = """
import ctypes, os
def reached(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        found.append("memory")
    except OSError:
        pass
    if libc.ptrace(0x4206, pid, None, None) == 0:  # PTRACE_SEIZE
        found.append("traced")
    return found
others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
others = [pid for pid in others if pid not in (os.getpid(), os.getppid())] + [os.getppid()]
outside = {pid: reached(pid) for pid in others}
child = os.fork()
if child == 0:
    import time
    time.sleep(1000)
inside = reached(child)
os.kill(child, 9)
"""

MODULES = tuple(
    (f"{name}.py", text)
    for name, text in {
        "heavy": HEAVY,
        "sharing": SHARING,
        "staying": STAYING,
        "opening": OPENING,
        "thread": THREAD,
        "hanging": "import time; time.sleep(1e6)",
        "deaf": DEAF,
        "stopping": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "unforking": UNFORKING,
        "filtering": FILTERING,
        "talking": TALKING,
        "reaching": REACHING,
    }.items()
)
"""Names and texts of modules of the image. Some leave things that all forks would share."""


@pytest.fixture(scope="module")
def image() -> Iterator[Environment]:
    """Return an environment of an image with Python."""
    with open_directory() as place:
        make_store(place)
        layout = Layout(place / "layout")
        layout.add([python_layer(*MODULES)], Env=["PATH=/opt/python/bin", "OF_IMAGE=yes"])
        name = f"oci:{layout.place}"
        made = trio.run(make_image, place, name)
        yield environment_of(place, made, name)


@asynccontextmanager
async def session_of(
    environment: Environment, *preload: str
) -> AsyncGenerator[tuple[LiveSession, TemplateLauncher], None]:
    """Make a session of an image that preloads modules, and templates."""
    environment = replace(environment, preload=preload)
    async with (
        open_templates(new_launcher()) as launcher,
        open_session(environment, launcher=launcher) as session,
    ):
        assert isinstance(launcher, TemplateLauncher)
        yield session, launcher


async def test_the_interpreter_of_an_image_is_a_fork_with_its_modules(image: Environment) -> None:
    async with session_of(image, "heavy") as (session, launcher):
        ran = await session.run("import os, sys; print('heavy' in sys.modules)")
        assert (ran.stdout, ran.stderr) == ("True\n", "")
        ran = await session.run("import heavy; print(heavy.made_in != os.getpid(), os.getppid())")
        assert (ran.stdout, ran.stderr) == ("True 1\n", "")
        (template,) = launcher.templates
        assert set(template.imported) == {"heavy"}
        assert not template.failed


@pytest.mark.slow
async def test_workers_leave_nothing_behind(image: Environment) -> None:
    """The model of the workers reaps nothing, and sessions come and go."""
    async with session_of(image, "heavy") as (session, launcher):
        counts: list[int] = []
        environment = replace(image, preload=("heavy",))
        for _ in range(4):
            async with open_session(environment, launcher=launcher) as other:
                assert (await other.run("print(1)")).stdout == "1\n"
            counts.append(await processes_left(launcher, session.jail.template_pid))
        assert counts == [counts[0]] * 4


async def processes_left(launcher: TemplateLauncher, jail: int) -> int:
    """Count the processes of a template's jail, once those of ended sessions are gone."""
    counts = [0]
    while len(counts) < 4 or len(set(counts[-3:])) > 1:
        await trio.sleep(0.02)
        counts.append(len(set(tree(jail))))
    return counts[-1]


async def test_a_worker_is_shut_in_like_any_other(image: Environment) -> None:
    code = """
import json, os, time
def is_alone():
    return sorted(pid for pid in os.listdir("/proc") if pid.isdigit()) == ["1", str(os.getpid())]
until_s = time.monotonic() + 10  # what was started to make it may still be ending
while not is_alone() and time.monotonic() < until_s:
    time.sleep(0.01)
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":", 1) for line in lines)
print(json.dumps([
    [status[each].strip() for each in ("CapPrm", "CapBnd", "Seccomp", "NoNewPrivs")],
    is_alone(),
]))
"""
    async with session_of(image, "heavy") as (session, _):
        rights, is_alone = json.loads((await session.run(code)).stdout)
        assert rights == ["0" * 16, "0" * 16, "2", "1"]
        assert is_alone


@pytest.mark.slow
async def test_each_worker_has_random_numbers_of_its_own(image: Environment) -> None:
    async with session_of(image, "heavy") as (session, launcher):
        code = "import heavy, random; print(heavy.number, random.random())"
        environment = replace(image, preload=("heavy",))
        async with open_session(environment, launcher=launcher) as other:
            first = (await session.run(code)).stdout.split()
            second = (await other.run(code)).stdout.split()
        assert first[0] == second[0]
        assert first[1] != second[1]


async def test_an_interpreter_that_ends_is_forked_again(image: Environment) -> None:
    async with session_of(image, "heavy") as (session, _):
        assert (await session.run("import os; os._exit(3)")).exit_code == 3
        ran = await session.run("import sys; print('heavy' in sys.modules)")
        assert ran.stdout == "True\n"
        assert ran.interpreter_restarted


async def test_a_program_in_a_fresh_interpreter_belongs_to_its_runner(image: Environment) -> None:
    """A fork would be a child of PID 1, and its runner could not end it."""
    async with session_of(image, "heavy") as (session, _), session.runner() as runner:
        ran = await runner.run("import os; print(os.getppid() > 1, os.getcwd())")
        assert re.fullmatch(r"True /workspace/\.fresh/[\w-]+\n", ran.stdout)
        endless = await runner.run("while True: pass", timeout_s=0.5)
        assert endless.timed_out
        assert (await runner.run("import heavy; print(1)")).stdout == "1\n"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("sharing", "shares memory"),
        ("thread", "1 threads beside its main one"),
        ("filtering", "filter of system calls"),
    ],
)
async def test_modules_that_no_fork_can_have_are_left_out(
    image: Environment, module: str, why: str
) -> None:
    async with session_of(image, module) as (session, launcher):
        (template,) = launcher.templates
        assert why in template.failed[module]
        assert (await session.run(f"import {module}; print(1)")).stdout == "1\n"
        assert launcher.unloaded["web"]


@pytest.mark.slow
async def test_programs_that_imports_start_are_ended(image: Environment) -> None:
    async with session_of(image, "staying") as (session, _):
        assert (await session.run("print(1)")).stdout == "1\n"
        # The model, what will enter the next session, and the worker; no fourth one.
        assert pythons(session).count(b"/opt/python/bin/python3") == 3


@pytest.mark.slow
async def test_descriptors_that_imports_open_are_closed(image: Environment) -> None:
    async with session_of(image, "opening") as (session, _):
        code = """
import opening, os
for number in opening.numbers:
    try:
        print(os.readlink(f"/proc/self/fd/{number}"))
    except OSError as error:
        print(type(error).__name__)
"""
        assert (await session.run(code)).stdout == "FileNotFoundError\n" * 2


@pytest.mark.slow  # it takes the time that an import has
@pytest.mark.parametrize("module", ["hanging", "deaf", "stopping"])
async def test_a_module_that_hangs_is_left_out(image: Environment, module: str) -> None:
    async with session_of(image, "heavy", module) as (session, launcher):
        (template,) = launcher.templates
        assert template.failed == {module: "it takes longer than 30 s"}
        assert await loaded(session) == {"heavy"}
        assert launcher.unloaded["web"] == [f"{module}: it takes longer than 30 s"]
        # Nothing of the one that hung is left: the model, what enters the next session, a worker.
        assert pythons(session).count(b"/opt/python/bin/python3") == 3


@pytest.mark.slow  # as above
async def test_sessions_start_where_the_fork_hangs(image: Environment) -> None:
    """The modules are imported, and what they run before a fork does not return."""
    async with session_of(image, "heavy", "unforking") as (session, launcher):
        (template,) = launcher.templates
        why = "the image's Python cannot be forked: it does not fork within 15 s"
        assert template.failed == dict.fromkeys(("heavy", "unforking"), why)
        assert (await session.run("print(1)")).stdout == "1\n"
        # The keeper has ended, too: this is the session's own.
        assert pythons(session).count(b"/opt/python/bin/python3") == 1


@pytest.mark.slow
async def test_a_template_whose_image_says_nothing_is_given_up(
    image: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_module, "IMPORT_TIMEOUT_S", 1.0)
    async with session_of(image, "hanging") as (session, launcher):
        assert not launcher.templates
        # On a busy machine it may not have begun to import by then.
        why = r"the image's Python(, which imports hanging,)? said nothing for 1 s"
        assert re.fullmatch(why, launcher.reasons["web"])
        assert (await session.run("print(1)")).stdout == "1\n"


async def loaded(session: LiveSession) -> set[str]:
    """Return which of the image's own modules a session has."""
    ran = await session.run("import sys; print(*sys.modules)")
    return {name.partition(".")[0] for name, _ in MODULES} & set(ran.stdout.split())


def pythons(session: LiveSession) -> list[bytes]:
    """Return the programs of all processes below a session's template."""
    return [
        Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        for pid in list(tree(session.jail.template_pid))[1:]
    ]


async def test_modules_that_replace_standard_input_are_not_forked(image: Environment) -> None:
    async with session_of(image, "heavy", "talking") as (session, launcher):
        (template,) = launcher.templates
        assert "standard input" in template.failed["heavy"]
        code = "import os, stat; print(stat.S_ISCHR(os.fstat(0).st_mode))"
        assert (await session.run(code)).stdout == "True\n"


CROSSED = """
equip = space["ModelWorker"]._equip
def crossed(self, worker, numbers):
    out, err, control, page = numbers
    equip(self, worker, (err, out, control, page))
space["ModelWorker"]._equip = crossed
"""
PAGE_ELSEWHERE = """
equip = space["ModelWorker"]._equip
def elsewhere(self, worker, numbers):
    known, self._page = self._page, 0x10000000000
    try:
        equip(self, worker, numbers)
    finally:
        self._page = known
space["ModelWorker"]._equip = elsewhere
"""


@pytest.mark.slow
@pytest.mark.parametrize("weakness", [CROSSED, PAGE_ELSEWHERE], ids=["descriptors", "page"])
async def test_a_worker_that_has_others_descriptors_or_page_is_not_used(
    image: Environment, weakness: str
) -> None:
    """The session starts its interpreter as a program instead."""
    environment = replace(image, preload=("heavy",))
    with open_stage() as stage:
        weak = WeakLauncher(Weakness(template=weakness), stage)
    async with forking(weak) as launcher, open_session(environment, launcher=launcher) as session:
        (template,) = launcher.templates
        assert set(template.imported) == {"heavy"}
        ran = await session.run("import heavy, os; print(heavy.made_in == os.getpid())")
        assert ran.stdout == "True\n"


async def test_imports_reach_nothing_of_the_template(image: Environment) -> None:
    """They run beside it, as the same user; the same attempts succeed with a child of theirs."""
    async with session_of(image, "reaching") as (session, launcher):
        (template,) = launcher.templates
        assert not template.failed
        ran = await session.run("import reaching; print(reaching.outside); print(reaching.inside)")
        outside, inside = map(ast.literal_eval, ran.stdout.splitlines())
        assert inside == ["memory", "traced"]
        assert len(outside) == 3  # bwrap, the template, the keeper
        assert not any(outside.values())


def writable_of(image: Environment) -> Environment:
    """Return the same environment, with a root directory that sessions may change."""
    assert image.image is not None
    root = Path(image.image.directory)
    give_to_jails(root)
    shown = shown_image(str(root.parent), image.agent_python, (), writable=True)
    return replace(image, image=shown.image, binds=shown.binds, links=shown.links)


async def test_undo_takes_back_changes_of_a_writable_root(image: Environment) -> None:
    limits = SessionLimits(undo=3)
    spec = jail_spec(replace(writable_of(image), preload=("heavy",)))
    look = """
import os
print(sorted(os.listdir("/opt")), os.path.exists(heavy.__file__), os.stat("/tmp").st_mode & 0o7777)
"""
    change = """
os.mkdir("/opt/new"); os.unlink(heavy.__file__)
with open("/opt/python/new", "w") as file: file.write("new")
"""
    async with (
        open_templates(new_launcher(limits)) as launcher,
        launched(launcher, spec) as jail,
        talking_to(jail, "python", {"undo": 3}) as session,
    ):
        before = (await session.run(f"import heavy{look}")).stdout
        assert before == f"['python'] True {0o1777}\n"
        await session.run(change)
        assert (await session.run(look)).stdout == f"['new', 'python'] False {0o1777}\n"
        undone = await session.run("", undo=2)
        assert undone.exit_code == 0
        assert not [note for note in undone.notes if "not as they were" in note]
        assert (await session.run(look)).stdout == before
        assert (await session.run("print(os.path.exists('/opt/python/new'))")).stdout == "False\n"


@pytest.mark.slow
async def test_a_writable_root_has_forks_until_code_may_have_changed_modules(
    image: Environment,
) -> None:
    writable = writable_of(image)
    change = """
import heavy
with open(heavy.__file__, "a") as file:
    file.write("changed = True\\n")
__import__("os")._exit(0)
"""
    async with session_of(writable, "heavy") as (session, launcher):
        (template,) = launcher.templates
        assert set(template.imported) == {"heavy"}
        ran = await session.run("import heavy, os, sys; print(heavy.made_in == os.getpid())")
        assert ran.stdout == "False\n"
        await session.run(change)
        ran = await session.run(
            "import heavy, os; print(heavy.changed, heavy.made_in == os.getpid())"
        )
        assert ran.stdout == "True True\n"
