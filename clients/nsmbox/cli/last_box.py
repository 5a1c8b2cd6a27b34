"""`nsm box --keep-last`: files that the last box left outside of the project."""

from __future__ import annotations

import os

from nsm.cli import terminal
from nsm.cli.options import EXIT_OK
from nsm.cli.render import formats
from nsmbox.start import unsaved_files


def get_back(target: str) -> int:
    """Copy these files into a new directory, and print its path."""
    path, count = unsaved_files.get_back(os.getcwd(), target)
    terminal.out(f"{formats.count(count, 'file')} in {formats.visible(path)}")
    return EXIT_OK
