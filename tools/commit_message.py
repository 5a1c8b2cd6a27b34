#!/usr/bin/env python3
"""Check the subject of a commit message: at most 72 characters, `area: imperative`.

    git config core.hooksPath tools/hooks     # once for a clone: Git then checks each commit
    tools/commit_message.py FILE              # what Git does: checks the message in a file

Standard library only; works with every Python 3.
"""

from __future__ import annotations

import re
import sys

LENGTH = 72
AREA = re.compile(r"[a-z0-9][a-z0-9_./+-]*(, [a-z0-9][a-z0-9_./+-]*)*: ")
MADE_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
NOT_IMPERATIVE = re.compile(
    r"(added|adds|adding|fixed|fixes|fixing|changed|changes|changing|removed|removes|removing"
    r"|updated|updates|updating|what|whether|who|which|that|it|a|an|the)\b",
    re.IGNORECASE,
)


def problem(message: str) -> str:
    """Describe the problem of a message's subject; empty if there is none."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = next((line for line in lines if line.strip()), "")
    if not subject or subject.startswith(MADE_BY_GIT):
        return ""
    if len(subject) > LENGTH:
        return f"the subject has {len(subject)} characters; use at most {LENGTH}"
    area = AREA.match(subject)
    if area is None:
        return "the subject names no area; write `area: imperative`, all in lower case at first"
    if NOT_IMPERATIVE.match(subject[area.end() :]):
        return "the subject is no imperative; write `area: do this`"
    if subject.endswith("."):
        return "the subject ends with a dot; leave it out"
    return ""


def main(arguments: list[str]) -> int:
    """Check the message in the file that Git names."""
    with open(arguments[0], encoding="utf-8") as file:
        found = problem(file.read())
    if found:
        print(f"commit message: {found}.", file=sys.stderr)
        print("For example: http: send no body in HEAD responses", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
