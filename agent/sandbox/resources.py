"""Texts of the files beside these modules: programs in other languages."""

from __future__ import annotations

import os


def text_of(name: str) -> str:
    """Read a file of this package, such as `workers/node/main.js`; in a bundle, its text stands in
    place of the call."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
