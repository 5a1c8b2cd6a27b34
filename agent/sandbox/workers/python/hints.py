"""Hints for lines that are not Python: magics of IPython, commands of a shell."""

from __future__ import annotations

import re

SHELL_COMMANDS = frozenset(
    "apt apt-get bash cat cd chmod conda cp curl docker echo export find git grep head ls make "
    "mkdir mv node npm npx pip pip3 pwd python python3 rm sed sh sudo tail touch uv wget "
    "which".split()
)
"""Names with which lines begin that people type in a shell."""


MAGICS = {
    "matplotlib": "leave the line out: figures are shown anyway",
    "timeit": "use timeit.timeit",
    "time": "use time.perf_counter",
    "cd": "use os.chdir",
    "pip": "it would be `python -m pip` in a shell",
    "run": "use runpy.run_path",
    "bash": "run the code in a Bash environment",
    "sh": "run the code in a Bash environment",
}


def hint_for(line: str) -> str:
    """Sentence on what to write instead of a line of IPython or of a shell, or an empty text."""
    line = line.strip()
    short = line if len(line) <= 60 else line[:59] + "\u2026"
    if found := re.match(r"(?:[\w, ]+=\s*)?!\s*(.+)", line):
        return (
            f"`{short}` is IPython syntax: run the command in a Bash environment, or with "
            f"subprocess.run({found[1][:80]!r}, shell=True)"
        )
    if found := re.match(r"(?:[\w, ]+=\s*)?%%?([A-Za-z_]\w*)", line):
        instead = MAGICS.get(found[1], "leave it out, or write it in Python")
        return f"`{short}` is a magic of IPython, which plain Python does not have: {instead}"
    found = re.fullmatch(r"\?{0,2}([A-Za-z_][\w.]*)\?{0,2}", line)
    if found and "?" in line:
        return f"`{short}` is IPython syntax: help({found[1]}) prints the documentation"
    found = re.match(r"([a-z][a-z0-9-]*)(?:\s+[^\s=(]|$)", line)
    if found and found[1] == "cd":
        return f"`{short}` is a shell command: os.chdir changes the directory"
    if found and found[1] in SHELL_COMMANDS:
        return (
            f"`{short}` is a shell command: run it in a Bash environment, or with "
            f"subprocess.run({line[:80]!r}, shell=True)"
        )
    return ""
