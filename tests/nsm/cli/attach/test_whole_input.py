"""Checks of whether what was typed is a whole input, and suggestions for the next line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsm.cli.attach.whole_input import check_bash, check_python, with_indent

PYTHON_CASES: dict[str, str] = {
    "": "complete",
    "   ": "complete",
    "# only this": "complete",
    "x = 1": "complete",
    "x = 1; y = 2": "complete",
    "x = 1\ny = 2": "complete",
    "\ufeffx = 1": "complete",
    "x = 1\r\n": "complete",
    "await f()": "complete",
    "async with a as b: pass\n": "complete",
    "foo(1,\n    2)": "complete",
    "'''a\nb'''": "complete",
    "for x in y:\n    pass\n": "complete",
    "for x in y:\n    pass\n    ": "complete",
    "if a:\n    b\nelse:\n    c\n\n": "complete",
    "for x in y:": "incomplete",
    "for x in y:\n    pass": "incomplete",
    "if a: b": "incomplete",
    "def f():\n    # to do": "incomplete",
    "class A:\n    x = 1\n\n    def f(self):\n        pass": "incomplete",
    "@decorator": "incomplete",
    "try:\n    pass\n": "incomplete",
    "foo(": "incomplete",
    "[1,\n 2": "incomplete",
    "{": "incomplete",
    "'''a": "incomplete",
    "x = \\": "incomplete",
    "print('''\n": "incomplete",
    "f'''{a": "incomplete",
    "'a": "invalid",
    "a b": "invalid",
    "x =": "invalid",
    ")": "invalid",
    "[)": "invalid",
    "  x": "invalid",
    "x\n  y": "invalid",
    "return 1": "invalid",
    "else": "invalid",
    "for x in y:\nz": "invalid",
    "x = 1\0": "invalid",
    "if a:\n    b\n  c": "invalid",
}
BASH_CASES: dict[str, str] = {
    "": "complete",
    "echo a; echo b": "complete",
    "# only this": "complete",
    "# ends in \\": "complete",
    "if a; then b; fi": "complete",
    "cat <<E\na\nE": "complete",
    "echo 'a\nb'": "complete",
    "echo a\\\\": "complete",
    "echo !(a)": "complete",
    "f() { :; }": "complete",
    "if a": "incomplete",
    "if a; then": "incomplete",
    "while read x; do": "incomplete",
    "case a in": "incomplete",
    "f() {": "incomplete",
    "a |": "incomplete",
    "a &&": "incomplete",
    "(a": "incomplete",
    "[[ a &&": "incomplete",
    "echo 'a": "incomplete",
    'echo "a': "incomplete",
    "echo $(a": "incomplete",
    "echo ${a": "incomplete",
    "echo `a": "incomplete",
    "a=(": "incomplete",
    "cat <<E": "incomplete",
    "x=$(cat <<E": "incomplete",
    "echo a \\": "incomplete",
    "fi": "invalid",
    "}": "invalid",
    ")": "invalid",
    "a ;;": "invalid",
    "fi # syntax error: unexpected end of file": "invalid",
    "fi\nbash: line 1: syntax error: unexpected end of file": "invalid",
}


@pytest.mark.parametrize("code", PYTHON_CASES)
def test_python(code: str) -> None:
    assert check_python(code).status == PYTHON_CASES[code]


@pytest.mark.parametrize("code", BASH_CASES)
def test_bash(code: str) -> None:
    assert check_bash(code).status in (BASH_CASES[code], "unknown")  # within its time


@pytest.mark.parametrize(
    ("interpreter", "code", "indent"),
    [
        ("python", "for x in y:", "    "),
        ("python", "for x in y:  # each", "    "),
        ("python", "if a:\n  if b:", "    "),
        ("python", "if a:\n  b\n  if c:", "    "),
        ("python", "if a:\n\tif b:", "\t\t"),
        ("python", "def f():\n    x = 1", "    "),
        ("python", "def f():\n    if a:\n        return 1", "    "),
        ("python", "def f():\n    return 1", ""),
        ("python", "foo(\n", "    "),
        ("python", "foo(a,", ""),
        ("python", "x = '''\n    a:", ""),
        ("python", "x = 1", ""),
        ("python", "  x", ""),
        ("bash", "while read x; do", "    "),
        ("bash", "if a; then\n  b", "  "),
        ("bash", "echo 'a (", ""),
        ("bash", "cat <<E\n  a", ""),
    ],
)
def test_the_next_lines_indentation(interpreter: str, code: str, indent: str) -> None:
    found = check_python(code) if interpreter == "python" else check_bash(code)
    assert found.indent == indent


@pytest.mark.parametrize(
    ("code", "indent"),
    [
        ("if (a) {", "    "),
        ("if (a) {\n  if (b) {", "    "),
        ("const a = `\n  {", ""),
    ],
)
def test_the_next_lines_indentation_in_node(code: str, indent: str) -> None:
    assert with_indent("incomplete", code) == ("incomplete", indent)
    assert with_indent("invalid", code) == ("invalid", "")


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "startup").write_text(f"> {tmp_path}/run\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "startup"))
    assert check_python("open('run', 'w')").status == "complete"
    check_bash('> run; echo $(> run) "`> run`" $(( $(> run) ))')
    assert not (tmp_path / "run").exists()


def test_a_host_without_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_bash("echo").status == "unknown"


DEEP = {
    "brackets": "(" * 30_000,
    "pairs": "[" * 20_000 + "]" * 20_000,
    "signs": "-" * 60_000 + "1",
    "sum": "1+" * 30_000 + "1",
    "attributes": "a" + ".a" * 30_000,
    "calls": "a" + "()" * 30_000,
    "nots": "not " * 15_000 + "a",
    "lambdas": "lambda:" * 9_000 + "a",
    "choices": "a if b else " * 5_000 + "a",
    "elifs": "if a: b\n" + "elif a: b\n" * 6_000,
    "blocks": "".join(" " * i + "if a:\n" for i in range(300)),
    "f-strings": "f'{" * 20_000,
    "groups": "{ " * 30_000,
    "substitutions": "$(" * 30_000,
    "functions": "() => " * 10_000 + "1",
    "templates": "`${" * 20_000,
    "long": "x = 1\n" * 10_000,
    "surrogates": "\ud800" * 1000,
    "huge": "x" * 8 * 1024 * 1024,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_and_long_texts(name: str) -> None:
    for found in (check_python(DEEP[name]), check_bash(DEEP[name])):
        assert found.status in {"complete", "incomplete", "invalid", "unknown"}
        if name == "huge":
            assert found.status == "unknown"
