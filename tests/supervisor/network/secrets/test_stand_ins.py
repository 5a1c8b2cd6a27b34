"""Stand-ins: their shape, in requests, and in responses that come in any pieces."""

from __future__ import annotations

import base64
import html
import json
import re
import string
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nsmd.network.secrets.redaction import Patterns, Redactor
from nsmd.network.secrets.stand_ins import find, find_in_header, make_stand_in, replace_in_header

VALUE = "sk-ant-api03-AbC/dEf+gHi9jKl0-mNo_PqR=="
STAND_IN = make_stand_in(VALUE)
KNOWN = {"key": (STAND_IN, VALUE)}
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=12, max_size=80)


@pytest.mark.parametrize(
    ("value", "prefix"),
    [
        ("ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz", "ghp_"),
        ("sk-ant-api03-" + "Ab3" * 30, "sk-ant-api03-"),
        ("correct-horse-9", ""),  # a beginning of a word that somebody chose tells too much
        ("my-long-password-of-words-99", "my-long-"),
    ],
)
def test_a_stand_in_has_the_shape_of_its_value(value: str, prefix: str) -> None:
    made = make_stand_in(value)
    assert made != value
    assert made.startswith(prefix)
    assert re.sub("[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", made))) == re.sub(
        "[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", value))
    )
    assert make_stand_in(value) != made


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"authorization", b"Bearer %s", b"Bearer %s"),
        (b"x-api-key", b"%s", b"%s"),
        (b"cookie", b"a=1; t=%s; b=2", b"a=1; t=%s; b=2"),
    ],
)
def test_values_take_the_place_of_stand_ins(name: bytes, value: bytes, expected: bytes) -> None:
    done = replace_in_header(name, value % STAND_IN.encode(), KNOWN)
    assert done.value == expected % VALUE.encode()
    assert done.names == ("key",)
    assert find_in_header(name, value % STAND_IN.encode(), {"key": STAND_IN}) == "key"


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
def test_basic_credentials(scheme: str) -> None:
    given_ = scheme.encode() + b" " + base64.b64encode(f"me:{STAND_IN}".encode())
    done = replace_in_header(b"authorization", given_, KNOWN)
    assert base64.b64decode(done.value[6:]) == f"me:{VALUE}".encode()
    assert find_in_header(b"authorization", given_, {"key": STAND_IN}) == "key"


def test_stand_ins_in_urls_are_found() -> None:
    stand_ins = {"key": STAND_IN}
    assert find(b"/x?t=" + STAND_IN.encode(), stand_ins) == "key"
    assert find(b"/x?t=" + quote(STAND_IN, safe="").encode(), stand_ins) == "key"
    assert find(b"/x?t=" + VALUE.encode(), stand_ins) is None


def redactor_of(pairs: list[tuple[str, str]]) -> Redactor:
    patterns = Patterns(pairs)
    return Redactor(lambda: patterns)


def forms(value: str) -> list[bytes]:
    """Ways in which a server may write a value."""
    json_text = json.dumps({"token": value})
    numbers = "".join(f"\\u{ord(c):04X}" for c in value)
    in_html = html.escape(value).replace("/", "&#x2F;")
    percents = "".join(f"%{ord(c):02x}" for c in value)
    in_base64 = [base64.b64encode(b"x" * shift + value.encode() + b"yz") for shift in range(3)]
    return [
        value.encode(),
        json_text.encode(),
        json.dumps(value).replace("/", "\\/").encode(),
        numbers.encode(),
        quote(value, safe="").encode(),
        percents.encode(),
        *in_base64,
        *(base64.urlsafe_b64encode(b"x" * shift + value.encode()) for shift in range(3)),
        in_html.encode(),
        html.escape(html.escape(value)).encode(),
        "".join(f"&#{ord(c)};" for c in value).encode(),
        "".join(f"&#x{ord(c):05X};" for c in value).encode(),
        json.dumps(in_html).replace("&", "\\u0026").encode(),
        quote(quote(value, safe=""), safe="").encode(),
        quote(percents, safe="").encode(),
        json.dumps(json_text).replace("/", "\\/").encode(),
        json.dumps(json.dumps(numbers)).encode(),
        html.escape(json_text).encode(),
        quote(json_text).encode(),
        *(base64.b64encode(b"x" * shift + in_base64[shift]) for shift in range(3)),
        base64.urlsafe_b64encode(in_base64[1]),
        quote(in_base64[2].decode(), safe="").encode(),
        json.dumps(in_base64[0].decode()).replace("/", "\\/").encode(),
        value.encode("utf-16-le"),
        value.encode("utf-16-be"),
        base64.b64encode(value.encode("utf-16-le")),
    ]


NUMBERS = st.integers(0, len(forms(VALUE)) - 1)


