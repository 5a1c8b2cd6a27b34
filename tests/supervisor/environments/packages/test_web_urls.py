"""URLs of indexes and of what their pages link to."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.environments.packages.index_proxy.proxy_urls import (
    BASE,
    LISTED,
    LinkedFile,
    ProxyUrls,
    shortened,
)
from nsmd.environments.packages.web_urls import BadUrlError, WebUrl, join, parse_url

URLS = ProxyUrls(bytes(32))


@pytest.mark.parametrize(
    ("text", "shown", "login"),
    [
        ("https://pypi.org/simple", "https://pypi.org/simple", None),
        ("HTTPS://PyPI.org:443", "https://pypi.org/", None),
        ("http://a:8080/x?y=1#z", "http://a:8080/x?y=1", None),
        ("https://ada:p%40ss@a.b/x", "https://a.b/x", ("ada", "p@ss")),
        ("https://token@a.b/", "https://a.b/", ("token", "")),
        ("https://[2001:DB8::1]:444/x", "https://[2001:db8::1]:444/x", None),
        ("https://a.b/x/../y/./%2e%2E/z", "https://a.b/z", None),
        ("https://a.b/../../x y/é", "https://a.b/x%20y/%C3%A9", None),
        ("https://a.b/x%2fy", "https://a.b/x%2fy", None),
        ("https://a.b./", "https://a.b/", None),
    ],
)
def test_urls_are_read_in_one_way(text: str, shown: str, login: object) -> None:
    url, found = parse_url(text)
    assert str(url) == shown
    assert found == login


@pytest.mark.parametrize(
    "text",
    [
        *("", "pypi.org/simple", "ftp://a.b/", "file:///etc", "https:///x", "https://a b/"),
        *("https://a@b@c/", "https://a:b/", "https://a:99999/", "https://[::1/", "https://::1/"),
        *("https://a\\b/", "https://a/\r\nHost: x", "https://a/\x00", "https://127.1/"),
        *("https://0x7f000001/", "https://[fe80::1%25eth0]/", "https://a/" + "x" * 9000),
        *("https://é.example/", "javascript:alert(1)", "https://-/", "https://a..b/"),
    ],
)
def test_bad_urls(text: str) -> None:
    with pytest.raises(BadUrlError) as error:
        parse_url(text)
    assert "http" not in str(error.value) or "no http" in str(error.value)


PAGE = parse_url("https://a.b/simple/demo/")[0]


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("x.whl", "https://a.b/simple/demo/x.whl"),
        ("../../files/x.whl#sha256=0", "https://a.b/files/x.whl"),
        ("//c.d/x", "https://c.d/x"),
        ("/x?y=z", "https://a.b/x?y=z"),
        (" x \n", "https://a.b/simple/demo/x"),
        ("../../../../x", "https://a.b/x"),
    ],
)
def test_links(link: str, shown: str) -> None:
    assert str(join(PAGE, link)[0]) == shown


@given(st.text())
def test_any_link_is_a_plain_url_or_none(link: str) -> None:
    try:
        url, _ = join(PAGE, link)
    except BadUrlError:
        return
    text = str(url)
    assert text.isascii()
    assert not set(text) & set(' \r\n\t\\"<>#')
    parts = urlsplit(text)  # others read the same host in it
    assert (parts.scheme, parts.hostname) == (url.scheme, str(url.host))
    assert parse_url(text) == (url, None)
    assert ".." not in url.path.split("/")


PATHS = st.text(st.characters(codec="ascii", exclude_characters="\\"), max_size=40)


@given(PATHS, st.sampled_from(["", "?x=1", "?sign=ab/cd=="]))
def test_a_link_for_a_box_leads_back(path: str, query: str) -> None:
    try:
        url, _ = parse_url(f"https://a.b/{path}{query}")
    except BadUrlError:
        return
    shown = URLS.file("index-1", url)
    assert shown == URLS.file("index-1", url)
    assert shown.startswith(f"{BASE}/files/index-1/")
    assert not set(shown) & set(' \r\n\t\\"<>#?')
    found = URLS.parse(shown.removeprefix(BASE))
    if not url.file_name.endswith(".metadata"):
        assert found == LinkedFile("index-1", url)
    assert URLS.parse(shown.removeprefix(BASE).replace("index-1", LISTED)) is None


@given(st.text())
def test_any_path_is_a_request_or_none(path: str) -> None:
    URLS.parse(path)
    for kind in ("python", "npm", "links", "files"):
        request = URLS.parse(f"/{kind}/index/{path}")
        assert request is None or ".." not in str(request)


@given(st.binary(), st.binary(max_size=40))
def test_no_link_is_made_by_guessing(token: bytes, name: bytes) -> None:
    assert not isinstance(URLS.parse(f"/files/index/{token.hex()}/{name.hex()}"), LinkedFile)


def test_the_metadata_of_a_wheel_has_the_query_of_the_wheel() -> None:
    url = WebUrl("https", "a.b", 443, "/x.whl", "sign=1")
    shown = URLS.file("i", url)
    found = URLS.parse(f"{shown.removeprefix(BASE)}.metadata")
    assert isinstance(found, LinkedFile)
    assert str(found.url) == "https://a.b/x.whl.metadata?sign=1"


def test_people_see_names_of_files() -> None:
    url, _ = parse_url("https://files.example.org/a/b/demo-1.0-py3-none-any.whl")
    shown = f"  Downloading {ProxyUrls(bytes(32)).file('pypi', url)} (8.3 kB)"
    assert shortened(shown) == "  Downloading demo-1.0-py3-none-any.whl (8.3 kB)"
    indexes = f"Looking in indexes: {BASE}/python/pypi/simple/, https://a.org/x/"
    assert shortened(indexes) == indexes
