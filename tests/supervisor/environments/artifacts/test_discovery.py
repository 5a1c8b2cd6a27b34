"""Sandbox directories and metadata: an environment or a problem; never fatal, nothing is run.

Errors of metadata name the field.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from dummy_artifacts import artifact
from nsmd.environments.artifacts import discovery
from nsmd.environments.artifacts.discovery import (
    MAX_ARTIFACTS,
    MAX_METADATA_BYTES,
    ArtifactDiscovery,
    Scan,
    scan_directory,
    scan_metadata,
)
from nsmd.environments.artifacts.metadata import (
    TEMPLATE_PROTOCOL,
    Metadata,
    MetadataError,
    parse_entry,
    parse_file,
    with_variable,
)
from nsmd.environments.catalog import Catalog
from nsmd.host import source_watcher
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.settings import Defaults, SessionSettings, Settings
from nsmd.model.values import ClientIdentity, Sources

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


DEFAULTS = Defaults()
OWNERS = trusted_owners()


def scan(folder: Path) -> Scan:
    return scan_directory(str(folder), DEFAULTS, OWNERS, expected=True)


def names(found: Scan) -> list[str]:
    return [environment.name for environment in found.environments]


def only_problem(found: Scan) -> str:
    (problem,) = found.problems
    return problem.why


def test_a_directory_of_artifacts(tmp_path: Path) -> None:
    artifact(
        tmp_path,
        "b",
        programs=("template-run",),
        schema=1,
        program="/p/python3",
        template=TEMPLATE_PROTOCOL,
        description="Python with things",
        preload=["numpy"],
        timeout_seconds=7,
        memory_mb=64,
    )
    artifact(tmp_path, "a", interpreter_type="bash")
    (tmp_path / "README").write_text("not an environment")
    (tmp_path / ".copying").mkdir()
    found = scan(tmp_path)
    assert names(found) == ["a", "b"]
    assert found.problems == ()
    older, newer = found.environments
    assert (older.interpreter, older.timeout_s, older.memory_mb) == ("bash", 30.0, 512)
    assert older.artifact is not None
    assert (older.artifact.schema, older.artifact.template_run) == (0, None)
    assert older.keeps_state
    assert newer.artifact is not None
    assert newer.artifact.run == os.path.realpath(tmp_path / "b/bin/run")
    assert newer.artifact.template_run == os.path.realpath(tmp_path / "b/bin/template-run")
    assert newer.artifact.schema == 1
    assert (newer.program, newer.description) == ("/p/python3", "Python with things")
    assert (newer.preload, newer.timeout_s, newer.memory_mb) == (("numpy",), 7.0, 64)
    assert newer.source == str(tmp_path / "b")


def test_the_first_directory_of_a_name_wins(tmp_path: Path) -> None:
    artifact(tmp_path, "one", name="science")
    artifact(tmp_path, "two", name="science")
    found = scan(tmp_path)
    (environment,) = found.environments
    assert environment.source == str(tmp_path / "one")
    (problem,) = found.problems
    assert (problem.name, problem.where) == ("science", str(tmp_path / "two"))
    assert f"as {tmp_path / 'one'} is, which comes first" in problem.why


def without(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def metadata(text: str) -> Callable[[Path], object]:
    return lambda path: (path / "metadata.json").write_text(text)


def mode(name: str, bits: int) -> Callable[[Path], object]:
    return lambda path: (path / name).chmod(bits)


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of a file or directory."""

    def replace(path: Path) -> None:
        (path / name).rename(path / "elsewhere")
        make(path / name)

    return replace


