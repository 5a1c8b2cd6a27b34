"""Write small programs with a test each, one a line, as `nsm map` takes them.

    python3 benchmarks/small_programs.py 1000 > programs.jsonl

Each defines `solve`, tests it and prints "ok". Its `id` has the verdict that is expected: one in 10
has a mistake and fails its test, one in 500 runs into its time limit; one in 100 prints 200 kB.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from math import comb
from random import Random
from typing import Literal, NamedTuple

Verdict = Literal["pass", "fail", "timeout"]
Task = tuple[str, tuple[str, str], tuple[object, ...], object]
"""A solution; a part of it, and what makes each answer wrong in its place; arguments; the answer,
which is known without the solution.
"""

FAILS, PRINTS, ENDLESS = 10, 100, 500
"""One in so many programs is of that kind."""

LIMIT_S = 0.2
"""Time limit of programs that do not end; others have none of their own."""

MUCH = 'for number in range(3000):\n    print(f"{number:064}")\n'
ENDINGS = ("while True:\n    pass\n", "import time\ntime.sleep(3600)\n")


def arithmetic(random: Random) -> Task:
    last = (limit := random.randint(50, 5000)) - 1
    by_3, by_5, by_15 = (n * (last // n) * (last // n + 1) // 2 for n in (3, 5, 15))
    code = (
        "def solve(limit):\n    return sum(n for n in range(limit) if n % 3 == 0 or n % 5 == 0)\n"
    )
    return code, ("range(limit)", "range(limit + 3)"), (limit,), by_3 + by_5 - by_15


def strings(random: Random) -> Task:
    code = """from itertools import groupby
def solve(text):
    return "".join(f"{len(list(run))}{letter}" for letter, run in groupby(text))
"""
    runs = [(random.randint(1, 9), letter) for letter in random.sample("abcdefgh", 6)]
    text = "".join(letter * number for number, letter in runs)
    answer = "".join(f"{number}{letter}" for number, letter in runs)
    return code, ("{len(list(run))}{letter}", "{letter}{len(list(run))}"), (text,), answer


def parsing(random: Random) -> Task:
    code = r"""import re
def solve(text):
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+)([hms])", text))
"""
    hours, minutes, seconds = (random.randint(1, 59) for _ in range(3))
    text = f"{hours}h {minutes}m {seconds}s"
    return code, ('"m": 60', '"m": 6'), (text,), hours * 3600 + minutes * 60 + seconds


def sorting(random: Random) -> Task:
    code = """def solve(numbers):
    if len(numbers) < 2:
        return numbers
    first, *rest = numbers
    less = solve([n for n in rest if n < first])
    return less + [first] + solve([n for n in rest if n >= first])
"""
    numbers = random.sample(range(10_000), random.randint(20, 300))
    return code, ("less + [first] +", "less +"), (numbers,), sorted(numbers)


def recursion(random: Random) -> Task:
    code = """def solve(of, chosen):
    if chosen in (0, of):
        return 1
    return solve(of - 1, chosen - 1) + solve(of - 1, chosen)
"""
    of, chosen = random.randint(6, 14), random.randint(1, 5)
    return code, ("return 1", "return 2"), (of, chosen), comb(of, chosen)


def dates(random: Random) -> Task:
    code = """from datetime import date
def solve(first, last):
    return (date.fromisoformat(last) - date.fromisoformat(first)).days
"""
    first = date(1970, 1, 1) + timedelta(days=random.randint(0, 20_000))
    last = first + timedelta(days=(days := random.randint(1, 5000)))
    return code, (").days", ").days + 1"), (first.isoformat(), last.isoformat()), days


def orders(random: Random) -> Task:
    code = """import json
def solve(text):
    return sum(item["price"] * item["count"] for item in json.loads(text)["items"])
"""
    items = [{"price": random.randint(3, 99), "count": random.randint(3, 9)} for _ in range(9)]
    answer = sum(item["price"] * item["count"] for item in items)
    return code, ("*", "+"), (json.dumps({"items": items}),), answer


class SmallProgram(NamedTuple):
    """A program, and the verdict on it that is right."""

    task: str
    code: str
    expected: Verdict
    timeout_s: float | None


def programs(count: int) -> Iterator[SmallProgram]:
    """Make the first `count` programs, which are the same each time."""
    for number in range(count):
        random = Random(number)
        kind = random.choice([arithmetic, strings, parsing, sorting, recursion, dates, orders])
        code, mistake, arguments, answer = kind(random)
        expected: Verdict = "pass"
        if number % FAILS == 1:
            code, expected = code.replace(*mistake), "fail"
        elif number % PRINTS == 2:
            code += MUCH
        elif number % ENDLESS == 3:
            code, expected = code + random.choice(ENDINGS), "timeout"
        code += f"answer = solve{arguments!r}\nassert answer == {answer!r}, answer\nprint('ok')\n"
        limit_s = LIMIT_S if expected == "timeout" else None
        yield SmallProgram(f"{kind.__name__}-{number}", code, expected, limit_s)


if __name__ == "__main__":
    for each in programs(int(sys.argv[1])):
        line = {"id": {"task": each.task, "expected": each.expected}, "code": each.code}
        print(json.dumps(line if each.timeout_s is None else {**line, "timeout_s": each.timeout_s}))
