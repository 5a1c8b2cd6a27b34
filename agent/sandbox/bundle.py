"""Bundle of an entry and the modules that it imports: one file, as it travels into a jail.

Importing a package of many modules takes longer than running one compiled file, and a jail has no
place for a package. So the modules' texts are put one after another, imported ones first, without
the imports between them: they share one name space, as `sandbox` says. Texts of other files stand
where `text_of` reads them.

    python3 bundle.py ENTRY > BUNDLE
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FUTURE = "from __future__ import annotations\n"
IMPORT = re.compile(r"^from (sandbox[.\w]*) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)
TEXT = re.compile(r'text_of\("([^"\n]+)"\)')
UNBUNDLED = "# unbundled\n"
"""Ends lines that only an entry needs that is run without being bundled."""


def bundle(entry: str) -> str:
    """Make one program of an entry, a file beside the package `sandbox`, and its modules."""
    folder = os.path.dirname(entry)

    def text_of(found: re.Match[str]) -> str:
        return repr(_read(os.path.join(folder, "sandbox", "workers", found[1])))

    parts = [
        f'"""{os.path.basename(entry)}, made of several modules by sandbox/bundle.py."""\n',
        FUTURE,
    ]
    for path, text in modules_of(entry):
        own = TEXT.sub(text_of, IMPORT.sub("", text.replace(FUTURE, "", 1)))
        if UNBUNDLED in own:
            lines = own.splitlines(keepends=True)
            own = "".join(line for line in lines if not line.endswith(UNBUNDLED))
        parts.append(f"\n# {os.path.relpath(path, folder)}\n{own}")
    return "\n".join(parts)


def modules_of(entry: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the modules that a program consists of: imported ones first, its entry
    last."""
    folder = os.path.dirname(entry)
    seen: set[str] = set()

    def visit(path: str) -> Iterator[tuple[str, str]]:
        if path in seen:
            return
        seen.add(path)
        text = _read(path)
        for found in IMPORT.finditer(text):
            yield from visit(_path_of(folder, found[1]))
        yield path, text

    return visit(entry)


def files_of(entry: str) -> Iterator[str]:
    """Paths of all files that a bundle is made of."""
    texts = os.path.join(os.path.dirname(entry), "sandbox", "workers")
    for path, text in modules_of(entry):
        yield path
        for found in TEXT.finditer(text):
            yield os.path.join(texts, found[1])


def _path_of(folder: str, module: str) -> str:
    path = os.path.join(folder, *module.split("."))
    package = os.path.join(path, "__init__.py")
    return package if os.path.exists(package) else f"{path}.py"


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    sys.stdout.write(bundle(os.path.abspath(sys.argv[1])))
