"""Programs that people use, as they are, through the proxy: they find it by themselves."""

from __future__ import annotations

import subprocess
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from netbench import NetBench, open_netbench
from nsmd.model.values import NetworkRule
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = needs_bwrap

HOST = "host.nsm.internal"


class Files(SimpleHTTPRequestHandler):
    """Serves a directory, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def site(tmp_path: Path) -> Generator[tuple[Path, str]]:
    """A directory, and the URL under which it is served on the host's loopback."""
    handler = partial(Files, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield tmp_path, f"http://{HOST}:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def said(bench: NetBench, code: str, *, absent: str = "not there: ") -> str:
    result = await bench.text(f"({code}) 2>&1", env="bash")
    if result.startswith(absent):
        pytest.skip(f"not here: {result.strip()}")
    return result


def rule(url: str) -> NetworkRule:
    return NetworkRule(mode="allow", allow=(url.removeprefix("http://"),))


@pytest.mark.slow
async def test_pip(site: tuple[Path, str]) -> None:
    directory, url = site
    folder = directory / "simple" / "nsm-sample"
    folder.mkdir(parents=True)
    info = "nsm_sample-1.0.dist-info"
    with zipfile.ZipFile(folder / "nsm_sample-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nsm_sample.py", "said = 'from the index'\n")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: nsm-sample\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    async with open_netbench({"bash": rule(url)}) as bench:
        found = await said(
            bench,
            "python3 -c 'import pip' 2>/dev/null || { echo not there: pip; exit; }; "
            f"python3 -m pip install -q --target /tmp/t --index-url {url}/simple "
            f"--trusted-host {HOST} nsm-sample && "
            "PYTHONPATH=/tmp/t python3 -c 'import nsm_sample; print(nsm_sample.said)'; "
            "python3 -m pip download -q --retries 0 --index-url http://other.test/simple "
            "--trusted-host other.test nsm-sample || :",
        )
        assert found.startswith("from the index\n")
        assert "403" in found or "ERROR" in found
        verdicts = [(d.host, d.verdict) for d in bench.network().decisions_since()]
        assert (HOST, "allowed") in verdicts
        assert ("other.test", "not-allowed") in verdicts


def make_repository(directory: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(directory)]
    for words in (
        ["init", "-q", "work"],
        ["-C", "work", "commit", "-q", "--allow-empty", "-m", "first"],
        ["clone", "-q", "--bare", "work", "bare.git"],
        ["-C", "bare.git", "update-server-info"],
    ):
        subprocess.run([*git, *words], check=True)


async def test_git(site: tuple[Path, str]) -> None:
    directory, url = site
    make_repository(directory)
    async with open_netbench({"bash": rule(url)}) as bench:
        found = await said(
            bench,
            "command -v git >/dev/null || { echo not there: git; exit; }; cd /tmp && "
            f"git clone -q {url}/bare.git c && git -C c log --format=%s; "
            "git clone -q http://other.test/bare.git d || :; "
            "git clone -q ssh://other.test/bare.git e || :",
        )
        first, *refused = found.splitlines()
        assert first == "first"
        assert "error: 403" in "".join(refused)
