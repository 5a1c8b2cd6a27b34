"""Values of secrets: where they come from, when they are read again, and their helpers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore
from nsmd.host.child_processes import PACKAGES, START
from nsmd.host.processes import has_ended
from nsmd.model.events import Events
from nsmd.model.secrets import SecretRule, parse_secret, parse_source
from nsmd.network.secrets import vault
from nsmd.network.secrets import vault as vaults
from nsmd.network.secrets.grant import GRANT, MODULE, Grant, GrantRecord, HelperProcess
from nsmd.network.secrets.service import SecretService
from nsmd.network.secrets.vault import SourceError, Vault, read_value

if TYPE_CHECKING:
    from pathlib import Path

HOST = ("a.example", 443)


async def read_source(secret: SecretRule) -> str:
    return read_value(secret.source, os.environ)


async def make_vault(directory: Path) -> Vault:
    source = f"command: sh -c 'echo >>{directory}/asked; cat {directory}/token'"
    (directory / "token").write_text("the-first-token")
    return await Vault.read([parse_secret("key", source, [HOST[0]], ["env: KEY"])], {}, read_source)


def asked(directory: Path) -> int:
    return len((directory / "asked").read_text().splitlines())


async def test_a_refused_value_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = await make_vault(tmp_path)
    stand_in = vault.stand_ins["key"]
    (tmp_path / "token").write_text("another-token-of-now")
    await vault.refresh(["key"])
    assert asked(tmp_path) == 1
    vault.refused(["key"])
    await vault.refresh(["key"])
    assert asked(tmp_path) == 1  # too soon
    later = time.monotonic() + vaults.LEAST_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await vault.refresh(["key"])
    await vault.refresh(["key"])
    assert asked(tmp_path) == 2
    assert vault.usable(*HOST)["key"] == (stand_in, "another-token-of-now")
    for value in (b"the-first-token", b"another-token-of-now"):
        assert vault.patterns.replace(value) == stand_in.encode()


async def test_a_source_that_fails_later_leaves_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vault = await make_vault(tmp_path)
    (tmp_path / "token").unlink()
    vault.refused(["key"])
    later = time.monotonic() + vaults.LEAST_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await vault.refresh(["key"])
    assert vault.usable(*HOST)["key"][1] == "the-first-token"
    assert capsys.readouterr().err == (
        "secret key keeps its old value: sh failed (exit code 1); run it yourself to see why\n"
    )


async def test_a_revoked_secret_is_usable_nowhere(tmp_path: Path) -> None:
    vault = await make_vault(tmp_path)
    vault.revoke("key")
    vault.revoke("nothing")
    assert vault.usable(*HOST) == {}
    assert vault.added_headers(*HOST) == []
    assert b"first" not in vault.patterns.replace(b"the-first-token")


async def test_values_that_are_replaced_often_are_searched_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = await make_vault(tmp_path)
    stand_in, now = vault.stand_ins["key"], time.monotonic()

    async def replace_by(number: int, after_s: float) -> None:
        nonlocal now
        now += after_s
        monkeypatch.setattr(time, "monotonic", lambda: now)
        (tmp_path / "token").write_text(f"token-number-{number:02}")
        vault.refused(["key"])
        await vault.refresh(["key"])

    for number in range(12):
        await replace_by(number, vaults.LEAST_AGE_S + 1)
    for number in range(12):
        value = f"token-number-{number:02}".encode()
        assert vault.patterns.replace(value) == stand_in.encode()
    await replace_by(12, vaults.FORMER_S)
    values = [f"token-number-{number:02}".encode() for number in range(13)]
    found = [vault.patterns.replace(value) != value for value in values]
    assert found == [False] * 8 + [True] * 5


VARIABLES = {"PATH": os.defpath, "HOME": "/", "TOKEN": "token-of-a-variable"}


def read(text: str) -> str:
    return read_value(parse_source(text), VARIABLES)


@pytest.mark.parametrize("text", ["a-long-token", "a-long-token\n", "a-long-token\r\n"])
def test_one_line_is_a_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    assert read(f"file: {tmp_path}/token") == "a-long-token"
    assert read(f"command: cat {tmp_path}/token") == "a-long-token"


def test_a_keyring(tmp_path: Path) -> None:
    program = tmp_path / "secret-tool"
    program.write_text('#!/bin/sh\necho "$*" | tr " " -\n')
    program.chmod(0o755)
    variables = {**VARIABLES, "PATH": f"{tmp_path}:{os.defpath}"}
    found = read_value(parse_source("keyring: git ada"), variables)
    assert found == "lookup-service-git-username-ada"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: true", "nothing"),
        ("command: printf 'first-line\\nSECRET-line'", "2 lines"),
        ("command: echo SECRET with spaces", "spaces"),
        ("command: echo SECRET", "6 characters"),
        ("command: sh -c 'echo SECRET-and-more; echo SECRET >&2; exit 3'", "exit code 3"),
        ("command: sh -c 'kill -9 $$'", "signal 9"),
        ("command: /nowhere/program SECRET", "cannot be started"),
        ("command: head -c 100000 /dev/zero", "too much"),
        ("file: /nowhere/token", "cannot be read"),
        ("file: /dev/null", "not an ordinary file"),
        ("environment: NOTHING", "no variable NOTHING"),
    ],
)
def test_no_value_and_why_without_what_came(text: str, expected: str) -> None:
    with pytest.raises(SourceError, match=expected) as caught:
        read(text)
    assert "SECRET" not in str(caught.value)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "TIMEOUT_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="was ended"):
        read(f"command: sh -c 'sh -c \"echo $$ >{tmp_path}/pid; cat {tmp_path}/pipe\" & wait'")
    for line in (tmp_path / "pid").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line), signal.SIGCONT)


def test_a_command_whose_child_keeps_its_output_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = read(f"command: sh -c 'cat {tmp_path}/pipe & echo a-long-token'")
    assert found == "a-long-token"


HELPER = """
import sys; sys.path += sys.argv.pop(1).split(':')
import trio
from nsmd.host.rights import give_up_rights
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.vault import Asker, SourceError

