"""Sandboxes of container images, as adapters use them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from e2e_support import supervisor
from image_world import Layout, copied, file, layer, symlink
from nsm.integrations.images import ImageSandbox, check_user, image_shell, reference_of
from nsm.wire.errors import BadRequestError
from realjail import needs_bwrap


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("python:3.13-slim", "docker://python:3.13-slim"),
        ("docker://python", "docker://python"),
        ("oci:/a:1", "oci:/a:1"),
        ("docker-archive:/a.tar", "docker-archive:/a.tar"),
        ("oci-archive:/a.tar:1", "oci-archive:/a.tar:1"),
    ],
)
def test_a_plain_name_is_of_a_registry(image: str, reference: str) -> None:
    assert reference_of(image) == reference


def test_a_session_has_one_user() -> None:
    for user in (None, "root", 0):
        check_user(user)
    for user in ("agent", 1000):
        with pytest.raises(BadRequestError, match="one user"):
            check_user(user)


@pytest.mark.slow
@pytest.mark.jail
@needs_bwrap
def test_an_images_environment_is_made_once_and_its_files_change(tmp_path: Path) -> None:
    sh, cat = (os.path.realpath(str(shutil.which(name))) for name in ("sh", "cat"))
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as directory,
        supervisor(Path(directory)) as running,
    ):
        layout = Layout(running.directory / "images")
        links = [symlink("opt/sh", sh), symlink("opt/cat", cat), file("data", "of the image")]
        layout.add([layer(*copied(sh, cat), *links)], Env=["PATH=/opt"])
        image = f"oci:{layout.place}"
        for _ in range(2):
            sandbox = ImageSandbox("tests", image, socket_path=running.socket)
            long = f"cat /data; echo changed >/data; : {'x' * 200_000}"
            done = sandbox.execute(image_shell(long))
            assert (done.exit_code, done.stdout) == (0, b"of the image"), done.stderr
            left = sandbox.do(sandbox.files, lambda files: files.list("/tmp"))
            assert [entry.name for entry in left if entry.name.endswith(".sh")] == []
            sandbox.do(sandbox.download, "/data", tmp_path / "deep" / "data")
            assert (tmp_path / "deep" / "data").read_text() == "changed\n"
            sandbox.do(sandbox.upload, tmp_path / "deep", "/even/deeper")
            assert sandbox.execute(image_shell("cat /even/deeper/data")).stdout == b"changed\n"
            sandbox.close()
        with running.client() as client:
            assert len(client.builds.list_all()) == 1
        refused = ImageSandbox("tests", "oci:/nowhere", socket_path=running.socket)
        with pytest.raises(BadRequestError, match="cannot be used"):
            refused.open()
        refused.close()
