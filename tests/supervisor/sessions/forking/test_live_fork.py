"""The supervisor's part of forks: its own refusals, and the fork server started and killed."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nsm.wire.errors import ForkRefusedError
from nsmd.sessions.forking.live_fork import Helpers, check_forkable
from nsmd.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(("undo", "why"), [(0, "while code runs in it"), (1, "during an undo")])
def test_a_busy_session_is_refused_with_what_it_does(undo: int, why: str) -> None:
    original = SimpleNamespace(
        id="s",
        name="work",
        spec=SimpleNamespace(environment=SimpleNamespace(interpreter="python", image=None)),
        jail=None,
        runs=SimpleNamespace(
            waiting=(), running=SimpleNamespace(request=SimpleNamespace(undo=undo))
        ),
    )
    with pytest.raises(ForkRefusedError, match=f"'work' cannot be forked {why}"):
        check_forkable(cast("Session", original))


class _Killed(subprocess.Popen[bytes]):
    """A process that is killed at its start."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, **options)
        self.kill()
        self.wait()


def test_a_helper_killed_at_its_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_helper_finds_its_modules_if_the_supervisor_ends_at_once(
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
