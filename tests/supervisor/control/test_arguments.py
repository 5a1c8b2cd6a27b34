"""Arguments of operations, read as their descriptions say."""

from __future__ import annotations

from typing import Any

import pytest

from nsm.wire.errors import BadRequestError
from nsmd.control.operations import OPERATIONS
from nsmd.control.ops.jobs import MAX_VARIABLE_CHARS, MAX_VARIABLES, check_variables


def test_absent_and_null_have_the_defaults() -> None:
    for told in ({}, {"wait_s": None, "hold": None, "offset": None}):
        args = OPERATIONS["job_read"].read({"target": "a", "job": "1", **told})
        assert (args["wait_s"], args["hold"], args["offset"]) == (0.0, False, 0)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1", True])
def test_a_time_to_wait_is_a_number_of_seconds(wrong: object) -> None:
    with pytest.raises(BadRequestError, match=r"'wait_s' is .*, not a number of seconds"):
        OPERATIONS["job_read"].read({"target": "a", "job": "1", "wait_s": wrong})


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("kill", {"targets": "work"}, "'targets' is 'work', not a list"),
        ("run", {"code": "1", "project": {}}, "'project.path' is required"),
        ("run", {"code": "1", "timeout_s": 10**400}, "'timeout_s' is .*of ordinary size"),
        ("job_start", {"argv": []}, r"'argv' is \[\], not a program"),
        ("file_put", {"target": "a", "path": "/a\0", "data": b""}, "'path' .* without NUL"),
        ("change", {"target": "a", "path": b"../a"}, "'path' .* below the project"),
    ],
)
def test_an_error_names_the_argument(op: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=f"Argument {message}"):
        OPERATIONS[op].read(args)


def test_functions_take_what_descriptions_say() -> None:
    for op, row in OPERATIONS.items():
        names = list(row.description.function.__annotations__)[:-1]
        code = getattr(row.function, "__code__")  # noqa: B009
        taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        assert list(taken) == names or op in ("run", "run_in", "undo"), op


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("run", {}),
        ("run", {"env": 1, "code": "x"}),
        ("run", {"code": "x", "timeout_s": "1"}),
        ("run", {"code": "x", "stream": 1}),
        ("run", {"code": "x", "project": "/"}),
        ("logs", {"target": "a", "executions": -1}),
        ("complete", {"target": "a", "code": "x"}),
        ("drain", {"timeout_s": -1}),
        ("file_open", {"target": "a", "path": "", "mode": "read"}),
        ("file_open", {"target": "a", "path": "x" * 5000, "mode": "read"}),
        ("file_open", {"target": "a", "path": "x", "mode": "append"}),
        ("file_open", {"target": "a", "path": "x", "mode": "write", "permissions": 0o7777}),
        ("file_read", {"file": "1"}),
        ("file_read", {"file": 1, "bytes": 0}),
        ("file_write", {"file": 1, "data": "text"}),
    ],
)
def test_wrong_arguments_are_refused(op: str, args: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        OPERATIONS[op].read(args)


def test_variables_of_a_job_are_names_and_texts() -> None:
    check_variables({})
    check_variables({"A_1": "\n"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"A=": ""},
        {"": ""},
        {"1": ""},
        {"A": "a\0"},
        {"A": "x" * MAX_VARIABLE_CHARS},
        {f"A{number}": "" for number in range(MAX_VARIABLES + 1)},
    ],
)
def test_wrong_variables_of_a_job_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(BadRequestError, match="environ"):
        check_variables(wrong)
