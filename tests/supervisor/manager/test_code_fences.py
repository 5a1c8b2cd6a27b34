"""Markdown fences around code."""

from __future__ import annotations

import pytest

from nsmd.manager.code_fences import take_off

PLAIN = "the Markdown fence around the code was removed"


@pytest.mark.parametrize(
    ("code", "inner", "note"),
    [
        ("```python\nprint(1)\n```", "print(1)\n", PLAIN),
        ("```\nprint(1)\n```\n", "print(1)\n", PLAIN),
        ("\n  ```py title=x\r\nprint(1)\r\n```  \n\n", "print(1)\r\n", PLAIN),
        ("````\nx = '```'\n````", "x = '```'\n", PLAIN),
        ("```python\n```", "", PLAIN),
        ("```js\n1\n```", "1\n", f"{PLAIN}; it says js, and python ran the code"),
        ("```sql\n1\n```", "1\n", f"{PLAIN}; it says sql, and python ran the code"),
    ],
)
def test_one_around_all_of_it_is_taken_off(code: str, inner: str, note: str) -> None:
    assert take_off(code, "python") == (inner, note)


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "",
        "```",
        "``````",
        "```python\nprint(1)",
        "Text\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\ntext",
        "```python\nprint(1)\n```\ntext\n```python\nprint(2)\n```",
        'x = """\n```\n"""',
        "```print(1)```",
    ],
)
def test_other_code_is_left_as_it_is(code: str) -> None:
    assert take_off(code, "python") == (code, "")


@pytest.mark.parametrize(
    ("code", "inner"),
    [
        ("\ufeffcd /tmp\r\npwd\r\n", "cd /tmp\npwd\n"),
        ("cd /tmp\r\npwd", "cd /tmp\npwd"),
        ("cd /tmp\r\npwd\r", "cd /tmp\npwd"),
        ("\ufeff```bash\r\npwd\r\n```\r\n", "pwd\n"),
        ("printf 'a\r\n'\npwd\n", "printf 'a\r\n'\npwd\n"),  # not all of them
    ],
)
def test_byte_order_marks_and_carriage_returns(code: str, inner: str) -> None:
    assert take_off(code, "bash")[0] == inner
    assert take_off(code, "python")[0] in (code.removeprefix("\ufeff"), "pwd\r\n")


def test_it_takes_no_time() -> None:
    code = "```\n" + "` \n" * 300_000
    assert take_off(code, "bash") == (code, "")
