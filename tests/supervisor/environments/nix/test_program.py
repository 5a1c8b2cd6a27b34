"""Nix as a program: its output, its errors, its git, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fake_nix import FakeNix
from nsm.wire.decode import decode
from nsm.wire.errors import NixFailedError, NixUnavailableError
from nsmd.environments.nix.messages import MAX_ERROR_CHARS, NixLogReader
from nsmd.environments.nix.program import (
    Nix,
    NixExitError,
    NixRunError,
    cause,
    find_nix,
    flake_copy,
)
from nsmd.host.command_monitor import MAX_END_BYTES, MAX_HEAD_BYTES, TAIL_LINES, CommandProgress
from nsmd.host.processes import children_of
from processes import ending

LONG_S = 60.0


@pytest.fixture
def fake(tmp_path: Path) -> FakeNix:
    return FakeNix(tmp_path / "bin")


@pytest.fixture
def nix(fake: FakeNix, tmp_path: Path) -> Nix:
    found = find_nix(str(fake.folder), {"NIX_CONFIG": "a = b", "SECRET": "no"}, str(tmp_path))
    assert isinstance(found, Nix)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    yield path, descriptor
    os.close(descriptor)


async def build(nix: Nix, reference: str, timeout_s: float = LONG_S, **more: Any) -> bytes:
    arguments = ["build", "--no-link", "--json", "--", reference]
    return await nix.run(arguments, timeout_s=timeout_s, **more)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_run_of_nix_returns_its_output_and_keeps_its_log(
    fake: FakeNix, nix: Nix, log: tuple[Path, int], tmp_path: Path
) -> None:
    reference = fake.builds("ok", ("log", ["one", "two"]), ("out", "/nix/store/x"))
    answer = await build(nix, reference, log_fd=log[1])
    assert b"/nix/store/x" in answer
    assert "ok> one\nok> two\n" in log[0].read_text()
    (call,) = fake.calls()
    assert call["arguments"][:2] == ["--extra-experimental-features", "nix-command flakes"]
    assert call["variables"]["NIX_CONFIG"] == "a = b"
    assert call["variables"]["HOME"] == str(tmp_path)
    assert "SECRET" not in call["variables"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert call["files"] == [min(1024, hard), hard]  # the supervisor's own soft limit is raised


async def test_failure_has_nixs_words_and_the_end_of_the_log(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("bad", ("log", ["gcc: no"]), ("fail", "builder failed"))
    with pytest.raises(NixExitError) as caught:
        await build(nix, reference)
    assert "(exit code 1)" in caught.value.message
    assert "error: builder failed" in caught.value.message
    assert "bad> gcc: no" in caught.value.message
    assert caught.value.data["log"][-1] == "error: builder failed"
    with pytest.raises(NixExitError, match="does not provide attribute") as caught:
        await build(nix, "path:/flake#nonesuch")
    assert "nix flake show" in caught.value.hint


async def test_megabytes_of_log_are_bounded(fake: FakeNix, nix: Nix, log: tuple[Path, int]) -> None:
    count = 3 * MAX_HEAD_BYTES // 1000
    reference = fake.builds("huge", ("flood", count), ("log", ["last"]), ("fail", "no"))
    with pytest.raises(NixExitError) as caught:
        await build(nix, reference, log_fd=log[1])
    assert len(caught.value.tail) == TAIL_LINES
    text = log[0].read_text()
    assert len(text) <= MAX_HEAD_BYTES + MAX_END_BYTES + 100
    assert "bytes of the log are left out]" in text
    assert text.endswith("huge> last\nerror: no\n")


async def test_output_is_bounded(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("wide", ("print", "z" * 200_000), ("hang", None))
    with pytest.raises(NixRunError, match="more than 1000 bytes"):
        await build(nix, reference, max_output_bytes=1000)


async def test_a_limit_of_time(fake: FakeNix, nix: Nix) -> None:
    reference = fake.builds("slow", ("log", ["step 1"]), ("hang", None))
    with pytest.raises(NixRunError, match=r"stopped after 0\.3 s") as caught:
        await build(nix, reference, timeout_s=0.3)
    assert "interrupted by the user" not in caught.value.message


def slow(fake: FakeNix, tmp_path: Path, *before: tuple[str, Any]) -> tuple[str, Path, Path]:
    """Reference, pipe and pid file of a build with a builder; the pipe opens when that is up."""
    gate, pid = tmp_path / "gate", tmp_path / "pid"
    os.mkfifo(gate)
    steps = (*before, ("builder", str(pid)), ("gate", str(gate)), ("hang", None))
    return fake.builds("slow", *steps), gate, pid


async def test_cancelling_leaves_nothing(fake: FakeNix, nix: Nix, tmp_path: Path) -> None:
    reference, gate, pid = slow(fake, tmp_path)
    async with trio.open_nursery() as builds:
        builds.start_soon(build, nix, reference)
        async with await trio.open_file(gate, "w"):
            builds.cancel_scope.cancel()
    assert gone(int(pid.read_text()))


PROGRAM = """
import sys, trio
from pathlib import Path
from nsmd.environments.nix.program import Nix, find_nix

