"""Answers of a live session besides results: completions, and whether code is complete.

`nsm ps` needs none of it.
"""

from typing import Literal, NamedTuple, TypeAlias

CheckStatus: TypeAlias = Literal["complete", "incomplete", "invalid", "unknown"]


class Completions(NamedTuple):
    """Completions that fit at the cursor.

    Attributes:
        start, end: the part of the code that a match replaces, in characters (code points).
        matches: at most a few hundred.
        available: False where the interpreter is busy or not up; `matches` is empty then.
    """

    start: int
    end: int
    matches: tuple[str, ...]
    available: bool


class Check(NamedTuple):
    """Answer to the question whether code is complete, which a prompt asks when Enter is pressed.

    Attributes:
        status: ``complete``: it can be run; ``incomplete``: more lines have to come; ``invalid``:
            no further line makes it right; ``unknown``: it cannot be told now.
        indent: white space that the next line may begin with.
    """

    status: CheckStatus
    indent: str
