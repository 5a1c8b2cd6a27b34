"""Bounds and marks of what is displayed, in the agent and in the Python worker."""

from __future__ import annotations

from sandbox.requests import as_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DISPLAY_BYTES = 8 * 1024 * 1024
"""Displays kept per execution, all together: with two streams they have to fit into one answer of
the supervisor's, which has 16 MiB."""


DISPLAY_LEFT_OUT = f"[display left out: more than {DISPLAY_BYTES} bytes in one execution]"


DISPLAY_CHARS = 1024 * 1024
"""Characters of a value's text that are shown; of a longer one, its beginning."""


MAX_DISPLAYS = 1000


PLACE = "application/vnd.nsm.place+json"
"""MIME type that marks a display whose place in stdout is known. Its data is the number in the line
`[image N]` of stdout, or 0 where stdout has the text of the value."""


MAX_DEPTH = 48
"""Levels of what is displayed as JSON; plots have about twenty. The supervisor's answers, in which
it is some levels down, have at most 64."""


DISPLAY_TOO_DEEP = f"[display left out: more than {MAX_DEPTH} levels in each other]"


def is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than an answer to a client may be: it
    could not be sent at all."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            inside = as_object(part)
            below += part if inside is None else inside.values()
        level = [one for one in below if isinstance(one, (dict, list))]
        if not level:
            return False
    return True
