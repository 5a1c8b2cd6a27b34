"""Hosts that a pattern matches: names are parsed strictly and compared by whole labels."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.host_rules import (
    MAX_RULES,
    AllowList,
    BadHostError,
    HostRuleError,
    parse_authority,
    parse_host,
    parse_rule,
    show_host,
)
from nsmd.model.limits import narrowed
from nsmd.model.values import NetworkRule

CANONICAL = [
    ("example.org", "example.org"),
    ("Example.ORG.", "example.org"),
    ("example.org:443", "example.org:443"),
    ("example.org:*", "example.org:*"),
    ("*.example.com", "*.example.com"),
    ("*", "*"),
    ("*:*", "*:*"),
    ("10.0.0.1", "10.0.0.1"),
    ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
    ("2001:DB8::1", "[2001:db8::1]"),
    ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
    ("fd00::/8", "[fd00::/8]"),
    ("bücher.example", "xn--bcher-kva.example"),
    ("*.bücher.example:443", "*.xn--bcher-kva.example:443"),
    ("localhost:8080", "localhost:8080"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_a_pattern_is_shown_in_one_form_that_means_the_same(text: str, canonical: str) -> None:
    rule = parse_rule(text)
    assert rule.text == canonical
    assert parse_rule(canonical) == rule


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a host name"),
        ("https://example.org", "is a URL"),
        ("example.org/path", "is a URL"),
        ("exam*ple.org", "elsewhere than in front"),
        ("*.*.example.org", "elsewhere than in front"),
        ("*.", "not a host name"),
        ("*example.org", "elsewhere than in front"),
        ("example.org:", "no port after"),
        ("example.org:0", "1 to 65535"),
        ("example.org:65536", "1 to 65535"),
        ("example.org:http", "1 to 65535"),
        ("example..org", "not a host name"),
        ("-a.org", "not a host name"),
        ("a\x00.org", "not a host name"),
        ("*.10.0.0.1", "address with"),
        ("10.0.0.1/8", "not a network"),
        ("127.1", "not an IPv4 address"),
        ("0x7f000001", "not an IPv4 address"),
        ("fe80::1%eth0", "zone"),
        ("[fe80::1%25eth0]", "zone"),
        ("[::1", "open bracket"),
        ("a" * 64 + ".org", "not a host name"),
        (".".join(["a" * 60] * 6), "characters"),
        ("user@example.org", "not a host name"),
        ("\u2028", "not a host name"),
    ],
)
def test_a_wrong_pattern_is_refused_with_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(HostRuleError, match=says):
        parse_rule(text)


REACH: list[tuple[list[str], str, int, bool]] = [
    (["example.org"], "example.org", 443, True),
    (["example.org"], "example.org", 80, True),
    (["example.org"], "example.org", 22, False),
    (["example.org:22"], "example.org", 443, False),
    (["example.org:*"], "example.org", 6667, True),
    (["example.org"], "www.example.org", 443, False),
    (["*.example.org"], "www.example.org", 443, True),
    (["*.example.org"], "a.b.example.org", 443, True),
    (["*.example.org"], "example.org", 443, False),
    (["*.example.org"], "evil-example.org", 443, False),
    (["*.example.org"], "example.org.evil.net", 443, False),
    (["example.org"], "example.org.evil.net", 443, False),
    (["example.org"], "evilexample.org", 443, False),
    (["*"], "anything.example", 443, True),
    (["*"], "anything.example", 25, False),
    (["*:*"], "anything.example", 25, True),
    (["*.org"], "1.2.3.4", 443, False),
    (["1.2.3.4"], "1.2.3.4", 443, True),
    (["1.2.3.0/24"], "1.2.3.77", 443, True),
    (["1.2.3.0/24"], "1.2.4.1", 443, False),
    (["1.2.3.4"], "example.org", 443, False),
    (["[2001:db8::1]:443"], "2001:db8:0::1", 443, True),
    ([], "example.org", 443, False),
    ([], "127.0.0.1", 80, False),
]


@pytest.mark.parametrize(("patterns", "host", "port", "reached"), REACH)
def test_a_list_permits_hosts_and_ports(
    patterns: list[str], host: str, port: int, reached: bool
) -> None:
    assert AllowList.of(patterns).permits(parse_host(host), port) is reached


@pytest.mark.parametrize(
    "text",
    [
        "evil.net\x00.example.org",
        "example.org\x00",
        "example.org\n",
        "example.org\t.evil.net",
        "ex ample.org",
        "example.org%00",
        "user@example.org",
        "example.org/",
        "example.org#.evil.net",
        "example。org",
        "ⓔxample.org",
        "\u0435xample.org",  # a Cyrillic letter
        "..",
        "",
        ".",
        "[::1]",
        "fe80::1%eth0",
        "::ffff:1.2.3.4.5",
        "127.1",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "2130706433",
        "1.2.3.256",
        "a." * 127 + "aa",
    ],
)
def test_a_host_that_readers_read_differently_is_refused(text: str) -> None:
    with pytest.raises(BadHostError):
        parse_host(text)


def test_case_and_a_final_dot_do_not_make_another_host() -> None:
    assert parse_host("EXAMPLE.org.") == "example.org"
    assert parse_host("::FFFF:1.2.3.4") == IPv6Address("::ffff:1.2.3.4")
    assert parse_host("1.2.3.4") == IPv4Address("1.2.3.4")


@given(st.text(max_size=80))
def test_whatever_comes_is_a_plain_host_or_refused(text: str) -> None:
    try:
        host = parse_host(text)
    except BadHostError:
        return
    shown = str(host)
    assert shown.isascii()
    assert shown == shown.lower()
    assert not set(shown) & set("\x00 %/@#?\r\n")
    assert parse_host(shown) == host


@given(st.text(max_size=60))
def test_whatever_comes_is_a_host_and_port_or_refused(text: str) -> None:
    try:
        host, port = parse_authority(text)
    except BadHostError:
        return
    assert parse_authority(show_host(host, port)) == (host, port)


@given(st.text(alphabet="*.:/[]aé10-", max_size=24))
def test_no_pattern_permits_more_than_its_own_text_read_again(text: str) -> None:
    try:
        rule = parse_rule(text)
    except HostRuleError:
        return
    assert parse_rule(rule.text) == rule


@given(st.ip_addresses())
def test_addresses_are_permitted_by_themselves_and_not_by_names(address: object) -> None:
    host = ip_address(str(address))
    assert AllowList.of([show_host(host)]).names_address(host, 443)
    assert not AllowList.of(["example.org", "*.org"]).permits(host, 443)
    assert not AllowList.of(["*"]).names_address(host, 443)


def test_a_list_is_changed_by_patterns_and_bounded() -> None:
    allowed = AllowList.of(["a.org", "*.b.org", "A.org"])
    assert allowed.texts == ("a.org", "*.b.org")
    assert allowed.without([parse_rule("a.org")]).texts == ("*.b.org",)
    assert allowed.with_rules([parse_rule("c.org"), parse_rule("a.org")]).texts[-1] == "c.org"
    with pytest.raises(HostRuleError, match="patterns"):
        AllowList.of([f"h{number}.org" for number in range(MAX_RULES + 1)])


# Limits of a box's sessions: only hosts that both its own list and the configuration allow.


OFF, FULL = NetworkRule(), NetworkRule(mode="full")


def allow(*patterns: str) -> NetworkRule:
    return NetworkRule(mode="allow", allow=patterns)


@pytest.mark.parametrize(
    ("rule", "bound", "both"),
    [
        pytest.param(FULL, None, FULL, id="no bound"),
        pytest.param(OFF, FULL, OFF, id="off stays off"),
        pytest.param(allow("a.example"), FULL, allow("a.example"), id="a list stays"),
        pytest.param(FULL, OFF, OFF, id="nothing beyond nothing"),
        pytest.param(allow("a.example"), OFF, OFF, id="no list beyond nothing"),
        pytest.param(FULL, allow("a.example"), allow("a.example"), id="all is the bound's list"),
        pytest.param(
            allow("a.example", "b.example"), allow("b.example"), allow("b.example"), id="common"
        ),
        pytest.param(allow("a.example"), allow("b.example"), allow(), id="nothing in common"),
        pytest.param(
            allow("x.a.example"), allow("*.a.example"), allow("x.a.example"), id="the narrower rule"
        ),
        pytest.param(
            allow("*.a.example"),
            allow("x.a.example"),
            allow("x.a.example"),
            id="the narrower bound",
        ),
        pytest.param(
            allow("a.example:*"), allow("a.example:22"), allow("a.example:22"), id="ports"
        ),
        pytest.param(allow("*"), allow("10.0.0.0/8"), allow(), id="* means no private addresses"),
        pytest.param(
            allow("10.1.0.0/16"), allow("10.0.0.0/8"), allow("10.1.0.0/16"), id="a network in one"
        ),
        pytest.param(allow("*:*"), allow("host.nsm.internal:80"), allow(), id="* is not the host"),
        pytest.param(allow("evil-a.example"), allow("*.a.example"), allow(), id="whole labels"),
    ],
)
def test_a_rule_is_narrowed_to_a_bound(
    rule: NetworkRule, bound: NetworkRule | None, both: NetworkRule
) -> None:
    assert narrowed(rule, bound) == both


PATTERNS = st.lists(
    st.builds(
        str.__add__,
        st.sampled_from(
            (
                "* example *.example a.example b.a.example host.nsm.internal 10.0.0.0/8 10.1.2.3 "
                "93.184.216.34 [2001:db8::/32]"
            ).split()
        ),
        st.sampled_from(["", ":80", ":22", ":*"]),
    ),
    max_size=4,
)
HOSTS = ["example", "a.example", "b.a.example", "c.example", "host.nsm.internal", "x.other"]
ADDRESSES = ["10.1.2.3", "10.9.9.9", "93.184.216.34", "2001:db8::7"]


@given(PATTERNS, PATTERNS)
def test_nothing_is_allowed_that_either_refuses(rule: list[str], bound: list[str]) -> None:
    both = AllowList.of(narrowed(allow(*rule), allow(*bound)).allow)
    either = AllowList.of(rule), AllowList.of(bound)
    for port in (22, 80, 443):
        for host in HOSTS:
            assert all(each.permits(host, port) for each in either) or not both.permits(host, port)
        for text in ADDRESSES:
            address = ip_address(text)
            if both.names_address(address, port):
                assert all(each.names_address(address, port) for each in either)
        if both.names_machine(port):
            assert all(each.names_machine(port) for each in either)
