"""Markdown fences around code, byte order marks and line ends: models and editors add them."""

from __future__ import annotations

import re

from nsm.wire import languages
from nsmd.model.values import Interpreter

_FENCE = re.compile(r"\s*(`{3,})[ \t]*([\w+#.-]*)[^`\n]*\n(.*?\n)?[ \t]*\1[ \t]*\s*", re.DOTALL)

_MAX_TAG_CHARS = 20


def take_off(code: str, interpreter: Interpreter) -> tuple[str, str]:
    """Remove a fence around all of the code. Returns the code, and a note if there was a fence.

    In no language here does valid code begin and end like that. A byte order mark at the beginning
    goes, too, and for Bash the carriage returns if every line ends with one: Python and Node read
    such line ends as others.

    Args:
        interpreter: interpreter that runs the code.
    """
    code = code.removeprefix("\ufeff")
    if interpreter == "bash" and "\r" in code:
        *lines, last = code.split("\n")
        if all(line.endswith("\r") for line in lines):
            code = "\n".join(line.removesuffix("\r") for line in (*lines, last))
    if "```" not in code[:100].lstrip()[:3]:
        return code, ""
    found = _FENCE.fullmatch(code)
    if found is None:
        return code, ""
    fence, tag, inner = found[1], found[2].lower(), found[3] or ""
    if any(line.strip().startswith(fence) for line in inner.splitlines()):
        return code, ""  # there are several, with text between them
    note = "the Markdown fence around the code was removed"
    if tag and languages.SPOKEN.get(tag, tag) != interpreter:
        note += f"; it says {tag[:_MAX_TAG_CHARS]}, and {interpreter} ran the code"
    return inner, note
