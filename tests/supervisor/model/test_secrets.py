"""`[secrets.NAME]`, and who may have which secrets together."""

from __future__ import annotations

import pytest

from nsmd.model.secrets import SecretRuleError, SecretSource, parse_secret, same_header


def test_a_secret_has_a_source_hosts_and_uses() -> None:
    secret = parse_secret(
        "github",
        "command: gh auth 'the token'",
        ["api.github.com", "*.GitHub.com", "a.example:8443", "a.example:8443"],
        ["env: GITHUB_TOKEN", "header: Authorization: Bearer", "header: X-Key"],
    )
    assert secret.source == SecretSource(kind="command", words=("gh", "auth", "the token"))
    assert [host.text for host in secret.hosts] == [
        "api.github.com",
        "*.github.com",
        "a.example:8443",
    ]
    assert secret.variables == ("GITHUB_TOKEN",)
    assert secret.headers == (("Authorization", "Bearer"), ("X-Key", ""))


@pytest.mark.parametrize(
    ("host", "port", "is_for"),
    [
        ("api.github.com", 443, True),
        ("x.github.com", 443, True),
        ("github.com", 443, False),
        ("api.github.com", 80, False),
        ("api.github.com.evil.example", 443, False),
        ("evilgithub.com", 443, False),
        ("a.example", 8443, True),
        ("a.example", 443, False),
    ],
)
def test_a_secret_is_for_its_hosts_and_ports(host: str, port: int, is_for: bool) -> None:
    hosts = ["api.github.com", "*.github.com", "a.example:8443"]
    assert parse_secret("x", "file: /x", hosts, ["env: X"]).is_for(host, port) is is_for


@pytest.mark.parametrize(
    ("name", "source", "hosts", "uses", "expected"),
    [
        ("A b", "file: /x", ["a.example"], ["env: X"], "a name is"),
        ("x", "file: /x", [], ["env: X"], "hosts: has 0 hosts"),
        ("x", "file: /x", ["a.example"], [], "as: is empty"),
        ("x", "file: /x", ["*"], ["env: X"], "not a full name"),
        ("x", "file: /x", ["localhost"], ["env: X"], "not a full name"),
        ("x", "file: /x", ["192.0.2.1"], ["env: X"], "not a full name"),
        ("x", "file: /x", ["https://a.example/"], ["env: X"], "URL"),
        ("x", "file: /x", ["a.example:*"], ["env: X"], "every port"),
        ("x", "file: x", ["a.example"], ["env: X"], "absolute path"),
        ("x", "SECRET-VALUE", ["a.example"], ["env: X"], "expected one of"),
        ("x", "command: 'SECRET-VALUE", ["a.example"], ["env: X"], "wrong quotes"),
        ("x", "command:", ["a.example"], ["env: X"], "expected one of"),
        ("x", "keyring: one", ["a.example"], ["env: X"], "SERVICE USER"),
        ("x", "environment: a b", ["a.example"], ["env: X"], "name of a variable"),
        ("x", "file: /x", ["a.example"], ["env: A-B"], "not a name for a variable"),
        ("x", "file: /x", ["a.example"], ["env: LD_PRELOAD"], "decides what runs"),
        ("x", "file: /x", ["a.example"], ["env: PATH"], "decides what runs"),
        ("x", "file: /x", ["a.example"], ["X"], "expected 'env: VARIABLE'"),
        ("x", "file: /x", ["a.example"], ["header: Host"], "not for secrets"),
        ("x", "file: /x", ["a.example"], ["header: A: b\r\nC: d"], "found the header"),
        ("x", "file: /x", ["a.example"], ["header: A", "header: a: B"], "twice"),
    ],
)
def test_errors_name_the_mistake_and_never_the_value(
    name: str, source: str, hosts: list[str], uses: list[str], expected: str
) -> None:
    with pytest.raises(SecretRuleError, match=expected) as caught:
        parse_secret(name, source, hosts, uses)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "clash"),
    [
        ("a.example", "a.example", True),
        ("a.example", "b.example", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "*.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("a.example", "a.example:8443", False),
    ],
)
def test_secrets_for_one_header_of_one_host_clash(first: str, second: str, clash: bool) -> None:
    uses = ["header: Authorization: Bearer"]
    one = parse_secret("one", "file: /x", [first], uses)
    two = parse_secret("two", "file: /x", [second], ["header: authorization: token"])
    assert (same_header([one, two]) is not None) is clash
    assert (same_header([two, one]) is not None) is clash
    assert same_header([one, parse_secret("x", "file: /x", [first], ["env: X"])]) is None
