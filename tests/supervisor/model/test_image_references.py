"""References to container images, and what goes with them."""

from __future__ import annotations

import pytest

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError
from nsmd.jail.templates.spec import can_preload
from nsmd.manager.run_requests import check_runs_code
from nsmd.model.packages import ImageReference, WantedPackages, check_packages, parse_image
from nsmd.model.values import Environment, ImageRoot

SHA = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docker://python", ImageReference(transport="docker", place="python")),
        ("docker://a/b_c:1.2-x", ImageReference(transport="docker", place="a/b_c", tag="1.2-x")),
        (
            f"docker://host:5000/a/b@{SHA}",
            ImageReference(transport="docker", place="host:5000/a/b", digest=SHA),
        ),
        ("oci:/a b/c", ImageReference(transport="oci", place="/a b/c")),
        ("oci:/a:1:2", ImageReference(transport="oci", place="/a", tag="1:2")),
        ("oci-archive:/a.tar", ImageReference(transport="oci-archive", place="/a.tar")),
        (
            "docker-archive:/a.tar:web:1",
            ImageReference(transport="docker-archive", place="/a.tar", tag="web:1"),
        ),
    ],
)
def test_references(text: str, found: ImageReference) -> None:
    assert parse_image(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "python:3", "docker://", "docker://../x", "docker://-x", "docker://a b"),
        *("docker:python", "docker://a@sha256:0", "oci:a", "oci:", "oci", "dir:/a", "oci:/a\n"),
        *("docker-daemon:a", "containers-storage:a", f"oci:/{'x' * 2000}"),
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_image(text)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (WantedPackages(image="python"), "is not an image"),
        (WantedPackages(image="oci:/a", pip=("x",)), "either an image or packages"),
        (WantedPackages(image="oci:/a", language="bash", preload=("x",)), "Python environments"),
        (WantedPackages(image="oci:/a", root="rw"), "expected overlay"),
        (WantedPackages(pip=("x",), root="overlay"), "is for images only"),
        (WantedPackages(image="oci:/a", language="perl"), "expected python, bash or node"),
        (WantedPackages(pip=("x",), language="bash"), "is for images only"),
    ],
)
def test_an_image_is_all_that_is_wanted(wanted: WantedPackages, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        check_packages(wanted)


def test_an_image_and_its_interpreter() -> None:
    wanted = WantedPackages(image="oci:/a", language="bash")
    assert check_packages(wanted).text == "image: oci:/a; interpreter: bash"


def test_which_images_can_preload() -> None:
    image = ImageRoot(directory="/a", python=("python",))
    web = Environment(name="web", interpreter="python", program="/bin/python", image=image)
    assert can_preload(web)
    assert not can_preload(replace(web, interpreter="bash"))
    assert not can_preload(replace(web, program=""))


def test_only_an_image_may_have_no_interpreter() -> None:
    image = ImageRoot(directory="/a", python=("python",))
    check_runs_code(Environment(name="web", interpreter="bash"))
    check_runs_code(Environment(name="web", interpreter="bash", program="/bin/bash", image=image))
    with pytest.raises(BadRequestError, match="runs no code"):
        check_runs_code(Environment(name="web", interpreter="bash", image=image))
