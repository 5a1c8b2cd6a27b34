"""Programs of the interpreters' own processes, which run together with user code.

Nothing here is defended against that code: what must hold against hostile code is the agent's
business (`sandbox.interpreters`).

- `python`: the package that a Python interpreter runs.
- `node`: the parts of the program that Node runs; `sandbox.interpreters.framed` has their order.
- `bash`: what a shell is sent.
"""

from __future__ import annotations

import os


def text_of(name: str) -> str:
    """Read a program in another language, such as `node/main.js`; in a bundle, its text stands in
    place of the call."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
