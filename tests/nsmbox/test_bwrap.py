"""A plan as a command: what bash makes of it. The whole of it is in `golden/`."""

from __future__ import annotations

import os
import subprocess

import pytest

from box.plans import plan
from nsmbox.model.plan import Mount
from nsmbox.planning import bwrap

ODD = [
    "",
    "plain",
    'it\'s "so" $HOME `id` \\n !!',
    "two\nlines\tand \\ a 'quote'",
    "\x1b[2J\x07",
    "caf\u00e9 \u202e",
    os.fsdecode(b"\xff\xfe0\n1"),
    "--",
    "\x7fdel0",
]


@pytest.mark.parametrize("word", ODD)
def test_bash_reads_each_word_as_it_was(word: str) -> None:
    script = b"printf '%s.' " + os.fsencode(bwrap.quoted(word))
    assert not [c for c in os.fsdecode(script) if not c.isprintable()], "a terminal obeys nothing"
    told = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert told == os.fsencode(word) + b"."


def test_a_pasted_command_gives_bwrap_the_same_arguments() -> None:
    """In the place of bwrap, a program that tells its arguments and reads its descriptors."""
    made = plan(
        directory="/srv/a 'b'\n\udcffc",
        mounts=[Mount(kind="ro-file", target="/note", data=b"text\n\0 \xff")],
        variables=[("API_KEY", "hidden"), ("URL", "https://u:p@h/"), ("ODD", "x\n'y'")],
    )
    tells = "import os, sys; print(sys.argv, os.environ.get('API_KEY'))\n"
    tells += "for at, word in enumerate(sys.argv):\n"
    tells += "    if word == '--ro-bind-data': print(os.read(int(sys.argv[at + 1]), 99))\n"
    text = bwrap.command(made, "/nowhere/bwrap", syscalls=None)
    assert "hidden" not in text
    assert "p@h" not in text
    text = text.replace("/nowhere/bwrap", f"/usr/bin/env python3 -c {bwrap.quoted(tells)}", 1)
    done = subprocess.run(["bash", "-c", os.fsencode(text)], capture_output=True, check=True)
    told = done.stdout.decode()
    assert "--chdir', \"/srv/a 'b'\\n\\udcffc\"" in told
    assert "'--setenv', 'ODD', \"x\\n'y'\"" in told
    assert "b'text\\n\\x00 \\xff'" in told
    assert f"'--', {', '.join(map(repr, made.command))}]" in told
