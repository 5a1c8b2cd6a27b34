"""Pages of packages, made anew: any page gives a page, and no link leads past the proxy."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.environments.packages.index_proxy.page_rewriting import (
    BadPageError,
    rewrite_html,
    rewrite_json,
    rewrite_packument,
)
from nsmd.environments.packages.web_urls import WebUrl, parse_url

PAGE = parse_url("https://index.test/simple/demo/")[0]


def rewrite(url: WebUrl, name: str = "") -> str:
    return f"http://proxy/{url.host}{len(name)}"


class _Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_page_of_html() -> None:
    made = rewrite_html(
        """<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.1">
        <base href="https://files.test/"><script src="https://evil.test/"></script></head><body>
        <a href="a-1.0.whl#sha256=ab" data-requires-python="&gt;=3.8" data-yanked data-x="y"
           onclick="x()">text</a>
        <a HREF='mailto:x@y'>mail</a><a name=x>none</a><a href="ftp://a/b">ftp</a>
        <a href="b-1.0.tar.gz#x=<y>" data-gpg-sig="true">b &lt; c</a>""",
        PAGE,
        rewrite,
    )
    meta, *anchors = [(tag, told) for tag, told in _Read(made).tags if tag in ("a", "meta")]
    assert meta[1] == {"name": "pypi:repository-version", "content": "1.1"}
    assert [told for _, told in anchors] == [
        {
            "href": "http://proxy/files.test9#sha256=ab",
            "data-requires-python": ">=3.8",
            "data-yanked": "",
        },
        {"href": "http://proxy/files.test12"},
    ]
    assert "evil" not in made


@given(st.text())
def test_any_text_gives_a_page_of_html(text: str) -> None:
    for source in (
        text,
        f"<a href='{text}'",
        f'<a href="x" {text}>',
        f"<base href='{text}'><a href=x>",
    ):
        made = rewrite_html(source, PAGE, rewrite)
        for tag, told in _Read(made).tags:
            assert tag in ("html", "head", "title", "meta", "body", "a", "br")
            assert told.get("href", "http://proxy/x").startswith("http://proxy/")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["<a " + "x" * 3_000_000, "<a " + "\"'" * 500_000, '<a "' * 200_000]
)
def test_a_page_of_rubbish_takes_no_longer_than_its_size(text: str) -> None:
    assert "<a" not in rewrite_html(text, PAGE, rewrite)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["url", "filename", "hashes", "yanked", "x"]), inner)
    ),
    max_leaves=6,
)
FILES = st.dictionaries(
    st.sampled_from(["filename", "url", "hashes", "size", "yanked", "core-metadata", "other"]),
    JSON_VALUES,
)


@given(st.lists(FILES | JSON_VALUES, max_size=4), JSON_VALUES, JSON_VALUES)
def test_any_json_gives_a_page_of_json(files: list[Any], name: Any, versions: Any) -> None:
    told = {"meta": {"api-version": "1.0"}, "files": files, "name": name, "versions": versions}
    made = json.loads(rewrite_json(json.dumps(told).encode(), PAGE, rewrite))
    assert set(made) <= {"meta", "files", "name", "versions"}
    for file in made["files"]:
        assert file["url"].startswith("http://proxy/")
        assert isinstance(file["filename"], str)
        assert all(isinstance(value, str) for value in file["hashes"].values())


@pytest.mark.parametrize(
    "page",
    [b"", b"[]", b"{", b'{"files": []}', b'{"meta": {"api-version": "2.0"}, "files": []}', b"\xff"],
)
def test_what_is_no_page(page: bytes) -> None:
    with pytest.raises(BadPageError):
        rewrite_json(page, PAGE, rewrite)


@given(st.binary())
def test_bytes_are_a_page_or_refused(data: bytes) -> None:
    for read in (rewrite_json, rewrite_packument):
        try:
            read(data, PAGE, rewrite)
        except BadPageError:
            continue


@given(JSON_VALUES, JSON_VALUES, JSON_VALUES)
def test_no_tarball_of_npm_leads_past_the_proxy(link: Any, other: Any, dist: Any) -> None:
    version = {"name": "x", "dist": {"tarball": link, "integrity": other, "attestations": other}}
    told = {"versions": {"1.0.0": version, "2.0.0": other, "3.0.0": {"dist": dist}}, **version}
    made = json.loads(rewrite_packument(json.dumps(told).encode(), PAGE, rewrite))
    for row in (made, made["versions"]["1.0.0"]):
        assert row["dist"]["integrity"] == other
        assert row["dist"].get("tarball", "http://proxy/").startswith("http://proxy/")
        assert "attestations" not in row["dist"]
