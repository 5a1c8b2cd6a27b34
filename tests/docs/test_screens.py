"""The pictures in docs are what the programs show today, in a real tmux."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

import screens
from e2e_support import supervisor
from realjail import needs_bwrap
from svgscreen import text_of

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
