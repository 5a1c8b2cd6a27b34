"""Packages that somebody wants."""

from __future__ import annotations

from typing import Any

import pytest

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError
from nsmd.jail.templates.spec import can_preload
from nsmd.manager.run_requests import check_runs_code
from nsmd.model.packages import (
    ImageReference,
    WantedPackages,
    check_packages,
    npm_versions,
    parse_image,
    why_no_packages,
)
from nsmd.model.values import Environment, ImageRoot


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("zod", ("zod", "*")),
        ("zod@^4", ("zod", "^4")),
        ("@acme/right@>=1 <2 || 3.x", ("@acme/right", ">=1 <2 || 3.x")),
        ("typescript@next", ("typescript", "next")),
    ],
)
def test_a_package_of_npm_has_a_name_and_versions(text: str, split: tuple[str, str]) -> None:
    assert list(why_no_packages(WantedPackages(npm=(text,)))) == []
    assert npm_versions(text) == split


@pytest.mark.parametrize(
    ("wanted", "key", "why"),
    [
        ({}, "pip", "names no package"),
        ({"npm": ("--global",)}, "npm", "is not an npm package"),
        ({"npm": ("../left",)}, "npm", "is not an npm package"),
        ({"npm": ("acme/left",)}, "npm", "is not an npm package"),
        ({"npm": ("left@file:x",)}, "npm", "names a URL"),
        ({"npm": ("left@npm:right",)}, "npm", "another name"),
        ({"npm": ("git+https://x.test/left",)}, "npm", "names a URL"),
        ({"npm": ("left",) * 300}, "npm", "at most 256"),
        ({"npm": ("left",), "pip": ("six",)}, "npm", "either Python packages or Node packages"),
        ({"npm": ("left",), "preload": ("six",)}, "preload", "for Python environments only"),
        ({"npm": ("left",), "package_lock": "/x"}, "package_lock", "names all packages"),
        ({"package_lock": "x"}, "package_lock", "expected an absolute path"),
        ({"pip": ("six",), "devices": ("/dev/nvidia0",)}, "devices", "found '/dev/nvidia0', allo"),
        ({"pip": ("six",), "devices": ("nvidia", "nvidia:0")}, "devices", "every NVIDIA GPU"),
        ({"pip": ("six",), "devices": ("nvidia:0",) * 65}, "devices", "at most 64"),
        ({"devices": ("nvidia",)}, "devices", "is for packages and images"),
    ],
)
def test_wrong_packages_are_refused(wanted: dict[str, Any], key: str, why: str) -> None:
    found = list(why_no_packages(WantedPackages(**wanted)))
    assert [each for each, _ in found] == [key]
    assert why in found[0][1]


@pytest.mark.parametrize("wanted", [{"pip": ("six",)}, {"npm": ("zod",)}, {"image": "oci:/web"}])
def test_packages_and_images_may_have_devices(wanted: dict[str, Any]) -> None:
    assert list(why_no_packages(WantedPackages(**wanted, devices=("nvidia:0", "dri")))) == []


# References to container images, and what goes with them.


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
def test_an_image_reference_is_read(text: str, found: ImageReference) -> None:
    assert parse_image(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "python:3", "docker://", "docker://../x", "docker://-x", "docker://a b"),
        *("docker:python", "docker://a@sha256:0", "oci:a", "oci:", "oci", "dir:/a", "oci:/a\n"),
        *("docker-daemon:a", "containers-storage:a", f"oci:/{'x' * 2000}"),
    ],
)
def test_a_wrong_image_reference_is_refused(text: str) -> None:
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
def test_an_image_excludes_packages(wanted: WantedPackages, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        check_packages(wanted)


def test_python_of_an_image_can_preload() -> None:
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
