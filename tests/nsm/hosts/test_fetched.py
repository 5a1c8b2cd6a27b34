"""Packages for another version of Python, from a local index."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

import pytest

from nsm.hosts import fetched
from nsm.wire.errors import HostError
from packageindex import IndexServer, index_server

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

OTHER = (3, 99)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[IndexServer]:
    """An index, and `program` as installed here, with what it needs with this Python."""
    with index_server(None) as server:
        for name in ("PIP_INDEX_URL", "UV_INDEX_URL"):
            monkeypatch.setenv(name, server.url("/simple", host="127.0.0.1"))
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        server.add_project("common", "1.0", "2.0")
        server.add_project("newer", "1.0", "2.0", "3.0", requires="below>=1")
        server.add_project("below", "1.0")
        program = {
            "common": "1.0",
            "older": "1.0",
            "program": "1.0\nRequires-Dist: common\n"
            'Requires-Dist: newer<3; python_version >= "3.99"\n'
            'Requires-Dist: older; python_version < "3.99"\n'
            'Requires-Dist: extra; extra == "more"',
        }
        for name, facts in program.items():
            place = tmp_path / "here" / f"{name}-1.0.dist-info"
            place.mkdir(parents=True)
            (place / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {facts}\n"
            )
        monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *sys.path])
        yield server


def no_module(_name: str) -> None:
    """Find no module, as a Python without pip does."""


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.usefixtures("index")
def test_what_the_other_python_needs(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are those that are installed here; what is not comes in a permitted one."""
    if tool == "uv":
        if shutil.which("uv") is None:
            pytest.skip("not here: no uv on PATH")
        monkeypatch.setattr(fetched, "find_spec", no_module)
    fetched.fetch("program", OTHER, str(tmp_path / "got"))
    got = {each.name: each.version for each in distributions(path=[str(tmp_path / "got")])}
    assert got == {"common": "1.0", "newer": "2.0", "below": "1.0"}


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.usefixtures("index")
def test_nothing_of_the_working_directory_has_a_say(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its modules, also where PYTHONPATH leads there, nor uv's configuration in it."""
    if tool == "uv":
        if shutil.which("uv") is None:
            pytest.skip("not here: no uv on PATH")
        monkeypatch.setattr(fetched, "find_spec", no_module)
    checkout = tmp_path / "checkout"
    for name in ("pip", "sitecustomize"):
        (checkout / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (checkout / name / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (checkout / "uv.toml").write_text("no-index = true\n")
    (checkout / "uv").write_text(f"#!/bin/sh\n>{tmp_path / 'ran'}\n")
    (checkout / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", ":")
    monkeypatch.chdir(checkout)
    fetched.fetch("program", OTHER, str(tmp_path / "got"))
    assert len(list(distributions(path=[str(tmp_path / "got")]))) == 3
    assert not (tmp_path / "ran").exists()


def test_a_package_that_is_not_there(index: IndexServer, tmp_path: Path) -> None:
    index.files.pop("/simple/below/")
    with pytest.raises(HostError, match=r"Python 3\.99 could not be fetched: .*below") as caught:
        fetched.fetch("program", OTHER, str(tmp_path / "got"))
    assert caught.value.hint


def test_without_pip_and_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "find_spec", no_module)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="has no pip, and uv is not on PATH") as caught:
        fetched.fetch("nsm-sessions", OTHER, str(tmp_path / "got"))
    assert sys.executable in caught.value.message
    assert "Install uv here" in (caught.value.hint or "")
