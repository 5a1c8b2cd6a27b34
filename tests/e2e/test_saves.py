"""Sessions saved in files, and made of files again, by a real supervisor."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import signal
import stat
import subprocess
import tarfile
import textwrap
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import e2e_support
import nsm
from e2e_support import Supervisor, program, supervisor
from nsm.client.sandbox import Sandbox
from nsm.saves import RestoredRow, SaveError, Saves, interpreters, kept
from nsm.saves.save_file import PARTS
from nsm.saves.saving import Saving
from nsm.wire.errors import BadRequestError, NsmError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.jail

STATE = """
import math, os
from functools import lru_cache

shared = [1, 2]
first, second = {"list": shared}, [shared]
x = 5

def add(y=1):
    return x + y + math.floor(math.pi)

@lru_cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Base:
    def hello(self):
        return f"hello {x}"

class Derived(Base):
    count = 0

    def hello(self):
        return super().hello() + "!"

Derived.count = 7
thing = Derived()
things = [thing]
square = lambda v: v * v + x
os.environ["MINE"] = "mine"
os.makedirs("below/deep", exist_ok=True)
os.chdir("below")
log = open("log.txt", "w")
log.write("one ")
open("/tmp/note", "w").write("of tmp")
"""
"""Code that makes state of all kinds that a save has."""

CHECKS = """
import sys
log.write("two")
log.flush()
shared.append(3)
assert first == {"list": [1, 2, 3]} and second == [[1, 2, 3]], (first, second)
assert add() == 9 and fib(20) == 6765 and square(2) == 9
assert thing.hello() == "hello 5!" and things[0] is thing and isinstance(thing, Base)
assert Derived.count == 7
x = 10
assert add() == 14 and square(2) == 14 and thing.hello() == "hello 10!"
assert os.getcwd() == "/workspace/below" and os.path.isdir("deep")
assert open("log.txt").read() == "one two" and open("/tmp/note").read() == "of tmp"
assert os.environ["MINE"] == "mine"
assert not os.path.exists("/tmp/.nsm-save")
assert not [name for name in sys.modules if name.startswith("_nsm")]
"""


@pytest.fixture
def client(
    shared: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[nsm.Client]:
    """A client of the module's supervisor, with a directory of its own for saves."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with shared.client() as client:
        yield client
        client.kill_all()


def run(client: nsm.Client, code: str, session: str = "work") -> str:
    """Run code that is not to fail; returns what it printed."""
    result = client.run(code, env="python", session=session)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def outcomes(rows: tuple[RestoredRow, ...]) -> dict[str, str]:
    return {row.name: row.why for row in rows}


def rewrite(
    path: str, change: Callable[[str, bytes], bytes], *, shrink: int = 0, **facts: object
) -> None:
    """Write a save again with other parts, and right hashes, as whoever made it could.

    Args:
        shrink: by how much the state is said to be smaller than it is.
        facts: for its manifest.
    """
    with zipfile.ZipFile(path) as old:
        parts = {name: change(name, old.read(name)) for name in PARTS}
        manifest = json.loads(old.read("manifest.json")) | facts
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            digest = hashlib.sha256(content).hexdigest()
            size = len(content) - (shrink if name == "state.tar" else 0)
            manifest["parts"][name] = {"size": size, "sha256": digest}
            new.writestr(name, content)
        new.writestr("manifest.json", json.dumps(manifest))