async def main(folder, home, reference):
    nix = find_nix(folder, {}, home)
    assert isinstance(nix, Nix)
    await nix.run(["build", "--", reference], timeout_s=60)

trio.run(main, *sys.argv[1:])
"""


def test_nix_does_not_outlive_a_killed_supervisor(fake: FakeNix, tmp_path: Path) -> None:
    reference, gate, pid = slow(fake, tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(fake.folder), str(tmp_path), reference]
    with ending(subprocess.Popen(command)) as supervisor, gate.open("w"):
        builder = os.pidfd_open(int(pid.read_text()))
        supervisor.kill()
    try:
        poll = select.poll()
        poll.register(builder, select.POLLIN)
        assert poll.poll(LONG_S * 1000), "its builder goes on"
    finally:
        os.close(builder)


async def test_builders_of_a_killed_nix_are_gone(fake: FakeNix, nix: Nix, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    reference = fake.builds("killed", ("builder", str(pid)), ("kill", int(signal.SIGKILL)))
    with pytest.raises(NixRunError, match="SIGKILL"):
        await build(nix, reference)
    assert gone(int(pid.read_text()))


async def test_nix_does_not_outlive_a_killed_monitor(
    fake: FakeNix, nix: Nix, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    reference = fake.builds("slow", ("gate", str(gate)), ("hang", None))

    async def run() -> None:
        with pytest.raises(NixRunError, match="ended unexpectedly"):
            await build(nix, reference)

    async with trio.open_nursery() as builds:
        builds.start_soon(run)
        async with await trio.open_file(gate, "w"):
            (watching,) = [pid for pid in children_of(os.getpid()) if children_of(pid)]
            (started,) = [os.pidfd_open(pid) for pid in children_of(watching)]
            os.kill(watching, signal.SIGKILL)
    with trio.fail_after(LONG_S):
        await trio.lowlevel.wait_readable(started)
    os.close(started)


def test_nix_is_found_on_path_and_in_profiles(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    none = find_nix(str(tmp_path), {}, str(home))
    assert isinstance(none, NixUnavailableError)
    assert "https://nixos.org" in none.hint
    (home / ".nix-profile").mkdir()
    found = FakeNix(home / ".nix-profile/bin")
    usual = find_nix("", {}, str(home))
    assert isinstance(usual, Nix)
    assert usual.program == str(found.program)
    assert usual.version == (2, 18)
    old = FakeNix(tmp_path / "old", "nix (Nix) 2.3.16")
    found.folder.chmod(0o777)
    refused = find_nix(str(old.folder), {}, str(home))
    assert isinstance(refused, NixUnavailableError)
    assert "2.3.16, 2.8 or newer is needed" in refused.message
    assert "writable by everyone" in refused.message


DRV = "/nix/store/smnmgw05pgxsqslwhawq24y8vf43d8zq-thing.drv"
TOP = "/nix/store/2m1lg4m811iiadr7b3jlz9qm325d2maz-top.drv"
BUILDER_2_18 = f"""\
error: builder for '{DRV}' failed with exit code 2;
       last 4 log lines:
       > compiling
       > error: linker `cc` not found
       > make: *** [all] Error 1
       > leaving
       For full logs, run 'nix log {DRV}'.
error: 1 dependencies of derivation '{TOP}' failed to build"""
TRACE_2_18 = """\
error:
       … while calling the 'derivationStrict' builtin
         at <nix/derivation-internal.nix>:9:12:
            8|
            9|   strict = derivationStrict drvAttrs;
             |            ^
       … while evaluating attribute 'text'

       error: attribute 'missing' missing
       at /nix/store/l30fqclg27h2bm8lmm2hb3jpmxxin3qa-source/flake.nix:4:54:
            4|   e = f y.missing;
             |       ^"""
HASH = f"""\
error: hash mismatch in fixed-output derivation '{DRV}':
         specified: sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
            got:    sha256-1mvkrnKgaGxRyN4HePh0a6wtTs8vr5jmg0qCVyAzkEM=