def undone(text: bytes) -> list[bytes]:
    """A text without one kind of escapes, for each kind."""
    return [
        re.sub(rb"%([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), text),
        re.sub(rb"\\u00([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), text),
        re.sub(rb"\\(.)", rb"\1", text),
        html.unescape(text.decode("latin-1")).encode("latin-1", "replace"),
        text.replace(b"\0", b""),
    ]


def decoded(text: bytes) -> list[bytes]:
    """All that base64 in a text may stand for."""
    found: list[bytes] = []
    for match in re.findall(rb"[A-Za-z0-9+/_-]{8,}=*", text):
        for cut in range(4):
            piece = match[cut:].rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
            found.append(base64.b64decode(piece[: len(piece) - (len(piece) % 4 == 1)] + b"=="))
    return found


def core(value: str, text: bytes) -> bool:
    """Return whether some form of the value can be read from a text."""
    texts = {text}
    for _ in range(3):
        texts.update(each for one in list(texts) for each in undone(one))
    once = {each for one in texts for each in decoded(one)}
    twice = {each for one in once for each in decoded(one)}
    return any(value.encode() in each.replace(b"\0", b"") for each in texts | once | twice)


@given(value=VALUES, cuts=st.lists(st.integers(1, 40), max_size=8), number=NUMBERS)
def test_no_form_of_a_value_passes_in_any_pieces(value: str, cuts: list[int], number: int) -> None:
    stand_in = make_stand_in(value)
    text = b"before " + forms(value)[number] + b" after"
    assert core(value, text)
    redactor = redactor_of([(value, stand_in)])
    out, rest = b"", text
    for cut in cuts:
        out += redactor.feed(rest[:cut])
        rest = rest[cut:]
    out += redactor.feed(rest) + redactor.finish()
    assert not core(value, out)
    assert out.startswith(b"before ")
    assert out.endswith(b" after")
    assert len(out) == len(text)  # as the server has said


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_a_response_without_values_passes_unchanged(data: bytes, cut: int) -> None:
    redactor = redactor_of([(VALUE, STAND_IN)])
    assert redactor.feed(data[:cut]) + redactor.feed(data[cut:]) + redactor.finish() == data


@pytest.mark.parametrize("piece", [b"Aa1", b"%25", b"\\\\", b"&amp;", b"a\0"])
def test_the_part_kept_back_is_bounded(piece: bytes) -> None:
    value = "Zq8" * 12
    redactor = redactor_of([(value, make_stand_in(value))])
    passed = sum(len(redactor.feed(piece * 200)) for _ in range(20))
    assert passed >= 4000 * len(piece) - 30 * len(value)


def test_more_is_kept_back_where_a_long_value_would_take_too_much_work() -> None:
    value = "Zq8" * 1000
    stand_in = make_stand_in(value)
    redactor = redactor_of([(value, stand_in)])
    costly = b"&%\\a" * 12_500 + b"."
    assert redactor.feed(b"x " + costly) == b"x "
    text = "".join(f"%{ord(c):02x}" for c in value).encode()
    out = redactor.feed(text[:4000]) + redactor.feed(text[4000:]) + redactor.finish()
    assert unquote_to_bytes(out) == costly + stand_in.encode()


@given(
    value=st.text(string.ascii_letters + string.digits + "-_/.%\\", min_size=20, max_size=60),
    number=NUMBERS,
    size=st.integers(1, 20),
)
def test_the_part_kept_back_says_nothing_about_a_value(value: str, number: int, size: int) -> None:
    # Code has a host send it a guess, and sees in which pieces that comes.
    stand_in = make_stand_in(value)
    assume(any(map(str.isalnum, value[-12:])))
    assume([c.isalnum() for c in stand_in] == [c.isalnum() for c in value])
    guess = forms(value)[number][:size]
    assume(value.encode() not in guess)
    lengths = {
        len(redactor_of([(secret, stand_in)]).feed(b"guess: " + guess))
        for secret in (value, stand_in)
    }
    assert len(lengths) == 1


def test_a_guess_of_a_beginning_is_kept_back_like_any_other() -> None:
    value = "ghp_" + "Zq8rT1xKw0LmN5" * 2
    for guess in (b"ghp_Z", b"ghp_Zq8", b"ghp_Zq8rT1", b"ghp_A", b"ghp_Aa1", b"ghp_Aa1bC2"):
        redactor = redactor_of([(value, make_stand_in(value))])
        assert redactor.feed(b"guess: " + guess) == b"guess: "


def test_no_end_is_left_of_a_value_that_has_another_in_it() -> None:
    inner, outer = "secretpass99", "user-x:secretpass99:tail"
    stand_in = make_stand_in(outer)
    patterns = Patterns([(inner, make_stand_in(inner)), (outer, stand_in)])
    assert patterns.replace(outer.encode()) == stand_in.encode()
