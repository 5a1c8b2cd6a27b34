"""Entry of the table: files of one name that make the host run something."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Measure = Literal["denied", "read-only", "reported", "allowed"]
"""Rights of a box to such a file, and the report at its end; `nsm apply` warns of all.

`denied`: read-only where it exists, and the box cannot make it. `read-only`: read-only where it
exists; a new one is reported. `reported`: the box can change it, which is reported. `allowed`: the
box can change it.
"""


class Autorun(NamedTuple):
    """Files of one name.

    Attributes:
        path: name, or the last components of a path; a directory stands for what is in it, and
            `*.x` for all names that end so.
        by: programs that run it or obey it.
        when: occasion, as the end of a sentence.
        measure: see `Measure`.
        nothing: content without any entries, for programs that fail at an empty directory; else
            None.
        private: its programs fail if they cannot write there, so a box gets an empty directory of
            its own in its place.
        only_beside: `denied` only where another file of the same programs exists: without one they
            ignore this one.
        only_with: program without which on PATH it is `denied` nowhere. `*.json` and its like find
            what stands for such a file, since its name begins with no dot.
        says: regular expression. Files of this name are mostly harmless, and count only if they
            have it; directories of this name never count.
    """

    path: str
    by: str
    when: str
    measure: Measure = "denied"
    nothing: str | None = None
    private: bool = False
    only_beside: bool = False
    only_with: str = ""
    says: str = ""

    @property
    def reason(self) -> str:
        """Programs that run it, and their occasion, for people."""
        return f"{self.by}, {self.when}"

    def counts(self, content: bytes | None) -> bool:
        """Return whether a file of this name counts; its content is None if nobody knows."""
        # What programs read in another encoding has NUL bytes.
        return (
            not self.says
            or content is None
            or b"\0" in content
            or re.search(self.says.encode(), content, re.IGNORECASE | re.MULTILINE) is not None
        )


MAX_CONTENT_BYTES = 1024 * 1024
"""Longer files count whatever they say."""


def entries(
    names: str,
    by: str,
    when: str,
    measure: Measure = "denied",
    nothing: str | None = None,
    *,
    private: bool = False,
    only_beside: bool = False,
    only_with: str = "",
    says: str = "",
) -> tuple[Autorun, ...]:
    """Make entries of several names, which differ in nothing else."""
    return tuple(
        Autorun(name, by, when, measure, nothing, private, only_beside, only_with, says)
        for name in names.split()
    )
