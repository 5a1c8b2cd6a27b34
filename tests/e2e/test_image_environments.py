"""Environments from container images in a real supervisor: added, used, removed, collected."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from e2e_support import supervisor
from image_world import Layout, copied, file, folder, layer, libraries_of, python_layer
from nsm.wire.errors import BadRequestError, ForkRefusedError, StartFailedError
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow, needs_bwrap]


@pytest.fixture
def running() -> Generator[Supervisor]:
    with supervisor(config="[pool]\nmax_spares = 0\n") as it:
        yield it


def test_an_image_comes_and_goes_under_its_sessions(running: Supervisor) -> None:
    bash = os.path.realpath(str(shutil.which("bash")))
    layout = Layout(running.directory / "images")
    layout.add(
        [layer(*copied(bash), folder("app"), file("app/file", "of the image"))],
        tag="1",
        Env=[f"PATH={os.path.dirname(bash)}", "GREETING=hello"],
        WorkingDir="/app",
    )
    said = running.run("nsm", "env", "add", "web", "--image", f"oci:{layout.place}:1")
    assert said.stdout.startswith("web is ready: "), said.stderr
    with running.client() as client:
        code = 'echo "$PWD $(<file) $GREETING"'
        expected = "/app of the image hello\n"
        assert client.run(code, env="web", session="old").stdout == expected
        # Programs begin in that directory, too.
        said = running.run("nsm", "exec", "-e", "web", "other", "--", bash, "-c", code)
        assert said.stdout == expected, said.stderr
        assert running.run("nsm", "kill", "other").returncode == 0
        with pytest.raises(ForkRefusedError, match="cannot be forked: it runs in a container im"):
            client.fork("old")
        client.builds.remove(["web"])
        assert client.builds.gc().removed == (), "a session runs in it"
        assert client.run(code, env="web", session="old").stdout == expected
        client.kill("old")
        assert len(client.builds.gc().removed) == 1


def test_an_image_without_an_interpreter_runs_programs(running: Supervisor) -> None:
    cat = os.path.realpath(str(shutil.which("cat")))
    assert libraries_of(cat)
    layout = Layout(running.directory / "images")
    layout.add([layer(*copied(cat), file("file", "of the image"))], WorkingDir="/")
    said = running.run("nsm", "env", "add", "tools", "--image", f"oci:{layout.place}")
    assert said.stdout.startswith("tools is ready: "), said.stderr
    said = running.run("nsm", "exec", "-e", "tools", "work", "--", cat, "file")
    assert said.stdout == "of the image", said.stderr
    with running.client() as client:
        (row,) = [each for each in client.envs() if each.name == "tools"]
        assert (row.interpreter, row.available) == ("", True)
        with pytest.raises(BadRequestError, match="has no interpreter") as caught:
            client.run("echo", env="tools")
        assert "nsm exec -e tools" in caught.value.hint


def test_forks_and_saves_of_a_writable_root_say_what_they_leave_out(running: Supervisor) -> None:
    """The files belong to the jails' user, or are shown as that user's."""
    layout = Layout(running.directory / "images")
    layout.add([python_layer()], Env=["PATH=/opt/python/bin"])
    words = ("--image", f"oci:{layout.place}", "--root", "overlay")
    said = running.run("nsm", "env", "add", "web", *words)
    assert said.stdout.startswith("web is ready: "), said.stderr
    with running.client() as client:
        try:
            client.run("open('/opt/new', 'w').close()", env="web", session="work")
        except StartFailedError as error:
            pytest.skip(f"not here: {error.message}")
        with pytest.raises(ForkRefusedError, match="cannot be forked: it runs in a container im"):
            client.fork("work")
        said = running.run("nsm", "save", "work")
        assert "changes of the image's files are not saved" in said.stdout + said.stderr
