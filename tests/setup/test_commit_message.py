"""tools/commit_message.py, and the hook that runs it."""

from __future__ import annotations

import pytest

import commit_message

GOOD = "http: send no body in HEAD responses"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (GOOD, ""),
        ("tests, types: mend what pyright finds", ""),
        ("Merge branch 'main'", ""),
        ("# a comment\n" + GOOD, ""),
        ("http: " + "x" * 67, "73 characters"),
        ("http: " + "x" * 66, ""),
        ("send no body in HEAD responses", "names no area"),
        ("http: Sent no body.", "ends with a dot"),
        ("http: fixed HEAD", "no imperative"),
        ("http: what answers HEAD has no body", "no imperative"),
    ],
)
def test_subjects(subject: str, said: str) -> None:
    found = commit_message.problem(f"{subject}\n\nThe body may say anything.\n")
    assert said in found
    assert bool(said) is bool(found)
