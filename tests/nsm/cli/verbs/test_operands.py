"""Operands of `nsm cp`, and their meaning."""

from __future__ import annotations

import pytest

from nsm.cli.verbs.cp import Download, Local, Remote, Upload, place, plan
from nsm.wire.errors import BadRequestError


@pytest.mark.parametrize(
    ("operand", "meant"),
    [
        ("work:data.csv", Remote("work", "data.csv")),
        ("27bcf03a:/tmp/a", Remote("27bcf03a", "/tmp/a")),
        ("work:", Remote("work", "")),
        ("work:a:b", Remote("work", "a:b")),
        (".hidden:x", Remote(".hidden", "x")),
        ("./a:b", Local("./a:b")),
        ("/a:b", Local("/a:b")),
        ("dir/a:b", Local("dir/a:b")),
        ("..:x", Remote("..", "x")),
        (":x", Local(":x")),
        ("-", Local("-")),
        ("-:x", Remote("-", "x")),
        ("plain", Local("plain")),
    ],
)
def test_an_operand(operand: str, meant: Remote | Local) -> None:
    assert place(operand) == meant


@pytest.mark.parametrize(
    ("operands", "paths"),
    [
        (["a.csv", "s:"], ["a.csv"]),
        (["a.csv", "s:b.csv"], ["b.csv"]),
        (["dir/a.csv", "s:b/"], ["b/a.csv"]),
        (["a.csv", "s:/tmp/."], ["/tmp/./a.csv"]),
        (["a.csv", "s:.."], ["../a.csv"]),
        (["a", "d/b", "s:"], ["a", "b"]),
        (["a", "b", "s:c"], ["c/a", "c/b"]),
        (["-", "s:c"], ["c"]),
        (["d/", "s:"], ["d"]),
        ([".", "s:"], [""]),
        (["d/..", "s:c/"], ["c/"]),
        (["./x:y", "s:"], ["x:y"]),
        (["latin\udce9", "s:other"], ["other"]),
    ],
)
def test_to_a_session(operands: list[str], paths: list[str]) -> None:
    copies = plan(operands)
    assert [copy.target for copy in copies] == [Remote("s", path) for path in paths]
    assert all(isinstance(copy, Upload) for copy in copies)


@pytest.mark.parametrize(
    ("operands", "into"),
    [
        (["s:a", "b"], False),
        (["s:a", "b/"], True),
        (["s:a", "."], False),  # whether it is one is seen when it is there
        (["s:a", "t:b", "c"], True),
        (["s:a", "-"], False),
        (["s:", "b"], False),
        (["s:a/", "b/"], True),
    ],
)
def test_from_a_session(operands: list[str], into: bool) -> None:
    for copy, source in zip(plan(operands), operands, strict=False):
        assert copy == Download(place(source), Local(operands[-1]), into)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operands", "why", "hint"),
    [
        (["a", "b"], "neither a nor b is in a session", "SESSION:PATH"),
        (["s:a", "t:b"], "both s:a and t:b are in sessions", "nsm cp s:a - | nsm cp - t:b"),
        (["a", "s:b", "t:c"], "both s:b and t:c are in sessions", "a pipe"),
        (["s:a", "b", "c"], "neither b nor c is in a session", ""),
        (["s:", "-"], "s: is a directory", "shutil.make_archive"),
        (["s:a/", "-"], "s:a/ is a directory", "nsm cp SESSION:files.tar - | tar -x"),
        (["s:..", "-"], "s:.. is a directory", "tar -cf"),
        (["a/", "b/a", "s:"], "two of the files would become 'a'", "one by one"),
        (["s:a/", "t:b/a", "d"], "two of the files would become 'a'", "one by one"),
        (["s:$(a)", "t:b"], "both", "nsm cp 's:$(a)' - | nsm cp - t:b"),
        (["-", "s:"], "standard input has no name", "s:data"),
        (["-", "s:d/"], "standard input has no name", "s:d/data"),
        (["-", "b", "s:d"], "standard input has no name", "s:d/data"),
        (["s:a", "s:b", "-"], "several files make no one stream", "one by one"),
        (["a/x", "b/x", "s:"], "two of the files would become 'x'", "one by one"),
        (["s:a/x", "t:x", "d"], "two of the files would become 'x'", "one by one"),
        (["latin\udce9", "s:"], "'s:latin\\udce9' is not UTF-8 text", "SESSION:NAME"),
        (["s:latin\udce9", "x"], "'s:latin\\udce9' is not UTF-8 text", ""),
        (["", "s:"], "an empty name is not a file", ""),
        (["a", ""], "an empty name is not a file", ""),
    ],
)
def test_operands_that_mean_nothing_are_refused(operands: list[str], why: str, hint: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        plan(operands)
    assert caught.value.message.startswith(why)
    assert hint in caught.value.hint
