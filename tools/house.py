"""Print how easily a stranger finds a way into this code: sizes, layers, cycles, docstrings.

    .venv/bin/python tools/house.py                   # this checkout
    .venv/bin/python tools/house.py DIR [DIR ...]     # others: `git worktree add DIR COMMIT`
    .venv/bin/python tools/house.py --docstrings      # list the docstrings to rewrite

`tests/structure/test_house.py` fails when a number that may not grow has grown.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agent", "clients", "supervisor", "tools", "benchmarks", "tests")
SOURCE_ROOTS = ("agent", "clients", "supervisor")
"""Folders whose modules are imported by name, and shipped."""

LARGE_LINES = 600
SUBJECT_LENGTH = 72
SINCE = "bda9a36"
"""Commit from which on subjects have to be short."""

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

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """First line of a docstring, or of a text below an assignment, and its place."""

    path: str
    line: int
    owner: str
    text: str
    of_function: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.owner}: {self.text}"


def files(root: Path, *folders: str) -> list[Path]:
    """Python files below these folders of a checkout."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def docstrings(root: Path, *folders: str) -> Iterator[Docstring]:
    """Docstrings of modules, classes and functions, and the texts below assignments."""
    for path in files(root, *folders):
        for node in statements(ast.parse(path.read_bytes(), str(path))):
            for line, owner, text in texts_of(node):
                yield Docstring(
                    path=str(path.relative_to(root)),
                    line=line,
                    owner=owner,
                    text=text.strip().splitlines()[0],
                    of_function=isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef),
                )


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
        yield line, owner, text
    for before, after in pairwise(node.body):
        match before, after:
            case (
                ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if text.strip():
                yield after.lineno, ast.unparse(target), text
            case _:
                pass


def bad_docstrings(root: Path, *folders: str) -> list[Docstring]:
    """Docstrings that open with neither a noun phrase nor an imperative."""
    return [
        each
        for each in docstrings(root, *folders)
        if BAD_OPENING.match(each.text) or (each.of_function and THIRD_PERSON.match(each.text))
    ]


def misnamed_reprs(root: Path, *folders: str) -> list[str]:
    """Classes whose `__repr__` neither opens with their own name nor asks `type(self)` for it."""
    return [
        f"{path.relative_to(root)}:{method.lineno}: {owner.name}"
        for path in files(root, *folders)
        for owner in statements(ast.parse(path.read_bytes(), str(path)))
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
        and method.name == "__repr__"
        and not _names_class(method, owner.name)
    ]


def _names_class(method: ast.FunctionDef, name: str) -> bool:
    opening = re.compile(rf"<?{name}\b")
    return any(
        (isinstance(node, ast.Constant) and opening.match(str(node.value)))
        or (isinstance(node, ast.Call) and ast.unparse(node) == "type(self)")
        for statement in method.body
        for node in ast.walk(statement)
    )


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a module below one of the source roots."""
    parts = path.relative_to(root).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path) -> Graph:
    """Modules that each shipped module imports when it is loaded or later, except for types."""
    paths = {module_name(path, root): path for path in files(root, *SOURCE_ROOTS)}

    def imported(node: ast.AST) -> Iterator[str]:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                for statement in orelse:
                    yield from imported(statement)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    yield inner if inner in paths else module
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from imported(child)

    return {
        name: frozenset(imported(ast.parse(path.read_bytes(), str(path)))) & paths.keys() - {name}
        for name, path in paths.items()
    }


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other, directly or not."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            new = graph[pending.pop()] - seen
            seen |= new
            pending.extend(new)
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph
    }
    return sorted([list(group) for group in groups if group])


def layers(root: Path) -> int:
    """Number of layers in the import test."""
    tree = ast.parse((root / "tests/structure/test_imports.py").read_bytes())
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="FLOORS" | "LAYERS")], value=value)
                | ast.AnnAssign(target=ast.Name(id="FLOORS" | "LAYERS"), value=value)
            ):
                match value:
                    case ast.Tuple(elts=entries) | ast.List(elts=entries):
                        return len(entries)
                    case ast.Dict(keys=keys):
                        return len(keys)
                    case _:
                        pass
            case _:
                pass
    return 0


def long_subjects(root: Path, since: str = SINCE) -> tuple[int, int]:
    """Numbers of commits since then with a subject that is too long, and of all of them.

    Raises:
        CalledProcessError: this is no clone, or one without that commit.
    """
    log = subprocess.run(
        ["git", "-C", str(root), "log", "--no-merges", "--format=%s", f"{since}..HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return sum(len(subject) > SUBJECT_LENGTH for subject in log), len(log)


def repeated_class_names(root: Path) -> list[str]:
    """Public names that several shipped classes have."""
    names = Counter(
        node.name
        for path in files(root, *SOURCE_ROOTS)
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def module_sizes(root: Path) -> list[tuple[int, str]]:
    """Lines and path of each shipped module, the largest first."""
    return sorted(
        (
            (len(path.read_bytes().splitlines()), str(path.relative_to(root)))
            for path in files(root, *SOURCE_ROOTS)
        ),
        reverse=True,
    )


def table(root: Path) -> dict[str, str]:
    """Rows of the table by what they count."""
    rows: dict[str, str] = {}
    base = root / "supervisor/nsmd"
    entries = [
        path for path in base.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    loose = [path for path in entries if path.suffix == ".py" and not path.stem.startswith("__")]
    loose_lines = sum(len(path.read_bytes().splitlines()) for path in loose)
    rows["entries under supervisor/nsmd"] = (
        f"{len(entries)}, {len(loose)} loose modules ({loose_lines} lines)"
    )
    rows["layers in the import test"] = str(layers(root))

    graph = imports(root)
    found = cycles(graph)
    inside = f" of {', '.join(str(len(cycle)) for cycle in found)} modules" if found else ""
    rows["import cycles"] = f"{len(found)}{inside}"
    users = Counter(name for wanted in graph.values() for name in wanted)
    rows["modules imported by exactly one other"] = (
        f"{sum(count == 1 for count in users.values())} of {len(graph)}"
    )

    sizes = module_sizes(root)
    rows["largest modules"] = ", ".join(f"{name} {lines}" for lines, name in sizes[:3])
    rows[f"modules over {LARGE_LINES} lines"] = str(sum(n > LARGE_LINES for n, _ in sizes))
    rows["lines of shipped Python"] = str(sum(lines for lines, _ in sizes))

    twice = repeated_class_names(root)
    rows["class names used more than once"] = f"{len(twice)}: {', '.join(twice)}"

    for folder in FOLDERS:
        total = sum(1 for _ in docstrings(root, folder))
        bad = len(bad_docstrings(root, folder))
        rows[f"docstrings to rewrite, {folder}"] = f"{bad} of {total}"
    everything = bad_docstrings(root, *FOLDERS)
    see = sum(each.text.startswith("See") for each in everything)
    rows['docstrings "See ..."'] = str(see)
    try:
        long, total = long_subjects(root)
        rows[f"subjects over {SUBJECT_LENGTH} characters since {SINCE}"] = f"{long} of {total}"
    except subprocess.CalledProcessError:
        pass
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, with a column for each checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="DIR")
    parser.add_argument("--docstrings", action="store_true", help="list those to rewrite")
    parser.add_argument("--check", action="store_true", help="list them, and fail if there are any")
    options = parser.parse_args(argv)
    checkouts: list[Path] = [path.resolve() for path in options.checkouts]
    if options.docstrings or options.check:
        found = [each for root in checkouts for each in bad_docstrings(root, *FOLDERS)]
        for each in found:
            print(each)
        return 1 if found and options.check else 0
    columns = [table(root) for root in checkouts]
    for what in dict.fromkeys(name for column in columns for name in column):
        print("| " + " | ".join([what, *(column.get(what, "-") for column in columns)]) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