def linked(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


NEWER_SCHEMA = '{"schema": 9, "name": "x", "interpreter_type": "bash"}'
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no metadata": (without("metadata.json"), "metadata.json: it is missing"),
    "torn metadata": (metadata('{"name": '), "metadata.json: it is not valid JSON: "),
    "huge metadata": (
        metadata(" " * (MAX_METADATA_BYTES + 1)),
        f"metadata.json: it has more than {MAX_METADATA_BYTES} bytes",
    ),
    "a pipe for metadata": (
        replaced("metadata.json", os.mkfifo),
        "metadata.json: it is not a regular file",
    ),
    "a directory for metadata": (
        replaced("metadata.json", Path.mkdir),
        "metadata.json: it is not a regular file",
    ),
    "no run": (without("bin/run"), "bin/run: it is missing"),
    "a run not executable": (mode("bin/run", 0o644), "bin/run: it is not executable"),
    "a directory for run": (replaced("bin/run", Path.mkdir), "bin/run: it is not a regular file"),
    "a pipe for run": (replaced("bin/run", os.mkfifo), "bin/run: it is not a regular file"),
    "a run in a circle": (
        replaced("bin/run", linked("run")),
        "bin/run: its symbolic links lead in a circle",
    ),
    "a run that leads nowhere": (
        replaced("bin/run", linked("/nowhere/run")),
        "bin/run: it is a symbolic link to /nowhere/run, where nothing is",
    ),
    "a file for bin": (replaced("bin", Path.touch), "bin/run: it cannot be read: Not a directory"),
    "a session-run not executable": (
        mode("bin/session-run", 0o600),
        "bin/session-run: it is not executable",
    ),
    "a bin open to all": (mode("bin", 0o777), "bin is writable by everyone"),
    "a run open to all": (mode("bin/run", 0o777), "run is writable by everyone"),
    "a newer schema": (metadata(NEWER_SCHEMA), "metadata.json: it was made for a newer nsm"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_artifact_is_told_and_the_others_work(broken: str, tmp_path: Path) -> None:
    spoil, why = BROKEN[broken]
    spoil(artifact(tmp_path, "bad"))
    artifact(tmp_path, "good")
    found = scan(tmp_path)
    assert names(found) == ["good"]
    (problem,) = found.problems
    assert (problem.name, problem.where) == ("bad", str(tmp_path / "bad"))
    assert why in problem.why
    assert problem.why.isprintable()


def test_links_to_artifacts_are_followed_and_where_they_lead_is_run(tmp_path: Path) -> None:
    built = artifact(tmp_path / "store", "abc-science", name="science")
    folder = tmp_path / "sandboxes"
    folder.mkdir()
    (tmp_path / "result").symlink_to(built)
    (folder / "science").symlink_to("../result")
    (environment,) = scan(folder).environments
    assert environment.artifact is not None
    assert environment.artifact.run == os.path.realpath(built / "bin/run")
    assert environment.source == str(folder / "science")


def test_a_directory_that_others_may_write_to_has_no_environments(tmp_path: Path) -> None:
    artifact(tmp_path / "open", "science")
    (tmp_path / "open").chmod(0o1777)
    found = scan(tmp_path / "open")
    assert names(found) == []
    assert f"{tmp_path / 'open'} is writable by everyone" in only_problem(found)


@pytest.mark.root
@pytest.mark.parametrize("part", ["", "bin", "bin/run", "metadata.json"])
def test_programs_of_other_users_are_not_run(part: str, tmp_path: Path) -> None:
    os.chown(artifact(tmp_path) / part, 4242, 4242)
    found = scan(tmp_path)
    assert names(found) == []
    assert "belongs to user 4242" in only_problem(found)


def test_a_directory_with_too_many_entries_is_told(tmp_path: Path) -> None:
    for number in range(MAX_ARTIFACTS + 1):
        (tmp_path / f"x{number:04}").mkdir()
    found = scan(tmp_path)
    assert len(found.problems) == MAX_ARTIFACTS + 1
    assert f"it has {MAX_ARTIFACTS + 1} entries" in found.problems[0].why


def test_metadata_names_programs_or_artifacts(tmp_path: Path) -> None:
    path = artifact(tmp_path, schema=1, program="/p", memory_mb=77)
    run, session_run = str(path / "bin/run"), str(path / "bin/session-run")
    text = json.dumps(
        {
            "environments": {
                "shell": {"backend": "jail", "exec": run, "session_exec": session_run},
                "built": {"artifact": str(path), "exec": run},
                "once": {"exec": run, "interpreter_type": "node"},
                "gone": {"exec": "/nowhere/run", "interpreter_type": "node"},
                "lost": {"artifact": "/nowhere"},
                "half": {"exec": run, "session_exec": "/nowhere/s", "interpreter_type": "bash"},
                "Bad Name": {"exec": run},
            }
        }
    )
    found = scan_metadata(text, DEFAULTS, OWNERS)
    shell, built, once = found.environments
    assert (shell.name, shell.interpreter, shell.keeps_state) == ("shell", "bash", True)
    assert (built.name, built.memory_mb, built.source) == ("built", 77, "NIX_SANDBOX_METADATA")
    assert built.artifact is not None
    assert built.artifact.schema == 1
    assert (once.interpreter, once.keeps_state) == ("node", False)
    whys = {problem.name: problem.why for problem in found.problems}
    assert whys["gone"] == "/nowhere/run: it is missing"
    assert whys["lost"] == "/nowhere: it is missing"
    assert whys["half"] == "/nowhere/s: it is missing"
    assert "its name is 'Bad Name'" in (whys[None] or "")


TIMEOUT_S = 120


@asynccontextmanager
async def discovering(
    home: Path, named: Sources | None = None
) -> AsyncGenerator[tuple[ArtifactDiscovery, Catalog]]:
    async with open_source_watcher() as it:
        catalog = Catalog()
        found = ArtifactDiscovery(it, catalog, Defaults(), owners=trusted_owners(), home=str(home))
        await found.begin(named or Sources(), str(home / "usual"))
        yield found, catalog


def names_of(catalog: Catalog, own: Sources | None = None) -> list[str]:
    client = ClientIdentity(name="editor", scope="s", sources=own)
    return [environment.name for environment in catalog.environments(client)]


async def test_a_clients_directory_that_hangs_delays_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", 0.05)
    usual = discovery.scan_directory
    goes_on = threading.Event()

    def scan(directory: str, *args: object, **named: object) -> Scan:
        if directory == "/net":
            goes_on.wait(TIMEOUT_S)
            return Scan()
        return usual(directory, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(discovery, "scan_directory", scan)
    try:
        async with (
            discovering(tmp_path) as (found, catalog),
            found.opened(Sources(directory="/net")),
        ):
            monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", TIMEOUT_S)
            artifact(tmp_path / "usual", "one")
            with trio.fail_after(TIMEOUT_S / 2):
                await found.search_again(ClientIdentity(name="editor", scope="s"))
            assert names_of(catalog) == ["one"]
    finally:
        goes_on.set()


GIVEN = Defaults(timeout_seconds=20.0, memory_mb=300)

NEWER = {
    "schema": 1,
    "name": "science",
    "interpreter_type": "python",
    "timeout_seconds": 60,
    "memory_mb": 1024,
    "program": "/nix/store/x/bin/python3",
}


def parsed(**changes: Any) -> Metadata:
    facts = {key: value for key, value in {**NEWER, **changes}.items() if value is not ...}
    return parse_file(json.dumps(facts).encode(), GIVEN)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "../etc"}, "name is '../etc', expected 1 to 64 of a-z"),
        ({"name": "-x"}, "name is '-x'"),
        ({"name": "x" * 65}, "name is 'xxx"),
        ({"name": "a\n"}, r"name is 'a\\n'"),
        ({"name": ...}, "name is missing"),
        ({"interpreter_type": "ruby"}, "interpreter_type is 'ruby', expected python or bash or no"),
        ({"interpreter_type": ...}, "interpreter_type is missing"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0, expected a number of seconds above 0"),
        ({"timeout_seconds": True}, "timeout_seconds is True"),
        ({"timeout_seconds": 1e9}, "timeout_seconds is 1000000000.0"),
        ({"memory_mb": 0}, "memory_mb is 0, expected a whole number of MiB"),
        ({"memory_mb": 10**12}, "memory_mb is 10"),
        ({"schema": 2}, "made for a newer nsm"),
        ({"schema": True}, "schema is True"),
        ({"program": "python3"}, "program is 'python3', expected an absolute path"),
        ({"program": ...}, "program is missing"),
        ({"preload": "numpy"}, "preload is 'numpy', expected a list"),
        ({"preload": ["numpy; import os"]}, "preload has 'numpy; import os'"),
        ({"preload": ["x"] * 65}, "preload has 65 modules"),
        ({"preload": ["numpy"], "interpreter_type": "node"}, "preload is for Python"),
    ],
)
def test_a_mistake_names_the_field_and_what_was_expected(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parsed(**changes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b'{"name": ', "not valid JSON"),
        (b"[]", r"it is \[\], expected a map"),
        (b"\xff", "not UTF-8"),
        (b'{"timeout_seconds": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"memory_mb": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_metadata_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parse_file(data, GIVEN)


@pytest.mark.parametrize(
    ("name", "entry", "why"),
    [
        ("a b", {"exec": "/x"}, "its name is 'a b'"),
        ("x", {"backend": "microvm", "exec": "/x"}, "microvm, is not available yet"),
        ("x", {"backend": "docker", "exec": "/x"}, "backend is 'docker', expected `jail`"),
        ("x", {"interpreter_type": "bash"}, "exec is missing"),
        ("x", {"exec": "run", "interpreter_type": "bash"}, "exec is 'run', expected an absolute"),
        ("x", {"exec": "/x"}, "interpreter_type is missing"),
        ("x", "/nix/store/x", "expected a map"),
    ],
)
def test_an_entry_that_cannot_be(name: str, entry: object, why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parse_entry(name, entry, GIVEN)


SAID = json.dumps(
    {
        "environments": {"a": 1},
        "session": {"idle_timeout_seconds": 60},
        "project": {"use_flake": True, "inherit_env": ["TOKEN"]},
    }
)


def test_the_supervisors_own_metadata_counts_where_nothing_else_is_configured() -> None:
    settings = with_variable(Settings(), SAID)
    assert settings.session == SessionSettings(idle_timeout_seconds=60.0)
    assert settings.project.use_flake
    assert settings.project.inherit_env.vars == ("TOKEN",)
    configured = Settings(session=SessionSettings(idle_timeout_seconds=5.0))
    assert with_variable(configured, SAID).session == configured.session
    assert with_variable(configured, None) == configured
