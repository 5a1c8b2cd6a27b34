"""Check what makes code readable: docstrings open plainly, names are unique, modules are short.

.venv/bin/python tools/house.py          # this checkout; `make lint` runs it
.venv/bin/python tools/house.py DIR      # another one
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agent", "clients", "supervisor", "tools", "benchmarks", "tests")
SHIPPED = ("agent", "clients", "supervisor")

LARGE_LINES = 600

BAD_OPENING = re.compile(
    r"(What|Whether|Of|So|Whoever|One that|Who|Which|That|It|See|Those|By which|With|As|From|Until"
    r"|In place of|Where|There|For|Beside|When|Why|Its)\b"
)
"""First words that make the reader look for the subject of the sentence."""

THIRD_PERSON = re.compile(
    r"(Adds|Applies|Asks|Becomes|Begins|Closes|Collects|Does|Empties|Forgets|Gives|Goes|Handles|Has"
    r"|Interrupts|Keeps|Lets|Makes|Moves|Passes|Prints|Puts|Registers|Releases|Remembers|Removes"
    r"|Replaces|Returns|Runs|Says|Sends|Serves|Sets|Shows|Takes|Tells|Waits|Writes)\b"
)
"""Verbs with which the docstring of a function tells about it, instead of what to do."""


def faults(root: Path) -> Iterator[str]:
    """Each fault of a checkout, with its place."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, str(path))
            place = path.relative_to(root).as_posix()
            for line, owner, opening in bad_docstrings(tree):
                yield f"{place}:{line}: {owner}: name the thing, or say what to do: {opening}"
            if folder not in SHIPPED:
                continue
            if (lines := len(text.splitlines())) > LARGE_LINES:
                yield f"{place}: {lines} lines: move a thought of its own to where it belongs"
            if folder != "clients":
                for line, owner in misnamed_reprs(tree):
                    yield f"{place}:{line}: {owner}: its repr opens with another name"
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    owners[node.name].append(f"{place}:{node.lineno}")
    for name, places in owners.items():
        if len(places) > 1:
            yield f"{', '.join(places)}: {name}: several classes have this name"


def bad_docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, owner and first line of docstrings that open with no noun phrase or imperative."""
    for node in statements(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line, owner, text in texts_of(node):
            if BAD_OPENING.match(text) or (is_function and THIRD_PERSON.match(text)):
                yield line, owner, text.splitlines()[0]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the statements below it, without expressions: no definition is in one."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr | ast.expr_context):
            yield from statements(child)


def texts_of(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, owner and text of a node's docstring, and of the texts below assignments in it."""
    match node:
        case ast.Module():
            line, owner = 1, "module"
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            line, owner = node.lineno, node.name
        case _:
            return
    if text := ast.get_docstring(node):
        yield line, owner, text.strip()
    for before, after in pairwise(node.body):
        match before, after:
            case (
                ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if text.strip():
                yield after.lineno, ast.unparse(target), text.strip()
            case _:
                pass


def misnamed_reprs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Classes whose `__repr__` neither opens with their own name nor asks `type(self)` for it."""
    for owner in statements(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for method in owner.body:
            if (
                isinstance(method, ast.FunctionDef)
                and method.name == "__repr__"
                and not _names_class(method, owner.name)
            ):
                yield method.lineno, owner.name


def _names_class(method: ast.FunctionDef, name: str) -> bool:
    opening = re.compile(rf"<?{name}\b")
    return any(
        (isinstance(node, ast.Constant) and opening.match(str(node.value)))
        or (isinstance(node, ast.Call) and ast.unparse(node) == "type(self)")
        for statement in method.body
        for node in ast.walk(statement)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the faults; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT, metavar="DIR")
    found = list(faults(parser.parse_args(argv).checkout.resolve()))
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
