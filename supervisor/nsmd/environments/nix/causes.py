"""The one line of a failed run of nix that a person needs. Pure.

Nix has no codes, and its wording differs between versions: what follows are its own sentences, from
2.8 to 2.31.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_START = "error:"
_CONSEQUENCE = re.compile(
    r"\d+ dependenc(?:y|ies)\b.*\bfailed|due to failed dependenc|^error: build of .* failed",
    re.DOTALL,
)
"""Said after the error that it came of."""

_BUILDER = re.compile(
    r"(?:builder for|[Cc]annot build) '(?:[^']*/)?[0-9a-z]{32}-([^']+?)\.drv'"
    r"(?:.*?\b(?:failed|exit code)\b)",
    re.DOTALL,
)
_IN_LOGS = re.compile(r"(?i)\b(?:\w*error|\w*exception|fatal)\b.*?:")


def cause(error: str, tail: Sequence[str]) -> str:
    """The last error that is no consequence of another one; where a builder failed, the builder's.

    Args:
        error: nix's own words.
        tail: last lines of its log, those of builders beginning with ``NAME> ``.

    Returns:
        One line; empty where nix names no error.
    """
    blocks = list(_blocks(error))
    real = [block for block in blocks if not _CONSEQUENCE.search("\n".join(block))] or blocks
    if not real:
        return ""
    block = real[-1]
    if builder := _BUILDER.search("\n".join(block)):
        return _of_builder(builder[1], block, tail) or block[0]
    first, *rest = block
    if first.endswith(":"):  # a hash mismatch: what was expected and what came follow
        return " ".join([first, ", ".join(" ".join(line.split()) for line in rest[:2])]).rstrip()
    if rest and rest[0].startswith("Did you mean"):
        return f"{first}. {rest[0]}"
    return first


def _blocks(error: str) -> Iterator[list[str]]:
    """Each error with the lines that belong to it. Newer versions begin with an empty one, above
    the trace."""
    block: list[str] = []
    for line in (line.strip() for line in error.splitlines()):
        if line.startswith(_START):
            if block:
                yield block
            block = [line] if line != _START else []
        elif block and line:
            block.append(line)
    if block:
        yield block


def _of_builder(name: str, block: Sequence[str], tail: Sequence[str]) -> str:
    """Return a builder's last line about an error, else its last line; empty if it printed none."""
    said = [line.removeprefix("> ") for line in block if line.startswith("> ")]
    said += [line.removeprefix(f"{name}> ") for line in tail if line.startswith(f"{name}> ")]
    if not said:
        return ""
    line = next((line for line in reversed(said) if _IN_LOGS.search(line)), said[-1]).strip()
    return f"error: building {name} failed: {line.removeprefix(_START).strip()}"
