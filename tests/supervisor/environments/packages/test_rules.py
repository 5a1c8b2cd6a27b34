"""Rules on what a build may fetch."""

from __future__ import annotations

import pytest

from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.rules import FetchRules
from nsmd.environments.packages.indexes import Index, IndexCredentials
from nsmd.environments.packages.web_urls import WebUrl, parse_url
from nsmd.model.host_rules import AllowList, parse_host


def index(url: str, user: str = "") -> Index:
    return Index(name="x", url=url, credentials=IndexCredentials(user=user) if user else None)


def url(text: str) -> WebUrl:
    return parse_url(text)[0]


RULES = FetchRules(
    [
        index("https://pypi.org/simple/"),
        index("https://git.test/api/1/simple", "one"),
        index("https://git.test/api/2/simple", "two"),
        index("http://localhost:3141/root/+simple/", "dev"),
        index("file:///srv/simple"),
    ],
    AllowList.of(["listed.test", "*.sub.test:8443", "10.1.0.0/16"]),
    {
        "listed.test": IndexCredentials(user="listed"),
        "files.pythonhosted.org": IndexCredentials(user="files"),
    },
)
PAGE = url("https://pypi.org/simple/demo/")
PLAIN = url("http://localhost:3141/root/+simple/demo/")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("https://pypi.org/anything", None),
        ("http://localhost:3141/x", None),
        ("https://listed.test/x", None),
        ("http://listed.test/x", PAGE),
        ("https://a.sub.test:8443/x", None),
        ("https://10.1.2.3/x", None),
        ("https://anybody.test/x", PAGE),
        ("https://8.8.8.8/x", PAGE),
        ("http://anybody.test/x", PLAIN),
    ],
)
def test_what_may_be_fetched(text: str, source: WebUrl | None) -> None:
    RULES.check(url(text), source=source)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("https://anybody.test/x", None),
        ("http://pypi.org/x", None),
        ("http://pypi.org/x", PAGE),
        ("https://pypi.org:444/x", PAGE),
        ("http://localhost:22/x", PLAIN),
        ("https://localhost:3141/x", PAGE),
        ("http://anybody.test/x", PAGE),
        ("https://anybody.test:8443/x", PAGE),
        ("https://listed.test:444/x", None),
        ("https://sub.test:8443/x", None),
        ("https://a.sub.test/x", None),
        ("https://10.2.0.1/x", None),
    ],
)
def test_what_may_not_be_fetched(text: str, source: WebUrl | None) -> None:
    with pytest.raises(FetchError):
        RULES.check(url(text), source=source)


def test_hosts_that_the_configuration_names_may_be_private() -> None:
    named = [("localhost", 3141), ("pypi.org", 443), ("listed.test", 443), ("10.1.2.3", 443)]
    named.append(("files.pythonhosted.org", 443))  # belongs to pypi.org
    for host, port in named:
        assert RULES.names(parse_host(host), port)
    for host, port in [
        ("anybody.test", 443),
        ("listed.test", 8080),
        ("test-files.pythonhosted.org", 443),
    ]:
        assert not RULES.names(parse_host(host), port)
    everything = FetchRules([], AllowList.of(["*:*"]), {})
    everything.check(url("https://anybody.test:1/"), source=None)
    assert not everything.names("anybody.test", 1)


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("https://git.test/api/1/files/x.whl", "one"),
        ("https://git.test/api/2/files/x.whl", "two"),
        ("https://git.test/", "one"),
        ("http://git.test/api/1/files/x.whl", None),
        ("https://git.test:444/api/1/files/x.whl", None),
        ("http://localhost:3141/x", "dev"),
        ("https://localhost:3141/x", None),
        ("https://listed.test/x", "listed"),
        ("http://listed.test/x", None),
        ("https://files.pythonhosted.org/x", None),
        ("https://pypi.org/x", None),
    ],
)
def test_credentials_go_to_their_own_place_only(text: str, user: str | None) -> None:
    found = RULES.credentials(url(text))
    assert (found.user if found else None) == user
