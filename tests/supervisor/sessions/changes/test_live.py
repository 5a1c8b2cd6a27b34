"""`nsm diff`, `nsm apply` and `nsm discard` on a session of a real supervisor."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_support import Supervisor, supervisor
from nsm.changes import Changes
from nsm.wire.errors import BadProjectError, BadRequestError
from realjail import needs_bwrap, open_directory

pytestmark = [pytest.mark.jail, needs_bwrap]

CHANGE_IT = r"""
cd /project && printf 'one\n2\n' > text && rm gone && mkdir -p new && echo n > 'new/odd
name' && mkfifo fifo && printf 'a\0b' > binary && git init -q . && chmod 755 tool
"""


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    with open_directory() as directory:
        (directory / "text").write_text("one\ntwo\n")
        (directory / "gone").write_text("gone\n")
        (directory / "tool").write_text("tool\n")
        yield directory


@pytest.fixture(scope="module")
def running(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    """Started when the project has been there for longer than a clock's tick."""
    assert project.is_dir()
    with supervisor(tmp_path_factory.mktemp("supervisor")) as started:
        yield started


def nsm(running: Supervisor, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = running.run("nsm", *words)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    return done


def test_from_the_session_to_the_host_and_back(running: Supervisor, project: Path) -> None:
    with running.client() as client:
        changes = Changes(client)
        try:
            client.run(
                CHANGE_IT, env="bash", session="work", project=project, project_mode="overlay"
            )
        except BadProjectError as error:
            if "lets this supervisor mount nothing" in error.message:
                pytest.skip("not here: the kernel lets root mount nothing")
            raise
        with pytest.raises(
            BadRequestError, match="mode is overlay, not readonly; the code was not"
        ):
            client.run("1", env="bash", session="work", project=project, project_mode="readonly")
        patch = nsm(running, "diff", "work").stdout
        assert '+++ "b/new/odd\\nname"\n@@ -0,0 +1 @@\n+n\n' in patch
        assert "\n one\n-two\n+2\n" in patch
        assert "deleted file mode 100644\n" in patch
        assert "old mode 100644\nnew mode 100755\n" in patch
        assert "# fifo: it is neither a file nor a directory nor a link\n" in patch
        assert "# added binary file binary, 3 bytes\n" in patch
        assert "# .git: " in patch
        assert git_takes(patch, project)
        rows = json.loads(nsm(running, "diff", "work", "--json").stdout)
        kinds = {row["path"]: row["kind"] for row in rows}
        assert (kinds["gone"], kinds["text"], kinds[".git/config"]) == (
            *("deleted", "changed", "added"),
        )
        stat = nsm(running, "diff", "work", "text", "--stat", "new", "tool").stdout
        assert "4 changes, 2 + 1 -" in stat
        # Nobody is there to ask.
        assert "--yes" in nsm(running, "apply", "work", code=2).stderr
        assert (project / "text").read_text() == "one\ntwo\n"
        for verb in ("diff", "apply", "discard"):
            words = ["--yes"] if verb != "diff" else []
            assert (
                "nothing has changed at txet" in nsm(running, verb, "work", "txet", *words).stderr
            )
        applied = nsm(running, "apply", "work", "text", "gone", "--yes").stdout
        assert f"applied 2 of 2 changes to {project}" in applied
        assert (project / "text").read_text() == "one\n2\n"
        assert not (project / "gone").exists()
        assert "discarded 1 change" in nsm(running, "discard", "work", "--yes", "tool").stdout
        look = "cd /project && stat -c %a tool && cat text && test ! -e gone"
        assert client.run(look, env="bash", session="work").stdout == "644\none\n2\n"
        rest = nsm(running, "apply", "work", "--yes", code=1)
        assert "fifo" in rest.stderr
        assert "applied 3 of 4 changes" in rest.stdout
        assert "1 change left out, as shown above: exit code 1" in rest.stderr
        assert (project / "new" / "odd\nname").read_text() == "n\n"
        assert not (project / ".git").exists()
        nsm(running, "apply", "work", ".git", "--yes", code=1)
        assert (project / ".git" / "HEAD").exists()
        assert not (project / ".git" / "config").exists()
        assert {path.lstat().st_uid for path in project.rglob("*")} == {os.geteuid()}
        assert changes.discard("work").refused == []
        assert changes.rows("work")[0] == []
        client.kill(["work"])


def git_takes(patch: str, project: Path) -> bool:
    taken = subprocess.run(
        ["git", "apply", "--check", "-"],
        input=patch,
        text=True,
        stderr=subprocess.PIPE,
        cwd=project,
        check=False,
    )
    return taken.returncode == 0


def test_changes_need_a_copy_and_a_path_of_the_project(running: Supervisor, project: Path) -> None:
    with running.client() as client:
        client.run("1", env="python", session="plain", project=project)
        changes = Changes(client)
        with pytest.raises(BadRequestError, match="shows its project read-only"):
            changes.rows("plain")
        with pytest.raises(BadProjectError, match="must be 'readonly' or 'overlay', not 'rw'"):
            client.run("1", env="python", project=project, project_mode="rw")
        for path in ("../x", "/etc/passwd", "a//b", "a/./b", ""):
            for operation in ("changes", "discard"):
                with pytest.raises(BadRequestError, match="not a path below the project"):
                    client.call(operation, {"target": "plain", "paths": [os.fsencode(path)]})
        client.kill(["plain"])
