"""Rules for requests: methods and paths, and the forms of a path that servers read differently."""

from __future__ import annotations

import pytest

from nsm.wire.inspection import is_request_rule, read_all_requests
from nsmd.model.host_rules import (
    AllowList,
    HostRuleError,
    RequestRule,
    UnclearPathError,
    allowed,
    clear_path,
    parse_rule,
)
from nsmd.model.limits import narrowed
from nsmd.model.values import NetworkRule

HOST = "api.example.org"


def takes(rule: str, method: str, target: bytes) -> bool:
    rules = AllowList.of([rule]).requests_to(HOST, 443)
    assert len(rules) == 1
    return allowed(rules, method, clear_path(target))


@pytest.mark.parametrize(
    ("path", "target", "expected"),
    [
        ("/repos/x/*", b"/repos/x/y", True),
        ("/repos/x/*", b"/repos/x/y/z?per_page=100&q=/../", True),
        ("/repos/x/*", b"/repos/x/", True),
        ("/repos/x/*", b"/repos/%78/y", True),
        ("/repos/x/*", b"/repos/x", False),
        ("/repos/x/*", b"/repos/xy/z", False),
        ("/repos/x/*", b"/REPOS/x/y", False),
        ("/repos/*/pulls", b"/repos/x/pulls", True),
        ("/repos/*/pulls", b"/repos/x/y/pulls", False),
        ("/repos/*/pulls", b"/repos/x/pulls/1", False),
        ("/a.b", b"/axb", False),
        ("/", b"/", True),
        ("/", b"/x", False),
        ("/*", b"/x/y", True),
        ("/x", b"/x\xc3\xa9", False),
    ],
)
def test_a_rule_takes_paths(path: str, target: bytes, *, expected: bool) -> None:
    assert takes(f"GET https://{HOST}{path}", "GET", target) is expected


@pytest.mark.parametrize(
    ("methods", "method", "expected"),
    [
        ("GET", "GET", True),
        ("GET", "HEAD", True),
        ("GET", "POST", False),
        ("GET|POST", "POST", True),
        ("POST", "HEAD", False),
        ("*", "DELETE", True),
    ],
)
def test_a_rule_takes_methods(methods: str, method: str, *, expected: bool) -> None:
    assert takes(f"{methods} https://{HOST}/*", method, b"/x") is expected


@pytest.mark.parametrize(
    "target",
    [
        b"/repos/x/../y",
        b"/repos/x/..",
        b"/repos/./x",
        b"/repos/x/%2e%2e/y",
        b"/repos/x/.%2E/y",
        b"/repos/x/%252e%252e/y",
        b"/repos/x/..;/y",
        b"/repos/x/..;a=b/y",
        b"//repos/x/y",
        b"/repos//x",
        b"/repos\\x/y",
        b"/repos/x/%5c..%5cy",
        b"/repos/x%2fy",
        b"/repos/x/%00",
        b"/repos/x/%0d%0aHost:x",
        b"/repos/x/%3f",
        b"/repos/x/%",
        b"/repos/x/%2",
        b"/repos/x/%zz",
        b"/repos/x#y",
    ],
)
def test_paths_that_servers_read_in_several_ways_are_refused(target: bytes) -> None:
    with pytest.raises(UnclearPathError):
        clear_path(target)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET http://example.org/", "not a rule for requests"),
        ("get https://example.org/", "not a rule for requests"),
        ("GET  ", "is not a host name"),
        ("GET https:///x", "not a rule for requests"),
        ("GET https://example.org", "no path"),
        ("GET https://example.org/?x", "no path"),
        ("GET https://example.org/../x", "segment . or .."),
        ("GET https://example.org/%41", "has an escape"),
        ("GET https://*/x", "full name"),
        ("GET https://10.0.0.1/x", "full name"),
        ("GET https://example.org:*/x", "full name"),
        ("GET https://me@example.org/x", "not a host name"),
    ],
)
def test_a_wrong_rule_is_refused(text: str, expected: str) -> None:
    with pytest.raises(HostRuleError, match=expected):
        parse_rule(text)


def test_a_rule_allows_connections_to_its_host_and_port_only() -> None:
    rules = AllowList.of(["GET https://*.Example.org:8443/x", "b.example.org"])
    assert rules.texts == ("GET https://*.example.org:8443/x", "b.example.org")
    assert rules.permits("a.example.org", 8443)
    assert not rules.permits("a.example.org", 443)
    assert rules.requests_to("a.example.org", 8443)
    assert not rules.requests_to("b.example.org", 443)


def test_a_bound_with_rules_keeps_them() -> None:
    rule = f"GET https://{HOST}/x/*"
    bound = NetworkRule(mode="allow", allow=(rule,))
    for asked in ((HOST,), ("*",), (rule,)):
        assert narrowed(NetworkRule(mode="allow", allow=asked), bound).allow == (rule,)
        assert narrowed(bound, NetworkRule(mode="allow", allow=asked)).allow == (rule,)
    assert narrowed(NetworkRule(mode="full"), bound).reads_requests
    other = NetworkRule(mode="allow", allow=(f"GET https://{HOST}/y",))
    assert narrowed(other, bound).allow == ()


def test_a_host_becomes_a_rule_for_all_its_requests() -> None:
    assert parse_rule(read_all_requests("*.example.org:8443")).text == (
        "* https://*.example.org:8443/*"
    )
    assert read_all_requests("GET https://x.example/") == "GET https://x.example/"
    assert not is_request_rule("example.org")


@pytest.mark.parametrize(
    ("asked", "bound", "both"),
    [
        ("api.github.com", "GET https://*.github.com/repos/*", ()),
        ("* https://api.github.com/*", "GET https://api.github.com/repos/me/*", ()),
        (
            "api.github.com",
            "GET https://api.github.com/repos/*",
            ("api.github.com", "GET https://api.github.com/repos/*"),
        ),
        ("example.org", "GET https://*.github.com/repos/*", ("example.org",)),
    ],
)
def test_no_entry_leads_past_the_rule_of_a_bound(
    asked: str, bound: str, both: tuple[str, ...]
) -> None:
    most = NetworkRule(mode="allow", allow=(bound, "*"))
    assert narrowed(NetworkRule(mode="allow", allow=(asked,)), most).allow == both


def test_a_path_made_to_take_long_takes_no_time() -> None:
    rule = RequestRule("*", "/v1/*-*-*-*-x")
    assert not rule.takes("GET", b"/v1/" + b"-" * 30_000)
    assert rule.takes("GET", b"/v1/" + b"-" * 30_000 + b"x")
    assert not rule.takes("GET", b"/v1/a-b-c/-d-x")
    assert RequestRule("*", "/a*b/c*d/*").takes("GET", b"/axbb/cxd/e/f")
    assert not RequestRule("*", "/a*b/c*d/*").takes("GET", b"/ax/bb/cxd/e/f")
