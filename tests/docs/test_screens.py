"""The pictures in docs are what the programs show today, in a real tmux."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

import screens
from e2e_support import supervisor
from realjail import needs_bwrap
from svgscreen import draw, plain, text_of

pytestmark = [needs_bwrap, pytest.mark.jail]

HINT = "run tools/screens.py"

needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="not here: tmux is not installed, and nsm does not need it"
)


@pytest.mark.slow
@needs_tmux
def test_pictures_show_what_the_programs_show() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as directory,
        supervisor(Path(directory), config=screens.CONFIGURATION) as own,
    ):
        taken = screens.pictures(own.variables)
    for name, picture in taken.items():
        kept = (screens.PICTURES / f"{name}.svg").read_text()
        assert screens.form(text_of(kept)) == screens.form(text_of(picture)), HINT


def test_a_picture_keeps_its_text() -> None:
    screen = "\x1b[1;31mred <&> \x1b[0mplain\n  \x1b[7m reversed \x1b[27m\n"
    assert text_of(draw(screen, columns=20)) == plain(screen).replace("reversed ", "reversed")


def test_a_form_is_what_does_not_differ_from_run_to_run() -> None:
    one = "train   running  9s   99.5  7.1 MiB  8a53cd2e\n"
    assert screens.form(one) == screens.form("train  running 1m02s 3.0 120.9 MiB 0000ffff\n")
    assert screens.form(one) != screens.form(one.replace("running", "idle"))
