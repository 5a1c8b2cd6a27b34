"""Values that are read again for a helper that can open no file."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from nsmd.host.child_processes import PACKAGES

if TYPE_CHECKING:
    from pathlib import Path

HELPER = """
import sys; sys.path += sys.argv.pop(1).split(':')
import trio
from nsmd.host.rights import give_up_rights
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.source import Asker, SourceError

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
from nsmd.network.secrets.source import Asker

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
from nsmd.network.secrets.source import Asker

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