def retarred(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """A tar archive with other files."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=out, mode="w") as new,
    ):
        for member in old:
            data = old.extractfile(member)
            if data is None:
                new.addfile(member)
                continue
            changed = change(member.name, data.read())
            member.size = len(changed)
            new.addfile(member, io.BytesIO(changed))
    return out.getvalue()


def test_a_session_outlives_its_supervisor_and_goes_on_under_another_one(
    tmp_path: Path, client: nsm.Client
) -> None:
    """Variables, definitions, files and the rest are in one file, which is enough."""
    path = tmp_path / "work.nsmsave"
    with supervisor() as first, first.client() as own:
        run(own, STATE)
        saved = Saves(own).save("work", str(path))
        assert saved.not_saved == ()
        assert saved.notes == ()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        run(own, CHECKS)  # the original, which goes on
    restored = Saves(client).restore(str(path))
    assert [row for row in restored.rows if not row.restored] == []
    assert {row.name for row in restored.rows} == set(saved.names)
    run(client, CHECKS)
    run(client, "assert __builtins__.__name__ == 'builtins'")


def test_values_that_cannot_be_pickled_are_left_out_with_the_reason(
    client: nsm.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generators, a variable that takes a minute, one that ends the process."""
    monkeypatch.setattr(interpreters, "VARIABLE_S", 2)
    run(
        client,
        """
import os, time
class Slow:
    def __reduce__(self):
        time.sleep(60)
class Crash:
    def __reduce__(self):
        os.kill(os.getpid(), 11)
class Patches:
    def __reduce__(self):
        globals()["before"] = "patched"
        os.environ["PATCHED"] = "1"
        return list, ()
before, slow, crash, patches, after = 1, Slow(), Crash(), Patches(), 2
steps = (i for i in range(3))
next(steps)
""",
    )
    saved = Saves(client).save("work")
    assert {each.name: each.why for each in saved.not_saved} == {
        "slow": "it took longer than 2 s",
        "crash": "pickling it ended the process",
        "steps": "TypeError: cannot pickle 'generator' object",
    }
    # The original is as it was: another process has pickled.
    run(client, "assert before == 1 and next(steps) == 1 and 'PATCHED' not in os.environ")
    restored = Saves(client).restore("work", "again")
    whys = outcomes(restored.rows)
    assert whys["before"] == whys["after"] == ""
    assert whys["steps"] == "TypeError: cannot pickle 'generator' object"
    run(client, "assert (before, after) == (1, 2)", "again")


@pytest.mark.slow
def test_a_variable_that_has_no_room_in_tmp_spoils_nothing(client: nsm.Client) -> None:
    run(client, "import os; free = os.statvfs('/tmp'); x, large = 1, bytearray(2 << 20)")
    run(client, "open('/tmp/fill', 'wb').write(bytes(free.f_bavail * free.f_bsize - (1 << 20)))")
    saved = Saves(client).save("work")
    assert [(each.name, "no room" in each.why) for each in saved.not_saved] == [("large", True)]
    assert {"x", "free"} <= set(saved.names)


def test_only_variables_that_share_an_object_are_pickled_together(client: nsm.Client) -> None:
    """A function that both need to be made again is no such object."""
    run(client, "import re\none, other = re.compile('a'), re.compile('b')")
    run(client, "own = []\nleft, right = [own], {'own': own}")
    with zipfile.ZipFile(Saves(client).save("work").path) as archive:
        content = archive.read("state.tar")
    with tarfile.open(fileobj=io.BytesIO(content)) as parts:
        file = parts.extractfile("state.json")
        assert file is not None
        groups = [set(group["names"]) for group in json.load(file)["groups"]]
    assert groups == [{"one"}, {"other"}, {"own", "left", "right"}]


def test_a_cell_that_made_several_runs_once(client: nsm.Client) -> None:
    run(client, "import threading\nruns = 0")
    run(client, "runs += 1; lock = threading.Lock(); same = lock; steps = (i for i in 'ab')")
    Saves(client).save("work")
    restored = Saves(client).restore("work", "again", rerun=True)
    assert {row.name for row in restored.rows if row.remade} == {"lock", "same", "steps"}
    run(client, "assert runs == 2 and lock is same, runs", "again")


def test_a_file_chooses_no_environment_that_the_user_has_set_up(
    client: nsm.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an environment may have tokens among its variables; a save may be somebody else's."""
    file = str(tmp_path / "choosing.nsmsave")
    client.run("x = 1", env="python", session="choosing")
    Saves(client).save("choosing", file)
    rows = [row._replace(source="pip: six") for row in client.envs()]
    for listed in rows, rows[:0]:
        monkeypatch.setattr(client, "envs", listed.copy)
        with pytest.raises(SaveError, match="A file does not choose an environment"):
            Saves(client).restore(file, "chosen")
    assert Saves(client).restore(file, "chosen", env="python").env == "python"
    Saves(client).save("choosing")
    assert Saves(client).restore("choosing", "chosen-too").env == "python"


def test_no_save_goes_through_a_link_below_the_working_directory(
    client: nsm.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project/out").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "project")
    run(client, "x = 1")
    with pytest.raises(SaveError, match="project/out lies behind a symbolic link"):
        Saves(client).save("work", "out/x.nsmsave")
    Saves(client).save("work", "x.nsmsave")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert os.path.isfile("x.nsmsave")


@pytest.mark.slow
def test_a_save_says_what_its_transcript_lacks(short_dir: Path, tmp_path: Path) -> None:
    with supervisor(short_dir, keep=True) as it:
        with it.client() as client:
            run(client, "x = 1")
        it.kill()
        with supervisor(short_dir) as next_one, next_one.client() as client:
            saved = Saves(client).save("work", str(tmp_path / "work.nsmsave"))
            assert saved.notes == ("the transcript begins with a restart of the supervisor",)
            assert "x" in saved.names


def test_open_files_of_each_kind_are_opened_again(client: nsm.Client) -> None:
    """The same files, also if code has left the directory that their names are relative to."""
    code = """
        import os
        relative = open("relative", "w+"); relative.write("one "); relative.flush()
        binary = open("binary", "wb"); binary.write(b"one ")
        exclusive = open("exclusive", "xb"); exclusive.write(b"one ")
        appended = open("appended", "ab"); appended.write(b"one ")
        both = open("both", "wb+"); both.write(b"one ")
        raw = open("raw", "wb", buffering=0); raw.write(b"one ")
        reader = open("relative", "rb"); reader.read(1)
        os.mkdir("below"); os.chdir("below")
        open("relative", "w").write("another")
    """
    run(client, textwrap.dedent(code))
    saved = Saves(client).save("work")
    assert saved.not_saved == ()
    restored = Saves(client).restore("work", "again")
    assert [row for row in restored.rows if not row.restored] == []
    code = """
        assert reader.read() == b"ne "
        relative.write("two"); relative.close()
        for file in binary, exclusive, appended, both, raw:
            file.write(b"two"); file.close()
        for name in "relative", "binary", "exclusive", "appended", "both", "raw":
            assert open(f"/workspace/{name}").read() == "one two", name
        assert open("relative").read() == "another"
    """
    run(client, textwrap.dedent(code), "again")


def test_variables_of_nsm_are_not_in_a_save(client: nsm.Client) -> None:
    """Values of an environment may be secrets; what code has set is saved."""
    with client.sandbox(env="python", environ={"TOKEN": "s3cret-value"}) as sandbox:
        sandbox.run("import os\nos.environ['OWN'] = os.environ['TOKEN'][:3]")
        saved = Saves(client).save(sandbox.id)
        with zipfile.ZipFile(saved.path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        assert not [name for name, part in parts.items() if b"s3cret-value" in part]
        assert b'"OWN"' in parts["state.tar"]


def test_a_damaged_save_leaves_no_session(client: nsm.Client) -> None:
    """Each byte is checked."""
    run(client, "import os\nnoise = os.urandom(100_000)")
    path = Path(Saves(client).save("work").path)
    whole = path.read_bytes()
    changed, encrypted = bytearray(whole), bytearray(whole)
    changed[len(whole) // 2] ^= 1
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1  # so says the index of the first entry
    for content in (changed, encrypted, whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        with pytest.raises(SaveError):
            Saves(client).restore("work", "again")
    assert [row.name for row in client.sessions()] == ["work"]


def test_a_refused_restore_changes_no_session(client: nsm.Client) -> None:
    run(client, "x = 1")
    Saves(client).save("work")
    with pytest.raises(BadRequestError, match="already"):
        Saves(client).restore("work")
    with pytest.raises(SaveError, match="the save is of python, and the environment 'bash'"):
        Saves(client).restore("work", "refused", env="bash")
    with pytest.raises(NsmError, match="refused"):
        client.inspect("refused")
    run(client, "assert x == 1")


def test_only_automatic_saves_make_room_and_the_oldest_first(client: nsm.Client) -> None:
    for session in ("work", "other", "third"):
        run(client, "x = 1", session)
        Saving(client, session).save(None, timeout_s=None, max_mb=9, automatic=True)
    Saves(client).save("work")
    kept.drop_automatic(kept.used_bytes() - 1)
    assert [save.session for save in kept.listed() if save.automatic] == ["third", "other"]
    kept.drop_automatic(0)
    assert [save.name for save in kept.listed()] == ["work"]


def test_a_save_for_a_newer_nsm_is_refused(client: nsm.Client) -> None:
    run(client, "x = 1")
    path = Saves(client).save("work").path
    rewrite(path, lambda _, part: part, format=99)
    with pytest.raises(SaveError, match="newer"):
        Saves(client).restore("work", "again")


def test_a_hostile_save_acts_in_its_session_only(client: nsm.Client, tmp_path: Path) -> None:
    """A pickle runs code, but in the jail; names that lead out of a directory are left out."""
    run(client, "x = 1")
    saved = Saves(client).save("work")
    marker = tmp_path / "marker"

    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            code = f"import os; open('/tmp/was-here', 'w'); open({str(marker)!r}, 'w')"
            return exec, (code,)

    def change(name: str, content: bytes) -> bytes:
        if name == "state.tar":
            return retarred(
                content,
                lambda file, data: pickle.dumps({"x": Attack()}) if ".pickle" in file else data,
            )
        if name == "workspace.tar":
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as archive:
                for outside in ("../outside", "/absolute", "fine"):
                    archive.addfile(tarfile.TarInfo(outside))
            return out.getvalue()
        return content

    rewrite(saved.path, change)
    restored = Saves(client).restore(saved.path, "again")
    whys = outcomes(restored.rows)
    assert "FileNotFoundError" in whys["x"]
    assert not marker.exists()
    assert "leads out" in whys["/workspace/../outside"]
    assert "absolute" in whys["/workspace//absolute"]
    listed = {entry.name for entry in client.files("again").list()}
    assert listed == {"fine"}
    assert client.files("again").exists("/tmp/was-here")
    assert run(client, "print(x)") == "1\n"  # another session, which notices nothing


def test_another_python_gets_functions_from_their_source(client: nsm.Client) -> None:
    """Say of what has other code in it that it is not restored."""
    run(client, STATE)
    path = Saves(client).save("work").path

    def other(file: str, data: bytes) -> bytes:
        if file != "state.json":
            return data
        return json.dumps({**json.loads(data), "tag": "cpython-39", "version": "3.9.1"}).encode()

    rewrite(path, lambda name, part: retarred(part, other) if name == "state.tar" else part)
    whys = outcomes(Saves(client).restore(path, "again").rows)
    assert {name: why for name, why in whys.items() if why} == {
        "square": "it has code of Python 3.9.1 in it"
    }
    run(client, "assert add() == 9 and fib(9) == 34 and thing.hello() == 'hello 5!'", "again")


TIMES = """
import os
os.makedirs("d/closed"); open("d/closed/file", "w").close(); os.symlink("a", "link")
long = "n" * 120; open(long, "w").close()
for number, name in enumerate(("d/closed/file", "d/closed", "d", "link", long)):
    times = (0, 1_600_000_000_123_456_789 + number * 1_000_000_001)
    os.utime(name, ns=times, follow_symlinks=False)
os.chmod("d/closed", 0o500)
"""

SHOW_TIMES = """
for name in ("d/closed/file", "d/closed", "d", "link", "n" * 120):
    status = os.lstat(name)
    print(oct(status.st_mode), status.st_mtime_ns)
"""


def test_times_of_files_and_directories_are_whole(client: nsm.Client) -> None:
    run(client, TIMES)
    before = run(client, SHOW_TIMES)
    assert "0o40500 1600000001123456790\n" in before
    path = Saves(client).save("work").path
    Saves(client).restore("work", "again")
    assert run(client, SHOW_TIMES, "again") == before

    def as_before(name: str, content: bytes) -> bytes:
        """A part as older versions of nsm have written it, with whole seconds."""
        if name != "workspace.tar":
            return content
        out = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(content)) as new,
            tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as old,
        ):
            for member in new:
                member.mtime = int(member.mtime)
                old.addfile(member, new.extractfile(member) if member.isreg() else None)
        return out.getvalue()

    rewrite(path, as_before)
    Saves(client).restore("work", "older")
    seconds = re.sub(r"\d{9}\n", "000000000\n", before)
    assert run(client, SHOW_TIMES, "older") == seconds


def test_saves_have_a_largest_size(client: nsm.Client) -> None:
    """Nothing is left of one that would be larger, and all saves together have it, too."""
    run(client, "import os\nnoise = os.urandom(3_000_000)")
    with pytest.raises(SaveError, match="larger than 2 MiB"):
        Saves(client).save("work", max_mb=2)
    assert os.listdir(kept.directory()) == []
    Saves(client).save("work", max_mb=4)
    Saves(client).save("work", max_mb=4)  # in place of the older one
    run(client, "import os\nnoise = os.urandom(3_000_000)", "other")
    with pytest.raises(SaveError, match="larger"):
        Saves(client).save("other", max_mb=4)
    assert [row.name for row in kept.listed()] == ["work"]


def test_a_file_with_gaps_is_as_large_as_it_says(client: nsm.Client) -> None:
    """A tar archive has each byte of them, and takes as long to read."""
    run(client, "import os\nfor name in 'ab': os.truncate(os.open(name, 66), 60 << 20)")
    with pytest.raises(SaveError, match="what would be saved is larger than 100 MiB"):
        Saves(client).save("work", max_mb=100)
    run(client, "os.remove('b'), os.truncate('a', 10 << 40)")
    (note,) = Saves(client).save("work").notes
    assert note == f"/workspace/a: has {10 << 40} bytes; the limit is {1 << 30}"


def test_a_file_that_unpacks_to_very_much_is_refused(
    client: nsm.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger could make such a file. No session is begun."""
    run(client, "x = 1")
    path = str(tmp_path / "bomb.nsmsave")
    Saves(client).save("work", path)
    monkeypatch.setattr(kept, "STRANGERS_BYTES", 8 << 20)
    # What follows the end of an archive.
    rewrite(path, lambda name, part: part + bytes(100 << 20) if name == "tmp.tar" else part)
    with pytest.raises(SaveError, match=r"unpacks to 101 MiB, and at most 8 MiB") as caught:
        Saves(client).restore(path, "again")
    assert "--max-mb" in caught.value.hint
    assert [row.name for row in client.sessions()] == ["work"]
    Saves(client).restore(path, "again", max_mb=200)
    rewrite(path, lambda _, part: part, shrink=200 << 20)
    with pytest.raises(SaveError, match=r"state\.tar in the save is not what was written"):
        Saves(client).restore(path, "third")


NODE_STATE = """
const fs = require('fs'), { join } = require('path');
let shared = [1, 2], first = { list: shared }, second = new Map([['k', shared]]);
var old = 5; bare = new Uint8Array([1, 2, 3]);
const when = new Date(0), failure = new TypeError('wrong'), big = 12345678901234567890n;
function add(y = 1) { return old + y + shared.length; }
const twice = (x) => add(x) * 2, alias = add;
class Animal { name() { return 'animal'; } }
class Cat extends Animal { static count = 7; name() { return 'cat, ' + super.name(); } }
async function* numbers() { yield 1; yield* [2]; }
const unnamed = function () { return join('a', 'b'); };
process.env.MINE = 'mine';
fs.mkdirSync('below'); process.chdir('below'); fs.writeFileSync('file', 'content');
"""

NODE_CHECKS = """
shared.push(3);
const all = []; for await (const n of numbers()) all.push(n);
const found = [first.list.length, second.get('k').length, bare.length, when.getTime(), big,
  failure instanceof TypeError && failure.message, add(), twice(1), alias === add,
  new Cat().name(), Cat.count, all.join(), unnamed(), process.env.MINE,
  fs.readFileSync('file', 'utf8'), process.cwd(), fs.existsSync('/tmp/.nsm-save')];
console.log(found.join('|'));
"""

NODE_FOUND = (
    "3|3|3|0|12345678901234567890|wrong|9|18|true|cat, animal|7|1,2|a/b|mine|content|"
    "/workspace/below|false\n"
)


@pytest.mark.node
def test_a_node_session_is_saved_and_restored(client: nsm.Client) -> None:
    """Values by structured clone, functions and classes by source, modules by name."""

    def said(code: str, session: str) -> str:
        result = client.run(code, env="node", session=session)
        return result.stdout + result.stderr

    assert said(NODE_STATE, "js") == ""
    saved = Saves(client).save("js")
    assert saved.not_saved == ()
    assert set(saved.names) == {
        *("fs", "join", "shared", "first", "second", "old", "bare", "when", "failure", "big"),
        *("add", "twice", "alias", "Animal", "Cat", "numbers", "unnamed"),
    }
    assert said(NODE_CHECKS, "js") == NODE_FOUND
    restored = Saves(client).restore("js", "again")
    assert [row for row in restored.rows if not row.restored] == []
    assert said(NODE_CHECKS, "again") == NODE_FOUND
    assert said("old = 10; const add2 = 1; class Animal {}; console.log(add(1))", "again") == "14\n"


@pytest.mark.slow
@pytest.mark.node
def test_node_says_of_each_variable_why_it_is_not_saved(client: nsm.Client) -> None:
    """A clone that would be something else is none, and closures need more than their source."""
    code = """
    class Own {}
    const adder = (n) => (x) => x + n, addFive = adder(5);
    const own = [new Own()], api = { call() {} }, lazy = { get x() { touched = true; } };
    const weak = new WeakMap(), later = Promise.resolve(), bound = addFive.bind(null);
    function Old() {} Old.prototype.hello = () => 'hello';
    let fine = 1, touched = false, proxy = new Proxy({}, {});
    """
    client.run(code, env="node", session="js")
    saved = Saves(client).save("js")
    assert {each.name: each.why for each in saved.not_saved} == {
        "addFive": "it uses variables of the function that made it",
        "own": "it has an object of class Own in it, which would lose its methods",
        "api": "it has a function in it",
        "lazy": "it has a getter or setter, x",
        "weak": "it has an object of class WeakMap in it, which would lose its methods",
        "later": "it has a promise in it",
        "bound": "its source is not known",
        "Old": "it has properties, and only its source can be saved",
        "proxy": "it has a proxy in it",
    }
    whys = outcomes(Saves(client).restore("js", "again").rows)
    assert whys["own"].startswith("it has an object of class Own")
    result = client.run("console.log(fine, touched, adder(1)(2))", env="node", session="again")
    assert result.stdout == "1 false 3\n"


BASH_STATE = r"""
text=$'two\nlines \'quoted\''
list=(a "b c"); declare -A map=([k e]=v [']']=w); declare -i number=3; declare -r fixed=1
declare -n other=text; export EXPORTED=yes
greet() { echo "hello $1 $text"; }
twice() { greet "$1"; greet "$1"; }
export -f twice
alias ll='ls -l'
trap 'echo "caught $text"' USR1
trap 'echo failed' ERR
shopt -s nullglob; umask 027
mkdir -p /workspace/below; cd /workspace/below; echo content >file
set -u
"""

BASH_CHECKS = r"""
[[ $text == $'two\nlines \'quoted\'' && ${list[1]} == "b c" && ${map[k e]} == v ]] || echo bad
[[ ${!map[*]} == *]* ]] || echo bad key
number+=4; [[ $number == 7 && $other == "$text" ]] || echo bad attributes
(fixed=2) 2>/dev/null && echo not fixed
[[ $(greet you) == "hello you $text" ]] || echo bad function
[[ $(bash -c 'declare -F twice') == twice ]] || echo not exported
[[ $(env | grep -c ^EXPORTED=yes) == 1 ]] || echo not exported
[[ ${BASH_ALIASES[ll]} == 'ls -l' && $(umask) == 0027 ]] || echo bad alias or umask
shopt -q nullglob || echo no nullglob
[[ $PWD == /workspace/below && $(<file) == content ]] || echo bad directory
[[ $(trap -p USR1 ERR) == *caught*failed* ]] || echo "bad traps: $(trap -p)"
[[ $- == *u* ]] || echo bad options
[[ -z ${nsm_place+x}${nsm_name+x}${nsm_why+x} ]] || echo left variables
! declare -F nsm_note || echo left a function
[[ ! -e /tmp/.nsm-save ]] || echo left
"""


def test_a_bash_session_is_saved_and_restored(client: nsm.Client) -> None:
    """Variables with their attributes, functions, aliases, traps, options."""

    def said(code: str, session: str) -> str:
        result = client.run(code, env="bash", session=session)
        return result.stdout + result.stderr

    assert said(BASH_STATE, "shell") == ""
    saved = Saves(client).save("shell")
    assert set(saved.names) == {
        *("text", "list", "map", "number", "fixed", "other", "EXPORTED"),
        *("greet", "twice", "ll", "SIGUSR1", "ERR"),
    }
    assert said(BASH_CHECKS, "shell") == ""
    restored = Saves(client).restore("shell", "again")
    assert [row for row in restored.rows if not row.restored] == []
    assert said(BASH_CHECKS, "again") == ""
    assert said("kill -USR1 $$", "again") == "caught two\nlines 'quoted'\n"


@pytest.mark.parametrize(
    "options",
    [
        "set -e; trap 'echo own' ERR; trap : EXIT",
        pytest.param("set -e", marks=pytest.mark.slow),
        pytest.param("set -x", marks=pytest.mark.slow),
    ],
)
def test_a_strict_bash_session_is_saved_and_restored(client: nsm.Client, options: str) -> None:
    """Neither the original nor the new session ends of it, and both have the options."""
    client.run(f"{options}\nx=1", env="bash", session="shell")
    Saves(client).save("shell")
    Saves(client).restore("shell", "again")
    shows = "echo $- $x; trap -p"
    one, other = (client.run(shows, env="bash", session=s) for s in ("shell", "again"))
    assert one.stdout == other.stdout
    assert not other.interpreter_restarted


def variables(shared: Supervisor, tmp_path: Path) -> dict[str, str]:
    return {**shared.variables, "XDG_DATA_HOME": str(tmp_path / "data")}


def test_a_function_with_patterns_of_extglob_is_restored(client: nsm.Client) -> None:
    client.run("shopt -s extglob", env="bash", session="shell")
    code = "known() { case $1 in @(a|b)) echo yes ;; esac; }"
    client.run(code, env="bash", session="shell")
    Saves(client).save("shell")
    restored = Saves(client).restore("shell", "again")
    assert [row for row in restored.rows if not row.restored] == []
    assert client.run("known a", env="bash", session="again").stdout == "yes\n"


def test_the_command_line_saves_lists_restores_and_removes(
    shared: Supervisor, client: nsm.Client, tmp_path: Path
) -> None:
    def command(*words: str, code: int = 0) -> str:
        done = e2e_support.run("nsm", *words, variables=variables(shared, tmp_path), cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    command("run", "-e", "python", "-s", "mine", "x = 6; g = (i for i in ())")
    said = command("save", "mine")
    assert "saved: x" in said
    assert "not saved: g: TypeError" in said
    assert "mine" in command("save", "ls")
    assert json.loads(command("save", "ls", "--json"))[0]["env"] == "python"
    command("kill", "mine")
    said = command("restore", "mine", "again")
    assert "x: restored" in said
    save, restored, *_ = command("tree").splitlines()
    assert save.startswith("save mine  ")
    assert restored.startswith("└─ again (")
    [node] = json.loads(command("tree", "--json"))
    assert [node["facts"]["session"], node["children"][0]["name"]] == ["mine", "again"]
    assert "g: not restored: TypeError" in said
    assert command("run", "-e", "python", "-s", "again", "x * 7") == "42\n"
    command("save", "rm", "mine")
    assert "no save" in command("restore", "mine", code=1)
    assert "no save" in command("save", "rm", "mine", code=1)
    # A full disk, as far as an ordinary user can have one.
    limited = f"ulimit -f 16; exec '{program('nsm')}' save again"
    command("run", "-e", "python", "-s", "again", "import os; noise = os.urandom(1_000_000)")
    done = subprocess.run(
        ["bash", "-c", limited],
        env=variables(shared, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path / "data/nsm/saves") == []
    assert command("run", "-e", "python", "-s", "again", "x * 7") == "42\n"


def test_changes_of_a_copied_project_are_restored_but_for_conflicts(
    shared: Supervisor, client: nsm.Client, tmp_path: Path
) -> None:
    """The project itself is not touched, and what has changed there since is not undone."""
    project = tmp_path / "project"
    (project / "old/deep").mkdir(parents=True)
    for name in ("kept", "changed", "removed", "old/deep/file", "theirs", "becomes"):
        (project / name).write_text("host")
    for path in (tmp_path, project):
        path.chmod(0o755)
    code = """
import os, shutil
os.chdir("/project")
open("changed", "w").write("session"); open("theirs", "w").write("session")
os.remove("removed"); shutil.rmtree("old")
os.mkdir("new"); open("new/large", "wb").write(b"x" * 3_000_000); os.symlink("large", "new/link")
os.chmod("new/large", 0o755)
os.utime("changed", ns=(0, 1_600_000_000_123_456_789))
os.remove("becomes"); os.mkdir("becomes"); open("becomes/file", "w").write("session")
"""
    with nsm.Client(socket_path=shared.socket, scope="test", project=project) as own:
        result = own.run(code, env="python", session="work", project_mode="overlay")
        assert result.exit_code == 0, result.stderr
        saved = Saves(own).save("work")
        assert saved.notes == (f"with the changes of 11 paths of {project}",)
        (project / "theirs").write_text("host, later")
        rows = Saves(own).restore("work", "again").rows
        assert {row.name for row in rows if row.kind == "change" and row.restored} == {
            *("changed", "removed", "old", "old/deep", "old/deep/file"),
            *("new", "new/large", "new/link", "becomes", "becomes/file"),
        }
        [conflict] = [row for row in rows if not row.restored]
        assert conflict.name == "theirs"
        assert conflict.why.startswith("the project's file is not what it was")
        code = """
import os
read = lambda name: open("/project/" + name).read()
assert [read(n) for n in ("kept", "changed", "theirs", "becomes/file")] == [
    "host", "session", "host, later", "session"]
assert sorted(os.listdir("/project")) == ["becomes", "changed", "kept", "new", "theirs"]
assert os.stat("/project/changed").st_mtime_ns == 1_600_000_000_123_456_000
assert abs(os.stat("/project/new/large").st_mtime - os.stat("/project/kept").st_mtime) < 3600
assert len(read("new/link")) == 3_000_000 and os.access("/project/new/large", os.X_OK)
"""
        result = own.run(code, env="python", session="again", project_mode="overlay")
        assert result.exit_code == 0, result.stderr
    assert (project / "changed").read_text() == "host"
    assert (project / "removed").exists()


LEFT_BYTES = 40_000


HOSTILE_CHANGES: list[dict[str, object]] = [
    {"path": "../outside"},
    {"path": "/outside"},
    {"path": "a", "type": "device"},
    {"path": "a", "size": -1},
    {"path": "a", "size": 5},
    {"path": "a", "size": LEFT_BYTES + 1},
    {"path": "a", "modified_us": -1},
    {"path": "a", "modified_us": 1 << 60},
    {"path": "a", "type": "symlink", "size": 1},
    {"path": 1},
]


@pytest.mark.usefixtures("client")
def test_a_hostile_list_of_changes_is_refused(shared: Supervisor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    usual = {"type": "file", "mode": 0o644, "size": 0, "target": "", "before": None}
    with nsm.Client(socket_path=shared.socket, scope="test", project=tmp_path) as client:
        run(client, "x = 1")
        path = Saves(client).save("work").path
        for record in HOSTILE_CHANGES:
            line = json.dumps(usual | record).encode() + b"\n"
            line += bytes(LEFT_BYTES if record.get("size") == LEFT_BYTES + 1 else 0)
            rewrite(path, partial(_in_place_of_changes, line))
            with pytest.raises(SaveError, match="list of changes"):
                Saves(client).restore(path, "again")
        assert [row.name for row in client.sessions()] == ["work"]


def _in_place_of_changes(line: bytes, name: str, part: bytes) -> bytes:
    return line if name == "project.changes" else part


def test_a_restored_session_is_replayed_from_the_beginning(client: nsm.Client) -> None:
    """The save that it was made of has what ran before, also if it is one of itself."""
    run(client, "x = [1]")
    run(client, "x.append(2); print(x)")
    Saves(client).save("work")
    client.kill("work")
    Saves(client).restore("work")
    run(client, "x.append(3); print(x)")
    for _ in range(2):
        transcript = Saves(client).transcript("work")
        assert transcript.executions[0].start.number == 1
        report = client.replay(transcript)
        assert report.agrees
        assert report.same == 3
        Saves(client).save("work")  # in place of the older one
    kept.remove("work")
    report = client.replay(Saves(client).transcript("work"))
    assert not report.agrees  # what ran before is missing


WAITING = """
import os, time
class Waiting:
    def __reduce__(self):
        open("/workspace/begun", "w").close()
        time.sleep(8)
        return list, ()
waiting, x = Waiting(), 1
"""
"""A variable that is being pickled until the test has seen it."""


def begun(client: nsm.Client) -> None:
    """Return when the variable is being pickled."""
    with client.files("work").watch() as watch:
        while not client.files("work").exists("begun"):
            next(watch)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_ends_amid_a_save_leaves_no_file_and_the_session_goes_on(
    shared: Supervisor, client: nsm.Client, tmp_path: Path, end: signal.Signals
) -> None:
    run(client, WAITING)
    with subprocess.Popen(
        [program("nsm"), "save", "work"],
        env=variables(shared, tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        begun(client)
        process.send_signal(end)
        _, said = process.communicate()
    interrupted = end is signal.SIGINT
    assert process.returncode == (130 if interrupted else -end), said
    assert ("interrupted" in said) is interrupted
    assert os.listdir(tmp_path / "data/nsm/saves") == []
    run(client, "assert x == 1; del waiting")
    assert "x" in Saves(client).save("work").names


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["supervisor", "interpreter", "agent"])
def test_a_kill_amid_a_save_leaves_nothing_half_made(
    short_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """The save fails, and a session whose processes live goes on.

    A client that connects again after the end of its supervisor gets its save all the same.
    """
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with supervisor(short_dir, keep=True) as it, it.client() as client:
        run(client, WAITING)
        outcome: list[object] = []

        def save() -> None:
            try:
                with nsm.Client(socket_path=it.socket, scope="test", reconnect=False) as own:
                    outcome.append(Saves(own).save("work"))
            except (NsmError, OSError) as error:
                outcome.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        begun(client)
        [row] = client.sessions()
        processes = client.inspect("work").processes
        pids = {
            "supervisor": it.pid,
            "agent": row.pid,
            "interpreter": next(p.pid for p in processes if p.inside != 1),
        }
        os.kill(pids[victim], signal.SIGKILL)
        if victim == "supervisor":
            it.process.wait()
        thread.join(30)
        assert isinstance(outcome[0], NsmError | OSError), outcome
        assert os.listdir(tmp_path / "data/nsm/saves") == []
        if victim == "supervisor":
            with supervisor(short_dir) as next_one, next_one.client() as again:
                run(again, "assert x == 1")
        else:
            run(client, "y = 1")


LOADING = """
class Waiting:
    def __reduce__(self):
        return exec, ("import time; open('/workspace/loading', 'w').close(); time.sleep(60)",)
waiting = Waiting()
"""


def test_a_killed_restore_leaves_no_session(
    shared: Supervisor, client: nsm.Client, tmp_path: Path
) -> None:
    run(client, LOADING)
    Saves(client).save("work")
    process = subprocess.Popen(
        [program("nsm"), "restore", "work", "again"],
        env=variables(shared, tmp_path),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def names() -> set[str]:
        return {row.name or "" for row in client.sessions()}

    while "again" not in names():
        assert process.poll() is None
    [row] = [row for row in client.sessions() if row.name == "again"]
    with client.files(row.id).watch() as watch:
        while not client.files(row.id).exists("loading"):
            next(watch)
    process.kill()
    process.wait()
    while "again" in names():
        pass
    assert names() == {"work"}


@pytest.mark.slow
def test_a_restored_session_outlives_its_client(shared: Supervisor, client: nsm.Client) -> None:
    run(client, "x = 1")
    Saves(client).save("work")
    with shared.client() as another:
        Saves(another).restore("work", "again")
        with another.sandbox(env="python", ends_with_client=True) as sandbox:
            ended = sandbox.id
            another.close()
    run(client, "assert x == 1", "again")
    while ended in {row.id for row in client.sessions()}:
        pass


def test_an_interrupt_ends_all_code_that_is_run_again(
    client: nsm.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the next piece runs, nor one that has no time left."""
    run(client, "import signal, os, time, threading\nharm = lambda: None")
    run(client, "one = threading.Lock(); harm()")
    run(client, "two = threading.Lock(); open('two', 'w')")
    run(client, "os.remove('two')\ndef harm(): os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    Saves(client).save("work")
    real: Any = Sandbox.run

    def interrupting(self: Sandbox, code: str, **settings: Any) -> nsm.RunResult:
        result: nsm.RunResult = real(self, code, **settings)
        return result._replace(interrupted="one =" in code)

    monkeypatch.setattr(Sandbox, "run", interrupting)
    restored = Saves(client).restore("work", "again", rerun=True)
    assert restored.interrupted
    assert "its code failed: it was interrupted" in outcomes(restored.rows)["one"]
    assert "its code failed" not in outcomes(restored.rows)["two"]
    assert not client.files("again").exists("two")


@pytest.mark.slow
def test_code_that_is_run_again_has_the_time_of_the_restore(client: nsm.Client) -> None:
    run(client, "import threading, time\nslow = False")
    run(client, "lock = threading.Lock()\nwhile slow: time.sleep(1)")
    run(client, "slow = True")
    Saves(client).save("work")
    restored = Saves(client).restore("work", "again", rerun=True, timeout_s=2)
    assert outcomes(restored.rows)["lock"].endswith("it took longer than 2 s")


def test_sessions_are_kept_at_a_shutdown_and_found_by_their_names(
    short_dir: Path, tmp_path: Path, client: nsm.Client
) -> None:
    """A new session of that name replaces none, and the next one says what there is."""
    config = "[session]\nkeep = true\nsaves_mb = 100\n"
    data = {"XDG_DATA_HOME": str(tmp_path / "data")}
    for number, value in enumerate(("first", "second")):
        directory = short_dir / str(number)
        directory.mkdir()
        with supervisor(directory, config=config, variables=data) as it, it.client() as own:
            words = ("nsm", "run", "-e", "python", "-s", "work", f"x = {value!r}")
            ran = e2e_support.run(*words, variables=variables(it, tmp_path), cwd=tmp_path)
            assert ran.returncode == 0, ran.stderr
            assert ("an earlier one was saved" in ran.stderr) == bool(number)
            run(own, "y = 1", "apart")
            own.shutdown()
            it.process.wait()
        assert len(kept.automatic_of("work")) == number + 1
    saves = kept.automatic_of("work")
    assert all(save.automatic for save in kept.listed())
    assert {save.session for save in kept.listed()} == {"work", "apart"}
    Saves(client).restore("work")
    run(client, "assert x == 'second'")
    Saves(client).restore(saves[1].name, "earlier")
    run(client, "assert x == 'first'", "earlier")
