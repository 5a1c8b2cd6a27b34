"""Every example in the README and in `docs/` does what its page says.

A ``console`` block holds commands after ``$ `` and what they print, standard error included; after
a comment ``<!-- numbers vary -->`` numbers, ids and paths need not be the same. A ``python`` block
is run as a program; comments at its `print` lines are what it prints. A block after a comment
``<!-- file PATH -->`` is written to that file, for what follows. Blocks of a page share one
supervisor and one directory, in the order of the page. ``toml`` and ``json`` blocks have to be
valid. Indented blocks are not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pages
from e2e_support import Supervisor, end_supervisor, supervisor
from packageindex import index_server

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[2]
MADE = {pages.DOCS / f"{name}.md" for name in pages.PAGES}
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - MADE)
BLOCK = re.compile(r"^(<!-- [^\n]* -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = "<!-- numbers vary -->"
FILE = re.compile(r"<!-- file ~/(\S+) -->")
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
COMMAND_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: where it is, the comment before it, its language and text."""

    page: str
    line: int
    comment: str
    language: str
    text: str

    def same(self, expected: str, printed: str) -> bool:
        """Return whether a program printed the text of the block."""
        if self.comment == VARIES:
            return without_numbers(expected) == without_numbers(without_slowness(printed))
        return expected == printed

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start()) + 1,
            comment=(match[1] or "").strip(),
            language=match[2],
            text=match[3],
        )
        for match in BLOCK.finditer(text)
    ]


ALL = [
    block
    for page in PAGES
    for block in blocks(page)
    if not block.comment.startswith("<!-- with ")  # a framework: tests/integrations runs these
]
RUNNING = sorted({block.page for block in ALL if block.language in {"console", "python"}})
"""Pages with examples that are run."""

FIRST = ("README.md", "docs/tutorial/", "docs/reference/")
"""Pages that `make test` runs; the guides are long, and `make soak` runs them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Supervisor and project directory for running examples."""

    supervisor: Supervisor
    directory: Path

    def run(self, *command: str) -> str:
        """Run a program as the reader of the page would; what it prints."""
        own, scripts = self.supervisor.directory / "bin", Path(sys.executable).parent
        variables = {
            **self.supervisor.variables,
            "PATH": f"{own}:{scripts}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONWARNINGS": "error",
        }
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Make a file below the reader's home directory."""
        file = self.supervisor.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)


@pytest.fixture(
    scope="module",
    params=[
        page if page.startswith(FIRST) else pytest.param(page, marks=pytest.mark.slow)
        for page in RUNNING
    ],
)
def page(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(page: str) -> Generator[Place]:
    """One supervisor for each of those pages."""
    assert page
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as private,
        tempfile.TemporaryDirectory(prefix="nsm-project-") as project,
        supervisor(Path(private)) as running,
        index_server(None) as index,
    ):
        # Packages of the examples, from the indexes that the reader's pip and npm know.
        for name in ("numpy", "pandas"):
            index.add_project(name, "2.3.3")
        index.host = "127.0.0.1"
        zod = tarfile.TarInfo("package/index.js")
        index.add_npm(
            "zod", "4.0.0", more=[(zod, b"exports.z = {number: () => ({parse: Number})}")]
        )
        index.add_esbuild()
        Path(private, ".npmrc").write_text(f"registry = {index.url('/npm/')}\n")
        url = index.url("/simple")
        Path(private, "config/pip").mkdir(parents=True)
        Path(private, "config/pip/pip.conf").write_text(f"[global]\nindex-url = {url}\n")
        # `python3` is the supervisor's, not that of the virtual environment of these tests.
        python3 = Path(private, "bin/python3")
        python3.parent.mkdir()
        python3.write_text(f'#!/bin/sh\nexec {shutil.which("python3")} "$@"\n')
        python3.chmod(0o755)
        Path(project).chmod(0o755)  # under root, jails run as another user
        Path(private, ".config").symlink_to("config")  # pages say where it is without variables
        Path(private, "nsm").symlink_to(ROOT)  # the reader's clone
        yield Place(running, Path(project))
        # An example may have ended this one, and a later one have started another.
        end_supervisor(running.socket)


def examples(text: str) -> list[tuple[str, str]]:
    """Commands of a console block, each with what it has to print."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with a command"
    return [(command, expected) for command, _, expected in (p.partition("\n") for p in parts[1:])]


def without_slowness(printed: str) -> str:
    """Leave out lines that only a slow machine has: audit lines about running code, and phases of
    builds.
    """
    lines = r"^(?:.* runs \w+ \(\d+ bytes\) in .*|nsm: \w+: [a-z]+ing)\n"
    return re.sub(lines, "", printed, flags=re.MULTILINE)


def without_numbers(text: str) -> str:
    """The text without what differs from run to run, and the spaces that align it."""
    text = re.sub(r"\+[0-9a-f]{8}\b", "", text)  # the commit, where it is known
    text = re.sub(r"\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(r"(?<!\w)~?/\S+", "PATH", text)
    # What keeps a session to its limits is the host's: the last column of `nsm ps`.
    text = re.sub(r"(?m)\b(cgroup|watchdog|processes)$", "LIMITS", text)
    return re.sub(r" +", " ", re.sub(r"[\d.]+", "0", text))


def test_examples_do_what_the_page_says(page: str, place: Place) -> None:
    ran = 0
    node = shutil.which("node") is not None
    for block in (block for block in ALL if block.page == page):
        if (file := FILE.fullmatch(block.comment)) is not None:
            place.write(file[1], block.text)
        elif block.language == "console":
            for command, expected in examples(block.text):
                if "node" in command + expected and not node:
                    continue  # optional; in CI its own tests tell that it is missing
                printed = place.run("bash", "-c", command)
                if command.startswith("nsm audit") and not block.same(expected, printed):
                    time.sleep(1)  # on a slow machine, the last lines are still to be written
                    printed = place.run("bash", "-c", command)
                assert block.same(expected, printed), f"{block}: {command}\n{printed}"
                ran += 1
        elif block.language == "python":
            comments: list[str] = PRINTS.findall(block.text)
            printed = place.run(sys.executable, "-c", block.text)
            assert printed == "".join(f"{comment}\n" for comment in comments), f"{block}\n{printed}"
            ran += 1
    assert ran > (10 if page == "docs/tutorial/command-line.md" else 0)  # the blocks are found


@pytest.mark.parametrize("block", ALL, ids=str)
def test_data_is_valid(block: Block) -> None:
    match block.language:
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "nix":
            parse_nix(block)
        case "markdown" | "sh":
            assert FILE.fullmatch(block.comment), f"{block}: nobody uses it"
        case language:
            assert language in {"console", "python", "text"}, f"{block}: nobody tests {language}"


def parse_nix(block: Block) -> None:
    """Check that it is an expression, or attributes of one; other names in it count as known."""
    program = shutil.which("nix-instantiate")
    if program is None:
        pytest.skip("no nix-instantiate; `make test` brings it")
    # Parsing takes no store, and the one of this machine may be closed to us.
    variables = {**os.environ, "NIX_REMOTE": "dummy://"}
    texts = (f"known: with known; {block.text}", f"known: with known; {{ {block.text} }}")
    said = (
        subprocess.run(
            [program, "--parse", "-"],
            input=text,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        for text in texts
    )
    assert "" in said, block.text
