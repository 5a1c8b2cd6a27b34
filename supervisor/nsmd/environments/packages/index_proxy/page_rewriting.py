"""Pages of packages, rewritten with links to the proxy; pure.

Pages of Python packages have two forms: HTML (PEP 503) and JSON (PEP 691, with PEP 658, 700, 714
and 792). What a page says of a file is kept, above all its hashes. Everything else is left out, so
a page cannot show the jail more than files. npm has a description of each package, in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape, unescape
from typing import Any, cast

from nsmd.environments.packages.web_urls import BadUrlError, WebUrl, join

Rewrite = Callable[[WebUrl, str], str]
"""Makes the URL for the jail, of a link and the file's name."""

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPES = frozenset({"text/html", "application/vnd.pypi.simple.v1+html"})

_FRAGMENT = re.compile(r"[a-z0-9_-]+=[A-Za-z0-9+/=_.%-]+(?:&[a-z0-9_-]+=[A-Za-z0-9+/=_.%-]+)*")
_ATTRIBUTES = (
    "data-requires-python",
    "data-core-metadata",
    "data-dist-info-metadata",
    "data-yanked",
)
_TEXT_KEYS = ("requires-python", "upload-time")
_METADATA_KEYS = ("core-metadata", "dist-info-metadata")

_LEFT_OUT = ("readme", "readmeFilename", "_attachments", "_rev", "users")
"""Parts of a description that no installation reads; the first is often most of it."""

_FIRST_LETTERS = frozenset("aAbBmM")
"""First letters of the tags that are read; most others are skipped without a regular expression."""

_BEGIN = re.compile(r"(?:a|base|meta)\s", re.IGNORECASE)
_TAG = re.compile(r"(a|base|meta)\s((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([^\s\"'<>/=]+)(?:\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?")
_MOST_PARTS = 4
"""Pieces between `<` that one tag may have."""
_MAX_TAG = 16 * 1024
"""Characters of a tag. The search for its end takes memory for each."""


class BadPageError(ValueError):
    """A page that is none of packages."""


def rewrite_html(text: str, page: WebUrl, rewrite: Rewrite) -> str:
    """Rewrite a page of HTML.

    Args:
        page: URL that it came from.
    """
    parser = _Anchors(text)
    base = page
    if parser.base is not None:
        with suppress(BadUrlError):
            base, _ = join(page, parser.base)
    lines = ["<!DOCTYPE html>", "<html><head>"]
    if parser.version is not None and re.fullmatch(r"1\.\d{1,3}", parser.version):
        lines.append(f'<meta name="pypi:repository-version" content="{parser.version}">')
    lines.append("<title>Links</title></head><body>")
    for anchor in parser.anchors:
        link = anchor.get("href")
        try:
            url, _ = join(base, link or "")
        except BadUrlError:
            continue
        name = url.file_name
        if not name:
            continue
        fragment = (link or "").partition("#")[2]
        shown = rewrite(url, name)
        if _FRAGMENT.fullmatch(fragment):
            shown = f"{shown}#{fragment}"
        kept = "".join(
            f' {each}="{escape(anchor[each] or "")}"' for each in _ATTRIBUTES if each in anchor
        )
        lines.append(f'<a href="{escape(shown)}"{kept}>{escape(name)}</a><br>')
    lines.append("</body></html>")
    return "\n".join(lines) + "\n"


def rewrite_json(data: bytes, page: WebUrl, rewrite: Rewrite) -> bytes:
    """Rewrite a page of JSON.

    Args:
        page: URL that it came from.

    Raises:
        BadPageError: it is no such page.
    """
    told = _load_json(data)
    files = told.get("files")
    meta = told.get("meta")
    version = cast("dict[str, Any]", meta).get("api-version") if isinstance(meta, dict) else None
    if not isinstance(files, list) or not isinstance(version, str):
        raise BadPageError("has no list of files")
    if not re.fullmatch(r"1\.\d{1,3}", version):
        raise BadPageError("has a version of another kind than 1")
    made: dict[str, Any] = {"meta": {"api-version": version}, "files": []}
    if isinstance(name := told.get("name"), str):
        made["name"] = name
    if isinstance(versions := told.get("versions"), list):
        made["versions"] = [x for x in cast("list[object]", versions) if isinstance(x, str)]
    if isinstance(status := told.get("project-status"), dict):
        made["project-status"] = _texts(cast("dict[str, object]", status))
    for row in cast("list[object]", files):
        file = _file(cast("dict[str, Any]", row), page, rewrite) if isinstance(row, dict) else None
        if file is not None:
            made["files"].append(file)
    return json.dumps(made, separators=(",", ":")).encode()


