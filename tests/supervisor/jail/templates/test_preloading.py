"""Modules that are preloaded: what they may need, and what is said of those that fail."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from nsmd.host.processes import children_of
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.values import Environment
from realjail import is_fork, needs_bwrap, new_launcher, open_directory, open_session
from sandbox.template import server
from venvs import WRITES, in_venv, make_venv

pytestmark = [pytest.mark.jail, needs_bwrap]

MODULES = {
    "plots": WRITES,
    "broken": "raise ValueError('two\\nlines')",
    "leaves": "import sys; sys.exit(3)",
    "threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True)"
    ".start()",
    "shares": "import mmap; shared = mmap.mmap(-1, 4096)",
    "shares_nameless": "import mmap, os; fd = os.memfd_create('shared'); "
    "os.ftruncate(fd, mmap.PAGESIZE); "
    "shared = mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)",
    "shares_file": "import mmap, tempfile; file = tempfile.NamedTemporaryFile(); "
    "file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)",
}
HOOKED = """
import os
seen = []
os.register_at_fork(
    before=lambda: seen.append("before"),
    after_in_child=lambda: seen.append("child"),
    after_in_parent=lambda: seen.append("parent"),
)
"""
LOCKS = """
import os, threading
lock = threading.Lock()
os.register_at_fork(
    before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release
)
"""
RAISES = """
import os
def fail():
    raise ValueError("in a fork")
os.register_at_fork(before=fail, after_in_child=fail)
"""
KEEPS = """
from os import register_at_fork
seen = []
def register():
    register_at_fork(after_in_child=lambda: seen.append("child"))
"""
HOOKING = {"hooked": HOOKED, "locks": LOCKS, "raises": RAISES, "keeps": KEEPS}
LOADED = "import sys; print([name for name in NAMES if name in sys.modules])"


@pytest.fixture
def venv() -> Generator[Path]:
    with open_directory("/var/tmp") as directory:
        make_venv(directory, {**MODULES, **HOOKING})
        yield directory


@asynccontextmanager
async def open_launcher() -> AsyncGenerator[TemplateLauncher]:
    async with open_templates(new_launcher()) as made:
        assert isinstance(made, TemplateLauncher)
        yield made


async def test_a_module_may_write_while_it_is_imported(python: Environment, venv: Path) -> None:
    """To HOME, or where a variable of the environment says; each fork has such a directory, empty
    and its own."""
    code = "import os, sys; assert 'plots' in sys.modules; import plots; print(plots.save('mine'))"
    look = "import os; print(sorted(os.listdir(PLACE)))"
    for variables, place in (
        ({}, "/workspace/.config/plots"),
        ({"PLOTS_DIR": "/tmp/plots/here", "PLOTS_STYLE": "dark"}, "/tmp/plots/here"),
    ):
        environment = in_venv(python, venv, "plots", **variables)
        async with open_launcher() as forking:
            async with (
                open_session(environment, launcher=forking) as one,
                open_session(environment, launcher=forking) as other,
            ):
                assert is_fork(one.jail)
                assert (await one.run(code)).stdout == "['saved']\n"
                assert (await other.run(look.replace("PLACE", repr(place)))).stdout == "[]\n"
                style = await one.run("print(plots.STYLE)")
                assert style.stdout == variables.get("PLOTS_STYLE", "none") + "\n"
                assert one.jail.remarks() == ()
            assert forking.reasons == {}
            assert forking.unloaded == {}


async def test_forks_inherit_the_pages_of_large_libraries(python: Environment) -> None:
    """Mappings that the template has written to: the kernel copies their page tables."""
    async with open_launcher() as forking, open_session(python, launcher=forking) as session:
        assert is_fork(session.jail)
        smaps = Path(f"/proc/{forking.templates[0].forker_pid}/smaps").read_text()
        found = re.findall(
            r"^(\w+)-(\w+) r-xp .*?^Anonymous: +(\d+) kB$", smaps, re.MULTILINE | re.DOTALL
        )
        large = [own for start, end, own in found if int(end, 16) - int(start, 16) >= 256 * 1024]
        assert large
        assert "0" not in large


FONTS = """
import os
os.makedirs("/workspace/.cache/matplotlib")
with open("/workspace/.cache/matplotlib/fontlist-v9.json", "w") as file:
    file.write("fonts")
"""
LIST_FONTS = (
    "import glob, sys; print([open(path).read() for path in glob.glob('/workspace/.cache/*/*')"
    "], 'matplotlib' in sys.modules)"
)


def add_matplotlib(venv: Path, fonts: str) -> Path:
    package = next(venv.glob("lib/python3*/site-packages")) / "matplotlib"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "font_manager.py").write_text(fonts)
    return package


async def test_a_list_of_fonts_is_made_beside_the_first_sessions(
    python: Environment, venv: Path
) -> None:
    package = add_matplotlib(
        venv,
        f"""
import os
with open(f"{{__file__}}.began", "w") as file:
    file.write(str(os.getuid()))
