"""Parts of the driver of shells, `workers/bash/driver.sh`, which a shell receives one by one."""

from __future__ import annotations

from sandbox.resources import text_of

VALUES = (
    *("source", "null", "out", "err", "number", "confirmation", "status", "signal"),
    *("abort", "end", "workspace", "folder", "program", "path", "first"),
    *("note", "leave", "levels", "text", "around_err", "on_err", "around_exit", "on_exit"),
    *("stdin", "words", "stay", "traps", "look", "watch", "untrace"),
)
"""Names between two `@` in the driver."""


def _parts_of(driver: str) -> dict[str, str]:
    """Parts of the driver by name, for `%`. No expressions: compiling them takes longer."""
    parts: dict[str, str] = {}
    for function in driver.split("\n}\n"):
        head, _, body = function.partition("() {\n  ")
        text = body.replace("\n  ", "\n").replace(" \\\n  ", " ").replace(" \\\n", " ")
        for value in VALUES:
            text = text.replace(f"@{value}@", f"%({value})s")
        parts[head.rpartition("\n")[2]] = text
    return parts


PARTS = _parts_of(text_of("workers/bash/driver.sh"))
"""Parts of the driver, which the shell receives one by one."""


def quoted(text: str) -> str:
    """Give the text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
