"""Packages that somebody wants."""

from __future__ import annotations

from typing import Any

import pytest

from nsmd.model.packages import WantedPackages, npm_versions, why_no_packages


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("zod", ("zod", "*")),
        ("zod@^4", ("zod", "^4")),
        ("@acme/right@>=1 <2 || 3.x", ("@acme/right", ">=1 <2 || 3.x")),
        ("typescript@next", ("typescript", "next")),
    ],
)
def test_packages_of_npm(text: str, split: tuple[str, str]) -> None:
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
def test_what_is_refused(wanted: dict[str, Any], key: str, why: str) -> None:
    found = list(why_no_packages(WantedPackages(**wanted)))
    assert [each for each, _ in found] == [key]
    assert why in found[0][1]


@pytest.mark.parametrize("wanted", [{"pip": ("six",)}, {"npm": ("zod",)}, {"image": "oci:/web"}])
def test_packages_and_images_may_have_devices(wanted: dict[str, Any]) -> None:
    assert list(why_no_packages(WantedPackages(**wanted, devices=("nvidia:0", "dri")))) == []
