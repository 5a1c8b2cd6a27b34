"""Values that are read again for a helper that can open no file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from nsmd.host.monitors.monitored import PACKAGES

if TYPE_CHECKING:
    from pathlib import Path

HELPER = """
import sys; sys.path += sys.argv.pop(1).split(':')
import trio
from nsmd.host.rights import give_up_rights
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.asker import Asker
from nsmd.network.secrets.source import SourceError

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