error: 1 dependencies of derivation '{TOP}' failed to build"""

TABLE = [
    pytest.param(
        BUILDER_2_18,
        [],
        "error: building thing failed: linker `cc` not found",
        id="a builder's error among its last lines",
    ),
    pytest.param(
        f"error: builder for '{DRV}' failed with exit code 1",
        ["thing> nsm: environment 'x': preload: its python3 cannot import numpy."],
        "error: building thing failed: nsm: environment 'x': preload: its python3 cannot import "
        "numpy.",
        id="a builder that does not say error",
    ),
    pytest.param(TRACE_2_18, [], "error: attribute 'missing' missing", id="evaluation with trace"),
    pytest.param(
        HASH,
        [],
        f"error: hash mismatch in fixed-output derivation '{DRV}': specified: "
        "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=, got: "
        "sha256-1mvkrnKgaGxRyN4HePh0a6wtTs8vr5jmg0qCVyAzkEM=",
        id="hash mismatch",
    ),
    pytest.param("", ["warning: dirty"], "", id="no error at all"),
]


@pytest.mark.parametrize(("error", "tail", "expected"), TABLE)
def test_the_cause_of_a_failure_is_the_first_line(
    error: str, tail: list[str], expected: str
) -> None:
    assert cause(error, tail) == expected


PANDAS_DRV = "/nix/store/ki9x7ywdi5yykaw8wvv59a813afa3jh7-pandas-2.2.drv"


def line(**message: Any) -> bytes:
    return b"@nix " + json.dumps(message).encode()


def read(*messages: dict[str, Any]) -> tuple[NixLogReader, list[str]]:
    reader, text = NixLogReader(), list[str]()
    for message in messages:
        text += reader.read_line(line(**message))
    return reader, text


def start(number: int, kind: int, text: str = "", level: int = 0, **more: Any) -> dict[str, Any]:
    return {"action": "start", "id": number, "type": kind, "text": text, "level": level, **more}


def result(number: int, kind: int, *fields: Any) -> dict[str, Any]:
    return {"action": "result", "id": number, "type": kind, "fields": fields}


def test_a_build_with_its_log() -> None:
    reader, text = read(
        start(1, 102),
        start(2, 104),
        result(2, 105, 0, 3, 1, 0),
        start(3, 105, f"building '{PANDAS_DRV}'", 3, fields=[PANDAS_DRV, "", 1, 1]),
        result(3, 104, "checkPhase"),
        result(3, 101, "all is \x1b[1mwell\x1b[0m"),
    )
    assert text == [f"building '{PANDAS_DRV}'", "pandas-2.2> all is well"]
    assert reader.progress == CommandProgress(
        phase="building", activity="building pandas-2.2 (checkPhase)", built=0, to_build=3
    )


def test_errors_are_kept_from_their_end() -> None:
    message = {"action": "msg", "level": 0, "msg": "\x1b[31;1merror:\x1b[0m no such luck"}
    reader, text = read({"action": "msg", "level": 1, "msg": "warning: old"}, message)
    assert text == ["warning: old", "error: no such luck"]
    assert reader.error == "error: no such luck"
    trace = [{"action": "msg", "level": 0, "msg": f"at {n} {'x' * 900}"} for n in range(100)]
    reader, _ = read(*trace, message)
    assert len(reader.error) < MAX_ERROR_CHARS + 100
    assert reader.error.endswith("no such luck")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["start", "stop", "result", "msg"]) | JSON,
        "id": st.integers(0, 3) | JSON,
        "type": st.integers(100, 109) | JSON,
        "level": st.integers(-1, 8) | JSON,
        "fields": st.lists(st.integers() | st.text(max_size=8), max_size=4) | JSON,
        "text": JSON,
        "msg": JSON,
    },
)


@given(st.lists(MESSAGES | st.binary(max_size=40), max_size=30))
def test_garbage_is_survived(messages: list[Any]) -> None:
    reader = NixLogReader()
    for message in messages:
        data = b"@nix " + message if isinstance(message, bytes) else line(**message)
        for text in reader.read_line(data):
            assert text.isprintable()
    progress = reader.progress
    assert min(progress.built, progress.to_build, progress.downloaded_bytes) >= 0
    assert decode(CommandProgress, asdict(progress)) == progress


VARIABLES = {"PATH": os.environ["PATH"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose configuration has git run a program."""
    made = tmp_path / "project"
    (made / "sub").mkdir(parents=True)
    for name in ("flake.nix", "sub/flake.nix", "untracked"):
        (made / name).write_text("{}")
    for words in (
        ("init", "--quiet"),
        ("add", "flake.nix", "sub"),
        ("config", "core.fsmonitor", f"touch {tmp_path}/proof; false"),
        ("config", "filter.x.clean", f"touch {tmp_path}/proof; cat"),
    ):
        subprocess.run(["git", "-C", str(made), *words], check=True)
    (made / ".gitattributes").write_text("* filter=x\n")
    return made