async def helper(path):
    sources = {'command': f'command: cat {path}', 'file': f'file: {path}'}
    secrets = [parse_secret(*each, ['a.example'], ['env: KEY']) for each in sources.items()]
    asker = Asker(secrets)
    for line in sys.stdin:
        for secret in secrets:
            try:
                print(secret.name, await asker.ask(secret), flush=True)
            except SourceError as error:
                print(error, flush=True)
        if line == 'first\\n':
            give_up_rights()
trio.run(helper, sys.argv[1])
"""

CANCELLED = """
import sys; sys.path += sys.argv.pop(1).split(':')
import os, trio, trio.testing
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.vault import Asker

async def helper(gate, path):
    gated = parse_secret('gated', f'command: head -n 1 {gate}', ['a.example'], ['env: A'])
    other = parse_secret('other', f'file: {path}', ['b.example'], ['env: B'])
    asker = Asker([gated, other])
    writer = os.open(gate, os.O_RDWR)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask, gated)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.write(writer, b'value-for-a\\n')
    print(await asker.ask(other))
    os.write(writer, b'next-value-for-a\\n')
    print(await asker.ask(gated))
trio.run(helper, *sys.argv[1:])
"""


def test_an_answer_that_came_too_late_is_not_taken_for_another(tmp_path: Path) -> None:
    gate, token = tmp_path / "gate", tmp_path / "token"
    os.mkfifo(gate)
    token.write_text("value-for-b")
    said = subprocess.check_output(
        [sys.executable, "-I", "-c", CANCELLED, PACKAGES, gate, token], text=True
    )
    assert said.splitlines() == ["value-for-b", "next-value-for-a"]


def test_a_helper_without_rights_gets_new_values(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", HELPER, PACKAGES, token],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None

        def asked(line: str) -> list[str]:
            assert helper.stdin is not None
            assert helper.stdout is not None
            print(line, file=helper.stdin, flush=True)
            return [helper.stdout.readline().strip() for _ in range(2)]

        for value in ("the-first-token", "the-second-token"):
            token.write_text(value)
            assert asked(value.split("-")[1]) == [f"command {value}", f"file {value}"]
        token.unlink()
        assert asked("third") == [
            "cat failed (exit code 1); run it yourself to see why",
            f"the file {token} cannot be read: No such file or directory",
        ]
        helper.stdin.close()
        assert helper.stdout.read() == ""  # nobody has it any more, so the asker has ended
    assert helper.returncode == 0


ENDED = """
import sys; sys.path += sys.argv.pop(1).split(':')
import os, signal, trio
from nsmd.host.rights import give_up_rights
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.vault import Asker

