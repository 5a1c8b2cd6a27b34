"""JSON with comments and commas before closing brackets, as editors write and accept it. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_PIECES = re.compile(
    r"""
    ("(?:[^"\\]|\\.)*")             # a string, which is kept
    | //[^\n]* | /\*.*?\*/          # a comment
    | ,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[\]}])  # a comma too many
    """,
    re.VERBOSE | re.DOTALL,
)


def loads(text: str) -> Any:
    """Parse a text.

    Raises:
        ValueError: it is no JSON, apart from comments and commas.
    """
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_PIECES.sub(lambda found: found[1] or " ", text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