os.open(f"{{__file__}}.go", os.O_RDONLY)
{FONTS}""",
    )
    for name in ("began", "go"):
        os.mkfifo(package / f"font_manager.py.{name}")
        (package / f"font_manager.py.{name}").chmod(0o666)  # the jails' user has another id
    environment = in_venv(python, venv, "plots")
    async with open_launcher() as forking:
        async with open_session(environment, launcher=forking) as session:
            assert is_fork(session.jail)
            assert (await session.run(LIST_FONTS)).stdout == "[] False\n"
        began = await trio.to_thread.run_sync(
            (package / "font_manager.py.began").read_bytes, abandon_on_cancel=True
        )
        assert int(began) == 65534  # in a user namespace without rights over the sessions
        (lister,) = children_of(forking.templates[0].forker_pid)
        ended = os.pidfd_open(lister)
        with os.fdopen(ended):
            await trio.to_thread.run_sync(
                (package / "font_manager.py.go").write_bytes, b"", abandon_on_cancel=True
            )
            await trio.lowlevel.wait_readable(ended)
        async with open_session(environment, launcher=forking) as session:
            assert is_fork(session.jail)
            assert (await session.run(LIST_FONTS)).stdout == "['fonts'] False\n"
        assert len(forking.templates) == 1
        assert forking.unloaded == {}


async def test_fork_hooks_may_take_a_lock_fail_or_be_registered_late(
    python: Environment, venv: Path
) -> None:
    code = """
import keeps, locks, os
print(locks.lock.locked(), flush=True)
keeps.register()
if (pid := os.fork()) == 0:
    print(locks.lock.locked(), keeps.seen, flush=True)
    os._exit(0)
_ = os.waitpid(pid, 0)
"""
    environment = in_venv(python, venv, "locks", "raises", "keeps")
    async with open_launcher() as forking, open_session(environment, launcher=forking) as session:
        assert is_fork(session.jail)
        assert (await session.run(code)).stdout == "False\nFalse ['child']\n"


async def test_a_module_that_fails_does_not_drop_the_others(
    python: Environment, venv: Path
) -> None:
    wanted = tuple(MODULES)
    environment = in_venv(python, venv, *wanted, "nonesuch", "colorsys")
    async with open_launcher() as forking:
        await forking.try_preloading(environment)
        failed = dict(text.split(": ", 1) for text in forking.unloaded["science"])
        assert set(failed) == {*wanted, "nonesuch"} - {"plots"}
        assert failed["broken"] == "ValueError: two lines"
        assert failed["leaves"] == "SystemExit: 3"
        assert failed["nonesuch"] == "ModuleNotFoundError: No module named 'nonesuch'"
        assert "starts a thread" in failed["threads"]
        assert "shared memory" in failed["shares"]
        assert "shared memory" in failed["shares_file"]
        assert "shared memory" in failed["shares_nameless"]
        async with open_session(environment, launcher=forking) as session:
            assert is_fork(session.jail)
            names = repr([*wanted, "colorsys"])
            loaded = await session.run(LOADED.replace("NAMES", names))
            assert loaded.stdout == "['plots', 'colorsys']\n"
            (remark,) = session.jail.remarks()
            assert remark.startswith("not preloaded in science: broken: ValueError: two lines; ")
        # It is said once.
        async with open_session(environment, launcher=forking) as session:
            assert session.jail.remarks() == ()


async def test_a_template_tells_its_modules_their_times_and_its_memory(
    python: Environment, venv: Path
) -> None:
    environment = in_venv(python, venv, "plots", "nonesuch")
    async with open_launcher() as forking:
        trial = await forking.try_template(environment)
        assert list(trial.imported) == ["plots"]
        assert 0 <= trial.imported["plots"] < 20
        assert list(trial.failed) == ["nonesuch"]
        assert trial.memory_bytes is not None
        assert 1 << 20 < trial.memory_bytes < 1 << 30
        assert forking.templates == [], "it was a trial"
        assert forking.unloaded == {}
        async with open_session(environment, launcher=forking):
            (template,) = forking.templates_of(environment)
            assert list(template.imported) == ["plots"]
            assert forking.templates_of(replace(environment, preload=())) == []
            failing = replace(environment, preload=("plots", "broken"))
            assert (await forking.try_template(failing, environment)).failed
            assert forking.templates == [template]
            newer = replace(environment, preload=("plots", "hooked"))
            await forking.try_template(newer, environment)
            (other,) = forking.templates_of(newer)
            forking.replace(environment, newer)
            await trio.testing.wait_all_tasks_blocked()
            assert forking.templates_of(newer) == [other]
            assert list(other.imported) == ["plots", "hooked"]
            assert other.pid != template.pid
            assert template.is_open


def test_a_list_of_fonts_that_ends_at_once_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates ignore SIGCHLD, so a child is gone as soon as it has ended, for example where
    there may be no more user namespaces.
    """

    def found(_name: str) -> object:
        return object()

    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    monkeypatch.setattr(server, "SCRATCH", (str(tmp_path),))
    monkeypatch.setattr(server, "FONT_LISTS", str(tmp_path / "fontlist-*"))
    monkeypatch.setattr("importlib.util.find_spec", found)
    monkeypatch.setattr(os, "fork", lambda: ended)
    assert server.start_font_list() == -1