async def helper(path):
    secret = parse_secret('key', f'file: {path}', ['a.example'], ['env: KEY'])
    asker = Asker([secret])
    for then in (kill, nothing, kill_and_give_up, nothing):
        print(await asker.ask(secret), flush=True)
        then()

def nothing():
    pass

def kill():
    with open('/proc/thread-self/children') as children:
        pid = int(children.read())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def kill_and_give_up():
    kill()
    give_up_rights()

trio.run(helper, sys.argv[1])
"""


def test_an_asker_that_was_killed_is_replaced_or_the_helper_ends(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-only-token")
    done = subprocess.run(
        [sys.executable, "-I", "-c", ENDED, PACKAGES, token],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout.splitlines() == 3 * ["the-only-token"]
    ends = "a secret helper ends: what reads its values has ended\n"
    assert (done.returncode, done.stderr) == (1, ends)


REQUEST = b'"host": "a.test", "port": 443, "method": "GET", "path": "/"'


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense",
        b"[" * 200_000,
        b"[]",
        b'{"op": "used"}',
        b'{"op": "other", %s}' % REQUEST,
        b'{"op": "used", %s, "secrets": "key"}' % REQUEST,
        b'{"op": "used", %s, "secrets": ["another"]}' % REQUEST,
        b'{"op": "refused", %s, "why": 1}' % REQUEST,
    ],
)
def test_a_helper_that_sends_a_wrong_message_is_ended(message: bytes) -> None:
    record = GrantRecord(
        owner="s", secrets=(), certificate="", stand_ins={"key": "x"}, control="", state=""
    )
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def use(pid: int) -> None:
        helper, seen = HelperProcess.taken_up(os.pidfd_open(pid), its.detach()), os.pidfd_open(pid)
        state = os.memfd_create("state")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                grant = Grant(
                    record, helper, state, store=NoStore(), events=Events(), nursery=nursery
                )
                ours.send(b'{"op": "used", %s, "secrets": ["key"]}' % REQUEST)
                ours.send(message)
                await trio.lowlevel.wait_readable(seen)
                assert grant.uses == {"key": 1}
                grant.end()
        assert has_ended(seen)
        os.close(seen)

    with ours, subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            trio.run(use, process.pid)
        finally:
            process.kill()


def test_helpers_of_sessions_that_have_ended_meanwhile_are_ended() -> None:
    """Each is gone before its messages are waited for."""

    async def use(pids: list[int]) -> None:
        service = SecretService(store=NoStore(), events=Events())
        kept: dict[str, list[int]] = {}
        for pid in pids:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.close()
            state = os.memfd_create("state")
            record = GrantRecord(
                owner=f"s{pid}",
                secrets=(),
                certificate="",
                stand_ins={},
                control=records.identity(its.fileno()),
                state=records.identity(state),
            )
            file = memory_file(records.encode(record))
            kept[GRANT + record.owner] = [file, os.pidfd_open(pid), its.detach(), state]
        service.take_up(KeptEntries(NoStore(), kept))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(service.serve, set[str])
                for pid in pids:
                    await service.wait_taken_up(f"s{pid}")
                    assert service.held_by(f"s{pid}") is None
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()

    processes = [subprocess.Popen(["sleep", "infinity"]) for _ in range(2)]
    try:
        trio.run(use, [process.pid for process in processes])
        assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 2
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_helper_ends_if_the_supervisor_has_gone_before_it_is_ready() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        state = os.memfd_create("state")
        begin = {"op": "begin", "secrets": [], "request_rules": ["GET https://a.example/*"]}
        socket.send_fds(ours, [json.dumps(begin).encode()], [state])
        os.close(state)
        ours.close()
        program = [sys.executable, "-I", "-c", START.format(MODULE), PACKAGES]
        assert subprocess.run(program, stdin=its.fileno(), check=False).returncode == 0
