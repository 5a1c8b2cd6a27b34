"""Program in the jail of a build: has pip resolve, and asks the indexes for the hashes of all files
of what it has chosen, since pip tells those for this platform only.

Standard library only, since it runs on the environment's own Python. `REPORT FILES COMMAND...`:
COMMAND is pip's and writes REPORT; FILES will have, by project, the hash of each file by its name.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin
from urllib.request import Request, urlopen

ACCEPTED = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
MAX_PAGE_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 180.0
"""The proxy answers earlier, at least with an error."""


class PageLinks(HTMLParser):
    """Links of a page: the hash of each file by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url, fragment = urldefrag(dict(attrs).get("href") or "")
        kind, _, digest = fragment.partition("=")
        if tag == "a" and kind == "sha256":
            self.hashes[unquote(url.rpartition("/")[2])] = digest


def hashes_on(url: str) -> dict[str, str]:
    with urlopen(Request(url, headers={"Accept": ACCEPTED}), timeout=TIMEOUT_S) as answer:  # noqa: S310  # pip has asked it, too
        data = answer.read(MAX_PAGE_BYTES)
        if "json" not in answer.headers.get_content_type():
            links = PageLinks()
            links.feed(data.decode("utf-8", "replace"))
            return links.hashes
    files: list[dict[str, Any]] = json.loads(data)["files"]
    return {each["filename"]: each["hashes"].get("sha256", "") for each in files}


def page_of(name: str, url: str) -> str:
    """URL of the page of a project, beside the file that pip has chosen; empty for none."""
    base, found, rest = url.partition("/files/")
    index = rest.partition("/")[0]
    project = re.sub(r"[-_.]+", "-", name).lower()
    return urljoin(base, f"/python/{index}/simple/{project}/") if found else ""


def main() -> None:
    report, files, *command = sys.argv[1:]
    if command[-1] == "--offline":
        sys.exit(1)  # pip resolves with indexes only
    ended = subprocess.run(command, check=False).returncode
    if ended:
        sys.exit(ended)
    told: dict[str, dict[str, str]] = {}
    with open(report, encoding="utf-8") as file:
        for each in json.load(file)["install"]:
            name = each["metadata"]["name"]
            if page := page_of(name, each["download_info"]["url"]):
                try:
                    told[name] = hashes_on(page)
                except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                    sys.stderr.write(f"{name}: no hashes for other platforms: {error}\n")
    with open(files, "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
