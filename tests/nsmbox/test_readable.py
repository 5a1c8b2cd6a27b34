"""Names that somebody else has chosen, and values of variables, as a person is to read them."""

from __future__ import annotations

import os
from unicodedata import bidirectional, category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsm.cli.render.formats import columns
from nsmbox.consent.readable import MASKED, legible, masked, names_secret, path, shortened

SHOWN = {
    "plain-1.0_x/y@z": "plain-1.0_x/y@z",
    "": "''",
    "two words": "'two words'",
    "it's": r"'it\'s'",
    "back\\slash": r"'back\\slash'",
    "a\nb": r"'a\nb'",
    "\x1b[2Jx": r"'\x1b[2Jx'",
    "\x9b2Jx": r"'\x9b2Jx'",
    "x   ok": r"'x \x20\x20ok'",
    " x ": r"'\x20x\x20'",
    "\u202efdp": r"'\u202efdp'",
    "a\u2066b\u200bc": r"'a\u2066b\u200bc'",
    "שלום": r"'\u05e9\u05dc\u05d5\u05dd'",
    "١٢": r"'\u0661\u0662'",
    "\u3164\u2800": r"'\u3164\u2800'",
    "a\u2215b": r"'a\u2215b'",
    "\uff0fetc": r"'\uff0fetc'",
    "Grüße": "'Grüße'",
    "日本語": "'日本語'",
    "🚀": "'🚀'",
    "e\u0301": "'e\u0301'",
    "\u0301e": r"'\u0301e'",
    "e" + "\u0301" * 5: "'e" + "\u0301" * 2 + r"\u0301" + "\u0301" * 2 + "'",
    "x\ufe0f": r"'x\ufe0f'",
    os.fsdecode(b"caf\xe9"): r"'caf\xe9'",
    "\ud800": r"'\ud800'",
    "\U000e0041": r"'\U000e0041'",
}


@pytest.mark.parametrize("text", SHOWN, ids=ascii)
def test_text_is_shown_without_control_characters(text: str) -> None:
    assert legible(text) == SHOWN[text]


@settings(max_examples=80)
@given(st.text() | st.binary().map(os.fsdecode))
def test_nothing_that_acts_or_hides_is_left_of_any_text(text: str) -> None:
    shown = legible(text)
    for character in shown:
        assert character.isprintable()
        assert category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        assert bidirectional(character) not in ("R", "AL", "AN", "RLE", "RLO", "RLI", "LRO")
    assert "  " not in shown
    assert columns(shortened(shown, 20)) <= 20


@settings(max_examples=80)
@given(st.text("ab '\\\nn\u202e~é"), st.text("ab '\\\nn\u202e~é"))
def test_different_names_look_different(one: str, other: str) -> None:
    assert (legible(one) == legible(other)) == (one == other)


def test_paths_below_home() -> None:
    assert path("/home/mia", "/home/mia") == "~"
    assert path("/home/mia/a b", "/home/mia") == "'~/a b'"
    assert path("/home/miau", "/home/mia") == "/home/miau"
    assert path("/etc", "/") == "/etc"
    assert path("/etc") == "/etc"


def test_long_text_keeps_its_beginning_and_more_of_its_end() -> None:
    assert shortened("/" + "a" * 50 + "/end", 21) == "/aaaaa...aaaaaaaa/end"
    assert shortened("short", 5) == "short"
    wide = shortened("日" * 30, 21)
    assert columns(wide) <= 21
    assert "..." in wide


SECRET = (
    "ANTHROPIC_API_KEY GITHUB_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD GOOGLE_CREDENTIALS "
    "npm_config__auth SESSION_COOKIE GH_PAT DB_PASS PGPASSWORD DB_PWD aws_secret my_key "
    "BORG_PASSPHRASE KeY"
).split()
OPEN = (
    "HOME TERM PATH LANG PWD OLD_PWD_DIR GIT_AUTHOR_NAME EDITOR PATH_INFO COMPASS PATTERN".split()
)


@pytest.mark.parametrize("name", SECRET)
def test_secrets_by_name(name: str) -> None:
    assert names_secret(name)
    assert masked(name, "s3cret") == MASKED
    assert masked(name, "") == ""


@pytest.mark.parametrize("name", OPEN)
def test_names_of_what_may_be_seen(name: str) -> None:
    assert not names_secret(name)
    assert masked(name, "seen") == "seen"


def test_marked_variables_are_hidden() -> None:
    assert masked("HARMLESS", "s3cret", secret=True) == MASKED


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://me:pw@proxy:3128", f"http://{MASKED}@proxy:3128"),
        ("http://me:p@w@proxy/x@y", f"http://{MASKED}@proxy/x@y"),
        ("postgres://u:p@h/d,redis://:q@r", f"postgres://{MASKED}@h/d,redis://{MASKED}@r"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_logins_in_urls_are_hidden(value: str, shown: str) -> None:
    assert masked("http_proxy", value) == shown
