"""Limits of a box's sessions: only hosts that both its own list and the configuration allow."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.host_rules import AllowList
from nsmd.model.limits import narrowed
from nsmd.model.values import NetworkRule

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
def test_a_rule_within_a_bound(
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
