"""Nix expressions evaluated one process each, and unit tests in the form of nix-unit.

nix-unit itself asks for a newer Nix than Debian has, and for C++ to build it. Its form: a test is
an attribute whose name begins with "test", with `expr` and either `expected` or
`expectedError.msg`, a regular expression for the message. Sets of tests are groups.
"""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standin import Place

AT_ONCE = 2

# { "GROUP.testNAME" = null, or the expression for the error's message; }
LIST = """
let
  flatten = prefix: set: builtins.concatLists (map (name:
    let it = set.${name}; path = prefix + name; in
    if builtins.substring 0 4 name == "test"
    then [ { name = path; value = it.expectedError.msg or null; } ]
    else if builtins.isAttrs it then flatten "${path}." it else [ ]) (builtins.attrNames set));
in tests: builtins.listToAttrs (flatten "" tests)
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that did not give what was expected."""

    name: str
    why: str


class EvaluationError(Exception):
    """Nix could not evaluate an expression.

    Attributes:
        message: why, without where: Nix quotes the code, which has the text of other errors in it.
    """

    def __init__(self, told: str) -> None:
        super().__init__(told)
        last = re.split(r"^\s*error:", told, flags=re.MULTILINE)[-1]
        # The place follows after an empty line, or, of newer versions, at once.
        message = re.split(r"\n\s*(?:\n|at \S+:\d+:\d+:\n)", last)[0]
        self.message = " ".join(message.split())


def evaluate(place: Place, expression: str, *options: str) -> Any:
    """The value of an expression, which may not build anything.

    Raises:
        EvaluationError: it has none.
    """
    command = ["nix-instantiate", "--eval", "--strict", "--json", *options]
    command += ["--option", "allow-import-from-derivation", "false", "--expr", expression]
    done = subprocess.run(
        command, env=place.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EvaluationError(done.stderr)
    return json.loads(done.stdout)


def failures(place: Place, tests: str) -> list[Failure]:
    """Run unit tests.

    Args:
        tests: an expression for a set of them.
    """
    messages: dict[str, str | None] = evaluate(place, f"({LIST}) ({tests})")
    assert messages, "there are no tests"

    def check(name: str) -> Failure | None:
        return outcome(place, f"({tests}).{name}", name, messages[name])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        unequal = [name for name, message in messages.items() if message is None]
        batch = pool.submit(all_equal, place, tests, unequal)
        expected_errors = [name for name, message in messages.items() if message is not None]
        found = [each for each in pool.map(check, expected_errors) if each]
        if not batch.result():  # which of them, and why
            found += [each for each in pool.map(check, unequal) if each]
    return found


def all_equal(place: Place, tests: str, names: list[str]) -> bool:
    """Return whether tests without errors give what they expect; one evaluation, the usual case."""
    equal = " && ".join(f"(t.{name}.expr == t.{name}.expected)" for name in names) or "true"
    try:
        return bool(evaluate(place, f"let t = {tests}; in {equal}"))
    except EvaluationError:
        return False


def outcome(place: Place, test: str, name: str, message: str | None) -> Failure | None:
    """Describe the failure of one test; None if it passed."""
    try:
        if message is None:
            pair = evaluate(
                place, f"let t = {test}; in [ (t.expr == t.expected) t.expr t.expected ]"
            )
            equal, got, wanted = pair
            return None if equal else Failure(name, f"{got!r} instead of {wanted!r}")
        got = evaluate(place, f"({test}).expr")
    except EvaluationError as error:
        if message is not None and re.search(message, error.message):
            return None
        return Failure(name, f"{error.message!r} instead of {message!r}")
    return Failure(name, f"{got!r} instead of an error with {message!r}")
