"""Configuration of Sphinx for `make docs`.

The pages are ordinary Markdown, which also reads well in the repository. Four things are added
when the site is built: the navigation, which is made of the links in `README.md`; the Python API
and the list of the pages that tools/pages.py makes, each in place of a comment; and links to files
beside `docs/`, which the site does not have, become text.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tools"))

import pages  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "nsm"
release = installed("nsm-sessions")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns = ["_site"]

html_theme = "furo"
html_title = "nsm"
html_extra_path = ["_site"]
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 4
default_role = "code"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

NAVIGATION = ("README", "explanation/decisions/README")
"""Pages whose links are the navigation. A page that none of them names fails the build."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(?:#[^)]*)?\)")
_API = "<!-- python api -->"
_MADE = "<!-- pages that are made -->"


def on_source(_: Sphinx, page: str, source: list[str]) -> None:
    """Change the text of a page before it is parsed."""
    text = source[0].replace(_API, _api()).replace(_MADE, _made())
    text = _LINK.sub(lambda link: _inside(page, link), text)
    if page in NAVIGATION:
        text += _navigation(page, text)
    source[0] = text


def _inside(page: str, link: re.Match[str]) -> str:
    """A link, or its text alone where it leads to a file that is not part of the site."""
    target = os.path.normpath(os.path.join(os.path.dirname(page), link[2]))
    return link[1] if target.startswith("..") else link[0]


def _navigation(page: str, text: str) -> str:
    """Contents for the sidebar: the pages that each section links to, once each."""
    seen = {page}
    parts: list[str] = []
    first, *sections = re.split(r"(?m)^## ", text)
    for section in sections or [first.removeprefix("# ")]:
        title, _, body = section.partition("\n")
        targets = [link[2].removesuffix(".md") for link in _LINK.finditer(body)]
        pages = [name for name in dict.fromkeys(targets) if "://" not in name]
        folder = os.path.dirname(page)
        pages = [name for name in pages if os.path.join(folder, name) not in seen]
        seen.update(os.path.join(folder, name) for name in pages)
        if pages:
            parts += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]
    return "\n".join([*parts, ""])


def _made() -> str:
    """Links to the pages that are made."""
    titles = {name: (HERE / f"{name}.md").open().readline()[2:].strip() for name in pages.PAGES}
    return "\n".join(f"- [{title}]({name}.md)" for name, title in titles.items())


def _api() -> str:
    """Directives for everything public in `nsm`."""
    import nsm  # noqa: PLC0415  # only where the page is built

    classes = ["Client", "AsyncClient"]
    others = [name for name in nsm.__all__ if name not in classes and name != "__version__"]
    lines = ["```{eval-rst}", ".. currentmodule:: nsm", ""]
    for name in classes:
        lines += [f".. autoclass:: {name}", "   :members:", "   :inherited-members:", ""]
    for name in others:
        lines += [f".. autoclass:: {name}", ""]
    return "\n".join([*lines, "```"])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", on_source)