def listed(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


async def test_nix_sees_what_git_tracks_and_no_configuration(project: Path, tmp_path: Path) -> None:
    tree = str(tmp_path / "state" / "tree")
    async with flake_copy(str(project), tree, VARIABLES) as (directory, flake):
        assert (directory, flake) == (tree, "path:.")
        assert listed(directory) == ["flake.nix", "sub"]
    async with flake_copy(str(project / "sub"), tree, VARIABLES) as (directory, flake):
        assert (directory, flake) == (f"{tree}/sub", ".")
        assert listed(tree) == [".git", "flake.nix", "sub"]
        await trio.run_process(["git", "-C", tree, "status"])
        config = Path(tree, ".git", "config").read_text()
        assert "fsmonitor" not in config
        assert "filter" not in config
    assert not os.path.exists(tree)
    assert not (tmp_path / "proof").exists()


async def test_a_broken_repository_is_not_evaluated(project: Path, tmp_path: Path) -> None:
    (project / ".git" / "index").write_text("garbage")
    with pytest.raises(NixFailedError, match=f"The files of {project} are not known: git says"):
        async with flake_copy(str(project), str(tmp_path / "tree"), VARIABLES):
            pytest.fail("there is nothing to evaluate")
    assert not (tmp_path / "tree").exists()


# Nix's git


@pytest.fixture
def git_nix(tmp_path: Path) -> Nix:
    """A program that does with git what a shell command says, as Nix would."""
    program = tmp_path / "bin" / "nix"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec echo nix 2.8.0\nshift 4\neval "$1"\n'
    )
    program.chmod(0o755)
    (tmp_path / "cache" / "nix").mkdir(parents=True)
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    found = find_nix(f"{program.parent}:{VARIABLES['PATH']}", variables, str(tmp_path))
    assert isinstance(found, Nix)
    return found


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("git -C {project} diff HEAD --quiet", "nsm runs no git in {project}"),
        ("git -C {project} --git-dir=.git rev-parse HEAD", "nsm runs no git in"),
        ("git -C {cache}/../../project status", "write path:"),
        ("git -C {cache}/link ls-files", "nsm runs no git in"),
        ("git --git-dir={project}/.git status", "nsm does not run 'git --git-dir"),
        ("cd {project} && git status", "nsm does not run 'git status'"),
        ("git ls-remote --symref {project}", "nsm runs no git in {project}"),
        ("git -C {cache} fetch -- file://{project} x:x", "nsm runs no git in {project}"),
        ("git -C {cache} clone ../../project", "transport 'file' not allowed"),
        ("hg status -R {project}", "nsm runs no Mercurial"),
    ],
)
async def test_git_of_nix_keeps_out_of_other_repositories(
    project: Path, tmp_path: Path, git_nix: Nix, command: str, why: str
) -> None:
    cache = tmp_path / "cache" / "nix"
    (cache / "link").symlink_to(project)
    with pytest.raises(NixExitError) as caught:
        await git_nix.run([command.format(project=project, cache=cache)], timeout_s=60)
    assert why.format(project=project) in "\n".join(caught.value.tail)
    assert not (tmp_path / "proof").exists()


async def test_git_of_nix_works_in_its_cache_and_in_the_copy(
    project: Path, tmp_path: Path, git_nix: Nix
) -> None:
    cache, tree = tmp_path / "cache" / "nix" / "gitv3", str(tmp_path / "state" / "tree")
    new = f"git -c init.defaultBranch=x init --quiet --bare {cache}"
    assert (
        await git_nix.run([f"{new} && git -C {cache} rev-parse --git-dir"], timeout_s=60) == b".\n"
    )
    temporary = f"{tmp_path}/nix-$$-0"  # of submodules
    fetch = f"git init --quiet {temporary} && git -C {temporary} fetch -- {cache} 'refs/*:refs/*'"
    assert await git_nix.run([fetch], timeout_s=60) == b""
    async with flake_copy(str(project / "sub"), tree, git_nix.variables) as (directory, _):
        command = f"git -C {tree} ls-files"
        told = await git_nix.run([command], timeout_s=60, directory=directory, tree=tree)
    assert told == b"flake.nix\nsub/flake.nix\n"


def test_nix_is_not_run_without_git_of_nsm(git_nix: Nix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsmd.environments.nix.program._PROGRAMS", "/nonexistent")
    found = find_nix(os.path.dirname(git_nix.program), {}, "/")
    assert isinstance(found, NixUnavailableError)
    assert "nsm's /nonexistent/hg cannot be executed" in found.message
