"""Files that are in the project, and not where the code looks for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from denial_notes import notes_of, project
from nsmd.host.paths import has_below

PANDAS = """\
Traceback (most recent call last):
  File "<exec 1>", line 1, in <module>
    pd.read_csv("{}")
  File "/usr/lib/python3/dist-packages/pandas/io/common.py", line 859, in get_handle
    handle = open(
FileNotFoundError: [Errno 2] No such file or directory: '{}'
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "sales.csv").touch()
    (tmp_path / "data" / "x").touch()
    (tmp_path / "link").symlink_to("/etc")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "path"),
    [
        (PANDAS, "sales.csv"),
        ("cat: {}: No such file or directory", "sales.csv"),
        ("bash: line 3: ./{}: No such file or directory", "data/x"),
        ("ls: cannot access '{}': No such file or directory", "data"),
        ("Uncaught Error: ENOENT: no such file or directory, open '{}'", "data/x"),
        ("python3: can't open file '/workspace/{}': [Errno 2] No such file or directory", "data/x"),
    ],
)
def test_the_result_says_where_the_file_is(shop: Path, said: str, path: str) -> None:
    seen = dataclasses.replace(project(), path=str(shop))
    text = said.replace("{}", path)
    note = f"/workspace is the working directory; the file is at /project/{path}"
    assert notes_of(text, seen=seen) == (note,)
    assert notes_of(text, seen=seen, exit_code=0) == ()
    assert notes_of(said.replace("{}", "other.csv"), seen=seen) == ()


@pytest.mark.parametrize("path", ["link/passwd", "link", "../passwd", "data/../../etc", "x\0y", ""])
def test_no_link_is_followed_out_of_the_project(shop: Path, path: str) -> None:
    assert not has_below(str(shop), path)
    assert has_below(str(shop), "./data//x")
