"""Local directories that ``file:`` indexes lead to.

A local index often keeps its pages in one directory and its files in another. A build sees only
directories that it is shown, so the pages' links are followed here.
"""

from __future__ import annotations

import os
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

MAX_PAGES = 64
"""Pages of one index that are read; an index has its files in few directories."""

MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_DIRECTORIES = 16


def local_path(url: str) -> str | None:
    """Return the path of a ``file:`` URL of this machine; None if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = os.path.normpath(unquote(parts.path))
    return path if os.path.isabs(path) and "\0" not in path else None


def linked_directories(place: str) -> list[str]:
    """Return the directory of an index or page, and those of files that its pages link to."""
    found = {place: None} if os.path.isdir(place) else {os.path.dirname(place): None}
    for page in _pages(place):
        for link in _links(page):
            path = local_path(urljoin(f"file://{page}", link))
            if path is None or any(_is_below(path, known) for known in found):
                continue
            directory = os.path.dirname(path)
            if os.path.isfile(path) and directory != "/" and len(found) < MAX_DIRECTORIES:
                found[directory] = None
    return list(found)


def _pages(place: str) -> list[str]:
    if os.path.isfile(place):
        return [place]
    try:
        with os.scandir(place) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    inner = (os.path.join(place, name, "index.html") for name in names)
    pages = [page for page in inner if os.path.isfile(page)]
    step = max(1, len(pages) // MAX_PAGES)
    return pages[::step][:MAX_PAGES]


def _links(page: str) -> list[str]:
    try:
        with open(page, "rb") as file:
            text = file.read(MAX_PAGE_BYTES).decode(errors="replace")
    except OSError:
        return []
    parser = _Links()
    parser.feed(text)
    return parser.found


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(f"{directory.rstrip('/')}/")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
