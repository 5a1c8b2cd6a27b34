"""Words of `claudebox` and `nsm box` to what is asked for; what goes wrong to exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsmbox.cli import claudebox, common
from nsmbox.model.plan import BOUNDS, BoxError, BoxLimits, complete_limits

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    ("words", "own", "others"),
    [
        ("", "", ""),
        ("--yes", "yes", ""),
        ("-p hello --yes --model opus", "yes", "-p hello --model opus"),
        ("--dry-run --check mcp list", "dry_run check", "mcp list"),
        ("--yes -- --yes --check", "yes", "-- --yes --check"),
        ("--yes=1 --dry-run-too -y --version", "", "--yes=1 --dry-run-too -y --version"),
    ],
)
def test_three_words_are_claudeboxs_own(words: str, own: str, others: str) -> None:
    assert claudebox.split(words.split()) == (set(own.split()), others.split())


def test_failures_are_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise BoxError("no \x1b[2Jclaude", hint="Install it.", exit_code=127)

    def is_interrupted() -> int:
        raise KeyboardInterrupt

    def is_full() -> int:
        raise OSError(28, "No space left on device", "/tmp/x")

    assert common.guarded("claudebox", fails) == 127
    assert capsys.readouterr().err == "claudebox: no \\x1b[2Jclaude\nInstall it.\n"
    assert common.guarded("claudebox", is_interrupted) == 130
    assert common.guarded("nsm box", is_full) == 1
    assert "nsm box: /tmp/x: No space left on device\nMake room there.\n" in capsys.readouterr().err
    assert common.guarded("nsm box", lambda: 0) == 0


def test_defaults_suit_the_machine() -> None:
    assert complete_limits({}, 24000) == BoxLimits(
        memory_mb=18000, home_mb=3000, tmp_mb=3000, shm_mb=3000
    )
    small = complete_limits({"tmp_mb": 7, "home_mb": None}, 512)
    assert (small.memory_mb, small.home_mb, small.tmp_mb) == (1024, 1024, 7)


def test_an_option_is_a_name_and_a_number() -> None:
    assert common.limit("tmp_mb=64") == ("tmp_mb", 64)
    for text in (
        "tmp_mb",
        "tmp_mb=",
        "tmp_mb=-1",
        "tmp_mb=1e3",
        "tmp_mb=0",
        "swap=1",
        "=1",
        "",
        "tmp_mb=\u0664",
    ):
        with pytest.raises(ValueError, match=r"names are|expected a number"):
            common.limit(text)
    for name, (least, most) in BOUNDS.items():
        assert common.limit(f"{name}={most}") == (name, most)
        with pytest.raises(ValueError, match=f"expected a number from {least} to {most}"):
            common.limit(f"{name}={most + 1}")
