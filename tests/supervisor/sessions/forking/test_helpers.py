"""The fork server, started and killed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nsmd.sessions.forking.helpers import Helpers

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Killed(subprocess.Popen[bytes]):
    """A process that is killed at its start."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, **options)
        self.kill()
        self.wait()


def test_one_that_is_killed_at_its_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Helpers()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", _Killed)
        both.ask().close()
    try:
        with both.ask() as channel:
            channel.setblocking(True)
            channel.send(b"{}")
            assert channel.recv(65536) != b"", "a helper says what is wrong with its order"
    finally:
        both.close()


def test_it_finds_its_modules_if_the_supervisor_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Orphaned(subprocess.Popen[bytes]):
        """A process whose supervisor ends as soon as it has started it."""

        def __init__(self, command: Sequence[str], **options: Any) -> None:
            super().__init__(command, **options)
            started.append(self)
            raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", Orphaned)
    with pytest.raises(InterruptedError):
        Helpers().ask()
    assert (started[0].wait(), capfd.readouterr().err) == (0, "")
