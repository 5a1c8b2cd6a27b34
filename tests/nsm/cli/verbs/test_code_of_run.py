"""The language that code seems to be written in."""

from __future__ import annotations

import pytest

from nsm.cli.verbs.run import language_of
from nsm.wire.code import LANGUAGES, SPOKEN, of_program, of_suffix


@pytest.mark.parametrize(
    ("file", "code", "language"),
    [
        ("a.py", "1", "python"),
        ("dir.py/a", "1", ""),
        ("a.mjs", "1", "node"),
        ("a.sh", "1", "bash"),
        ("a.rb", "1", ""),
        (None, "1", ""),
        (None, "#!/usr/bin/env python3.12\n1", "python"),
        (None, "#!/usr/bin/env -S node --x\n1", "node"),
        ("tool", "#!/bin/sh -e\ntrue", "bash"),
        ("a.py", "#!/bin/bash\ntrue", "bash"),
        ("a.py", "#!/usr/bin/ruby\n1", ""),
        ("a.py", "#!", ""),
    ],
)
def test_the_first_line_or_the_name_says_the_language(
    file: str | None, code: str, language: str
) -> None:
    assert language_of(file, code) == language


def test_each_name_stands_for_one_language() -> None:
    names = [
        name
        for language in LANGUAGES
        for name in {language.name, *language.spoken, *language.programs}
    ]
    assert len(names) == len(set(names))
    assert SPOKEN["shell"] == "bash"
    assert of_program("nodejs") == of_suffix(".cjs") == SPOKEN["mjs"] == "node"