def rewrite_packument(data: bytes, page: WebUrl, rewrite: Callable[[WebUrl], str]) -> bytes:
    """Make the description of a package, or of one version, with other links to its files.

    Args:
        page: URL that it came from.
        rewrite: makes the URL for the jail.

    Raises:
        BadPageError: it is no such description.
    """
    told = _load_json(data)
    for key in _LEFT_OUT:
        told.pop(key, None)
    versions = told.get("versions")
    rows = cast("dict[str, object]", versions) if isinstance(versions, dict) else {}
    for row in (told, *rows.values()):
        if isinstance(row, dict):
            _rewrite_version(cast("dict[str, Any]", row), page, rewrite)
    return json.dumps(told, separators=(",", ":")).encode()


def _load_json(data: bytes) -> dict[str, Any]:
    """Parse an object of JSON.

    Raises:
        BadPageError: it is none.
    """
    try:
        told: object = json.loads(data)
    except (ValueError, RecursionError):
        raise BadPageError("is no valid JSON") from None
    if not isinstance(told, dict):
        raise BadPageError("is no object of JSON")
    return cast("dict[str, Any]", told)


def _file(row: Mapping[str, Any], page: WebUrl, rewrite: Rewrite) -> dict[str, Any] | None:
    name, link = row.get("filename"), row.get("url")
    if not isinstance(name, str) or not name or "/" in name or not isinstance(link, str):
        return None
    try:
        url, _ = join(page, link)
    except BadUrlError:
        return None
    hashes = row.get("hashes")
    file: dict[str, Any] = {
        "filename": name,
        "url": rewrite(url, name),
        "hashes": _texts(cast("dict[str, object]", hashes)) if isinstance(hashes, dict) else {},
    }
    for key in _TEXT_KEYS:
        if isinstance(value := row.get(key), str):
            file[key] = value
    for key in _METADATA_KEYS:
        value = row.get(key)
        if isinstance(value, bool):
            file[key] = value
        elif isinstance(value, dict):
            file[key] = _texts(cast("dict[str, object]", value))
    if isinstance(yanked := row.get("yanked"), bool | str):
        file["yanked"] = yanked
    if isinstance(size := row.get("size"), int) and not isinstance(size, bool):
        file["size"] = size
    return file


def _texts(told: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in told.items() if isinstance(value, str)}


def _rewrite_version(
    version: dict[str, Any], page: WebUrl, rewrite: Callable[[WebUrl], str]
) -> None:
    told = version.get("dist")
    if not isinstance(told, dict):
        return
    dist = cast("dict[str, Any]", told)
    dist.pop("attestations", None)  # a URL elsewhere, for `npm audit` only
    link = dist.pop("tarball", None)
    if isinstance(link, str):
        try:
            url, _ = join(page, link)
        except BadUrlError:
            return
        dist["tarball"] = rewrite(url)


class _Anchors:
    """Anchors of a page. `html.parser` would take most of the time of a large page."""

    def __init__(self, text: str) -> None:
        self.anchors: list[dict[str, str | None]] = []
        self.base: str | None = None
        self.version: str | None = None
        parts = text.split("<")
        in_comment = False
        for place, part in enumerate(parts):
            in_comment = (in_comment or part.startswith("!--")) and "-->" not in part
            if in_comment or part[:1] not in _FIRST_LETTERS:
                continue
            tag = _TAG.match(part, 0, _MAX_TAG)
            if tag is None and _BEGIN.match(part):  # some pages have a plain `<` in an attribute
                tag = _TAG.match("<".join(parts[place : place + _MOST_PARTS]), 0, _MAX_TAG)
            if tag is not None:
                self._take(tag[1].lower(), tag[2])

    def _take(self, tag: str, text: str) -> None:
        told: dict[str, str | None] = {}
        for name, value in _ATTRIBUTE.findall(text):
            plain = value[1:-1] if value[:1] in ("'", '"') else value
            told.setdefault(name.lower(), unescape(plain))
        if tag == "a":
            self.anchors.append(told)
        elif tag == "base" and self.base is None:
            self.base = told.get("href")
        elif tag == "meta" and told.get("name") == "pypi:repository-version":
            self.version = told.get("content")
