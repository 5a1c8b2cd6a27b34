"""uv and npm as they are, through the proxy to a local index with TLS and credentials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import trio
from uv import find_uv_bin

from nsm.dataclass import replace
from nsmd.environments.packages.indexes import Index, IndexCredentials, Indexes
from packageindex import HTML, JSON, IndexServer, Jail, opened

SECRETS = ("hunter2", "YWRhOmh1bnRlcjJodW50ZXIy")
"""The password, and how it looks in a header."""


async def run(
    jail: Jail, place: Path, command: Sequence[str], more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as in a jail, with nothing of our own environment."""
    home = place / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        **jail.environment,
        **(more or {}),
    }
    done = await trio.run_process(
        command, cwd=place, env=environment, capture_stdout=True, capture_stderr=True, check=False
    )
    output = (done.stdout + done.stderr).decode()
    assert not [secret for secret in SECRETS if secret in output]
    for path in place.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [secret for secret in SECRETS if secret.encode() in content], path
    return subprocess.CompletedProcess(command, done.returncode, output)


def uv(target: str, *wanted: str) -> list[str]:
    python = ("--python", sys.executable)
    return [find_uv_bin(), "pip", "install", *python, "--target", target, *wanted]


async def test_a_package_and_what_it_needs_are_installed(
    server: IndexServer, indexes: Indexes, tmp_path: Path
) -> None:
    server.add_project("leaf", "1.0", "1.5")
    server.add_project("demo", "1.0", "2.0", requires="leaf<1.5")
    async with opened(indexes) as jail:
        done = await run(jail, tmp_path, uv("here", "demo"))
        assert done.returncode == 0, done.stdout
        assert "'2.0'" in (tmp_path / "here/demo.py").read_text()
        assert "'1.0'" in (tmp_path / "here/leaf.py").read_text()
        # The metadata was enough to choose, so the other versions did not come.
        assert not [
            each for each in server.asked if each.path.endswith("demo-1.0-py3-none-any.whl")
        ]
        assert not jail.proxy.problems
    first = len(server.asked)
    async with opened(indexes) as jail:
        again = await run(jail, tmp_path, uv("there", "demo"))
        assert again.returncode == 0, again.stdout
    assert (tmp_path / "there/demo.py").exists()
    wheels = [each for each in server.asked[first:] if each.path.endswith(".whl")]
    assert all("if-none-match" in each.headers for each in wheels), "a cache knows the files"


async def test_json_pages_ranges_and_redirects(
    server: IndexServer,
    other: IndexServer,
    indexes: Indexes,
    tmp_path: Path,
) -> None:
    """An index as PyPI has it, but with the files elsewhere, without metadata beside them."""
    server.add_wheel("demo", "1.0")
    name = "demo-1.0-py3-none-any.whl"
    other.files[f"/blobs/{name}"] = server.files.pop(f"/files/{name}")
    file: dict[str, object] = {"filename": name, "url": f"/get/{name}?sign=hunter2", "hashes": {}}
    page = {"meta": {"api-version": "1.0"}, "name": "demo", "files": [file]}
    server.add("/simple/demo/", JSON, json.dumps(page))
    server.handlers[f"/get/{name}?sign=hunter2"] = lambda h: h.redirect(other.url(f"/blobs/{name}"))
    async with opened(indexes, f"*.example.test:{other.port}") as jail:
        done = await run(jail, tmp_path, uv("here", "demo"))
        assert done.returncode == 0, done.stdout
    assert (tmp_path / "here/demo.py").exists()


async def test_a_page_of_links_and_a_local_directory(
    server: IndexServer, indexes: Indexes, tmp_path: Path
) -> None:
    local = tmp_path / "some wheels, local"
    local.mkdir()
    server.add_wheel("near", "1.0")
    name = "near-1.0-py3-none-any.whl"
    (local / name).write_bytes(server.files.pop(f"/files/{name}")[1])
    server.add("/links.html", HTML, server.add_wheel("far", "1.0"))
    page = Index(name="", url=server.url("/links.html"), credentials=indexes.python[0].credentials)
    indexes = replace(indexes, python=(), link_pages=(page,), find_links=(str(local),))
    async with opened(indexes) as jail:
        done = await run(jail, tmp_path, uv("here", "near", "far"))
        assert done.returncode == 0, done.stdout
    assert (tmp_path / "here/near.py").exists()
    assert (tmp_path / "here/far.py").exists()


async def test_errors_say_what_the_matter_is(
    server: IndexServer, indexes: Indexes, tmp_path: Path
) -> None:
    server.add_project("demo", "1.0")
    server.login = "ada:another"
    async with opened(indexes) as jail:
        done = await run(jail, tmp_path, uv("here", "demo"), {"UV_HTTP_RETRIES": "0"})
        assert done.returncode != 0
        (problem,) = jail.proxy.problems
        assert problem == (
            "company answers 401: the user's credentials for it are missing or not accepted"
        )


@pytest.mark.node
async def test_npm_installs_and_its_lock_can_be_used_again(
    server: IndexServer, other: IndexServer, indexes: Indexes, tmp_path: Path
) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("not here: npm is missing")
    server.add_npm("left", "1.0.0")
    other.add_npm("@acme/right", "2.0.0")
    other.token = "token-hunter2"
    scoped = Index(
        name="acme",
        url=other.url("/npm/"),
        scope="@acme",
        credentials=IndexCredentials(token=other.token),
    )
    indexes = replace(indexes, npm=(*indexes.npm, scoped))
    (tmp_path / "package.json").write_text('{"name": "here", "version": "1.0.0"}')
    async with opened(indexes) as jail:
        install = [npm, "install", "--ignore-scripts", "left", "@acme/right"]
        done = await run(jail, tmp_path, install)
        assert done.returncode == 0, done.stdout
        assert (tmp_path / "node_modules/@acme/right/index.js").exists()
        lock = json.loads((tmp_path / "package-lock.json").read_text())
        resolved = [row["resolved"] for row in lock["packages"].values() if "resolved" in row]
        assert [jail.proxy.index_url(url) for url in resolved] == [
            other.url("/npm/@acme/right/-/right-2.0.0.tgz"),
            server.url("/npm/left/-/left-1.0.0.tgz"),
        ]
        shutil.rmtree(tmp_path / "node_modules")
        shutil.rmtree(tmp_path / "home")
        again = await run(jail, tmp_path, [npm, "ci", "--ignore-scripts"])
        assert again.returncode == 0, again.stdout
        assert (tmp_path / "node_modules/left/index.js").exists()
