"""Steps of the demonstration: the code of each session, call by call.

Each call of a session uses what the calls before it left behind. Everything is computed in the
jail from the repository at /project; `tests/e2e/test_demo.py` compares it with git and wc.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the tool `run`.

    Attributes:
        title: what it does, for people.
        code: what is run.
    """

    title: str
    code: str


@dataclass(frozen=True, slots=True)
class Part:
    """A session and its calls; without a name, each call gets a fresh jail.

    Attributes:
        env: the environment.
        session: name, or None for fresh jails.
        heading: what it is about, for people.
    """

    env: str
    session: str | None
    heading: str
    steps: tuple[Step, ...]


PARSE = r"""
import ast, gc, os
from collections import Counter

gc.disable()  # trees stay: to look for garbage in them takes as long as to parse

skip = {"__pycache__", "build", "dist"}

def sources(suffix):
    for folder, subfolders, names in os.walk("/project"):
        subfolders[:] = [n for n in subfolders if n[0] != "." and n not in skip]
        yield from (os.path.join(folder, name) for name in names if name.endswith(suffix))

text = {path: open(path, encoding="utf-8").read() for path in sources(".py")}
trees = {path: ast.parse(code, path) for path, code in text.items()}
lines = sum(code.count("\n") for code in text.values())
print(f"{len(trees)} modules, {lines} lines")
"""

RANK = r"""
def statements(tree):
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            yield node
            yield from statements(node)

known = {path: list(statements(tree)) for path, tree in trees.items()}
functions = [
    (node.end_lineno - node.lineno + 1, node.name, path.removeprefix("/project/"), node.lineno)
    for path, nodes in known.items()
    for node in nodes
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
functions.sort(key=lambda function: (-function[0], function[2:]))
print(f"{len(functions)} functions; the longest:")
for length, name, path, line in functions[:3]:
    print(f"{length:5} lines  {name:22.22}  {path}:{line}")
"""

IMPORTS = r"""
def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]

users = Counter(name for nodes in known.values() for name in set(imported(nodes)))
users.pop("__future__", None)
print(", ".join(f"{name} {count}" for name, count in users.most_common(7)))
"""

COUNT = r"""
cd /project
sources() {
    find . -name '.?*' -prune -o \( -name __pycache__ -o -name build -o -name dist \) -prune \
        -o -type f -name "$1" -print0
}
count=$(sources '*.py' | tr -cd '\0' | wc -c)
echo "$count Python files"
"""

TESTS = r"""
tests=$(sources 'test_*.py' | xargs -0 grep -hE '^ *(async )?def test_' | wc -l)
files=$(sources 'test_*.py' | tr -cd '\0' | wc -c)
echo "$tests tests in $files of the $count files"
"""

LONGEST = r"""
sources '*.py' | xargs -0 wc -l | sed '/ total$/d' | sort -k1,1nr -k2 | head -n 3 |
    while read -r lines file; do printf '%5d lines  %s\n' "$lines" "${file#./}"; done
"""

INDEX = r"""
const fs = require("node:fs"), path = require("node:path");
const skip = new Set(["__pycache__", "build", "dist"]);
function* sources(folder, suffix) {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    if (entry.name.startsWith(".") || skip.has(entry.name)) continue;
    const file = path.join(folder, entry.name);
    if (entry.isDirectory()) yield* sources(file, suffix);
    else if (entry.name.endsWith(suffix)) yield file;
  }
}
const index = new Map();
let pages = 0, words = 0;
for (const file of sources("/project", ".md")) {
  const page = fs.readFileSync(file, "utf8");
  pages += 1;
  words += page.split(/[ \t\n\v\f\r]+/).filter(Boolean).length;
  const name = path.relative("/project", file);
  for (const [word] of page.toLowerCase().matchAll(/\p{L}{3,}/gu)) {
    const places = index.get(word) ?? index.set(word, new Map()).get(word);
    places.set(name, (places.get(name) ?? 0) + 1);
  }
}
console.log(`${pages} pages, ${words} words, ${index.size} different ones`);
"""

QUERY = r"""
const best = (counts) => [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
const find = (word) => best(index.get(word) ?? []);
console.log(find("jail").slice(0, 3).map(([page, times]) => `${page} ${times}`).join(", "));
"""

COMMON = r"""
const total = (places) => [...places.values()].reduce((a, b) => a + b, 0);
const long = [...index].filter(([word]) => word.length > 6);
const common = best(long.map(([word, places]) => [word, total(places)]));
console.log(common.slice(0, 5).map(([word, times]) => `${word} ${times}`).join(", "));
"""

ESCAPE = r"""
import os, socket

def attempt(what, action):
    try:
        print(f"{what:22} {action()!r:.60}")
    except OSError as error:
        print(f"{what:22} {error.strerror}")

attempt("write to /project:", lambda: open("/project/planted", "w"))
attempt("list /home and /root:", lambda: [os.listdir(path) for path in ("/home", "/root")])
attempt("network interfaces:", lambda: [name for _, name in socket.if_nameindex()])
attempt("processes in sight:", lambda: sum(name.isdigit() for name in os.listdir("/proc")))
"""

PARTS = (
    Part(
        env="python",
        session="analysis",
        heading="analyse the repository",
        steps=(
            Step("parse every module", PARSE),
            Step("rank the functions", RANK),
            Step("count who imports what", IMPORTS),
        ),
    ),
    Part(
        env="bash",
        session="search",
        heading="search it",
        steps=(
            Step("define sources(), use it", COUNT),
            Step("find the tests with it", TESTS),
            Step("list the longest files", LONGEST),
        ),
    ),
    Part(
        env="node",
        session="words",
        heading="process its documentation",
        steps=(
            Step("index every page", INDEX),
            Step("ask it for 'jail'", QUERY),
            Step("ask it for common words", COMMON),
        ),
    ),
    Part(
        env="python",
        session=None,
        heading="and what the jail does not allow",
        steps=(Step("try to get out", ESCAPE),),
    ),
)
