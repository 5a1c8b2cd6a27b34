"""Numbers that mean nothing, and those that only look so."""

from __future__ import annotations

import pytest

from nsm.transcripts.ignored import KINDS, kinds_of, masked, without_own_names

AT = 1_795_466_590.0
"""2026-11-23 20:43:10 UTC."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<object object at 0x7f335f3a4ce0>", "<object object at <address>>"),
        ("0x7f335f3a4ce0 #ff8800 0xff", None),
        ("took 0.7128113640001175 s", "took <duration>"),
        ("1.5 ms, 3us, 2 minutes, 1e-05 s, 0m0.003s", ", ".join(["<duration>"] * 5)),
        ("12 samples, 3 shops, v1.2.3, 5 m, 7 days", None),
        ("9.8it/s 12.3 MB/s", "<rate> <rate>"),
        ("10/10 [00:01<00:03, 9.8it/s]", "10/10 [<time><<time>, <rate>]"),
        ("2026-11-23T20:43:11.123456+00:00", "<time>"),
        ("2026-11-23 20:43:11, 2026-11-24", "<time>, <time>"),
        ("2026-01-02 10:00:00, 2024-11-23, 2026-13-77", None),
        ("Mon Nov 23 20:43:11 UTC 2026", "<time>"),
        ("-rw-r--r-- 1 me me 5 Nov 23 20:43 a", "-rw-r--r-- 1 me me 5 <time> a"),
        ("-rw-r--r-- 1 me me 5 Jan  2 20:43 a", None),
        ("Mon, 23 Nov 2026 20:43:11 GMT", "<time>"),
        ("1795466591.25 1795466591250", "<time> <time>"),
        ("1234567890 9999999999999 179546659", None),
        ("at 20:43:11", "at <time>"),
        ("10:00:00:00 a:20:43:11", None),
    ],
)
def test_what_is_left_out(text: str, expected: str | None) -> None:
    assert masked(text, AT) == (text if expected is None else expected)


def test_a_time_is_left_out_near_its_own_moment_only() -> None:
    assert masked("2026-11-23", AT - 10 * 86_400) == "2026-11-23"
    assert masked("1795466590 20:43:11", 1e300) == "1795466590 20:43:11"


def test_which_kinds_differ() -> None:
    first, second = "1 s at 0x7f00, 2026-11-23", "2 s at 0x7f00, 2026-11-24"
    assert kinds_of(first, AT, second, AT + 86_400) == ("time", "duration")
    assert KINDS == ("address", "time", "rate", "duration")


def test_names_that_nsm_gives() -> None:
    assert without_own_names('File "<exec 12>", <exec-3>:1') == 'File "<exec>", <exec>:1'


@pytest.mark.parametrize("piece", ["1", "at 0x", "1.1", "1:11:", "Mon ", "2026-11-23 ", "1 s/"])
def test_texts_made_to_take_long(piece: str) -> None:
    """Quadratic time would be minutes here."""
    masked(piece * (400_000 // len(piece)), AT)
