"""Arguments of a call: what is taken, and what a model is told about the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsm.wire.errors import BadRequestError, CodeTooLargeError, NsmError
from nsmd.mcp.run_tool import JobId, RunArguments, parse_arguments
from nsmd.model.values import MAX_CODE_BYTES

PLAIN = RunArguments(code="1", env="python")
JOB = RunArguments(job=JobId("work", "3"), stop=True, timeout_s=5.0)
EMPTY = {"code": "", "env": "", "background": False, "reset": None}
STOPPED = {**EMPTY, "stop": "true", "timeout_seconds": 5}

TAKEN: dict[str, tuple[dict[str, object], RunArguments]] = {
    "null as left out": ({"code": "1", "env": "python", "session": None, "stop": None}, PLAIN),
    "everything": (
        {"code": "", "env": "bash", "session": "a-1_.B", "timeout_seconds": 3},
        RunArguments(code="", env="bash", session="a-1_.B", timeout_s=3.0),
    ),
    "a number as text": (
        {"code": "1", "env": "python", "timeout_seconds": " 2.5 "},
        replace(PLAIN, timeout_s=2.5),
    ),
    "language for env": ({"code": "1", "language": "python"}, PLAIN),
    "both of them": ({"code": "1", "env": "python", "language": "python", "cwd": None}, PLAIN),
    "a job without code": ({"job": "work/3"}, RunArguments(job=JobId("work", "3"))),
    "a job": ({**STOPPED, "job": "work/3", "session": ""}, JOB),
    "a job of a session": ({**STOPPED, "job": "3", "session": "work"}, JOB),
    "a job as a number": ({**STOPPED, "job": 3, "session": "work"}, JOB),
    "a job of another session": ({**STOPPED, "job": " work/3", "session": "other"}, JOB),
    "a reset": (
        {**EMPTY, "session": "work", "reset": True},
        RunArguments(session="work", reset=True),
    ),
    "a job to start": (
        {"code": "1", "env": "python", "session": "work", "background": True},
        replace(PLAIN, session="work", background=True),
    ),
    "a fork without env": (
        {"code": "1", "fork_of": "analysis", "session": "tried"},
        RunArguments(code="1", fork_of="analysis", session="tried"),
    ),
    "no fork": ({"code": "1", "env": "python", "fork_of": "null"}, PLAIN),
}


@pytest.mark.parametrize(("given", "read"), TAKEN.values(), ids=TAKEN)
def test_arguments_are_read(given: dict[str, object], read: RunArguments) -> None:
    assert parse_arguments(given) == read


@pytest.mark.parametrize("session", ["", " ", "null", "None", "undefined"])
@pytest.mark.parametrize("timeout", [0, 0.0, "0", "", "null"])
def test_clients_that_must_send_every_argument_send_nothing(session: str, timeout: object) -> None:
    given = {"code": "1", "env": "python", "session": session, "timeout_seconds": timeout}
    assert parse_arguments(given) == PLAIN


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"job": "work/3", "code": "1"}, "can run no code"),
        ({"job": "work/3", "reset": True}, "can run no code"),
        ({"job": "3"}, "must be an id like work/1, not '3'"),
        ({"job": "work/x"}, "must be an id like work/1"),
        ({"job": "work/" + "1" * 10}, "must be an id like work/1"),
        ({"job": "../../3"}, "'../..' is not allowed"),
        ({"job": ["work/3"]}, "must be a string, not an array"),
        ({"job": True}, r"must be a string, not a boolean"),
        ({"stop": True}, "`stop` needs `job`"),
        ({"stop": True, "code": "1", "env": "python"}, "`stop` needs `job`"),
        ({"reset": True, "code": "1", "env": "python"}, "`reset` needs `session`"),
        ({"background": True, "code": "1", "env": "python"}, "`background` needs `session`"),
        (
            {"background": True, "code": "1", "env": "python", "session": "new"},
            "a name that you choose",
        ),
        ({"background": True, "session": "work"}, "`code` is missing"),
        (
            {"background": True, "reset": True, "session": "a", "code": "1", "env": "bash"},
            "which `background` does not use",
        ),
        ({"background": "perhaps", "code": "1", "env": "python"}, "must be true or false"),
        ({"background": 1, "code": "1", "env": "python"}, "must be true or false"),
        (None, "`code` is missing"),
        ({}, "`code` is missing"),
        ([], "must be an object, not an array"),
        ("code", "must be an object, not the string 'code'"),
        (7, "must be an object, not a number"),
        (True, r"not a boolean \(true\)"),
        ({"code": None, "env": "python"}, "`code` is missing"),
        ({"code": 7, "env": "python"}, "`code` must be a string, not a number"),
        ({"code": ["a"], "env": "python"}, "`code` must be a string, not an array"),
        ({"code": {"a": 1}, "env": "python"}, "`code` must be a string, not an object"),
        ({"code": "a\ud800b", "env": "python"}, "surrogate pair at character 1"),
        ({"code": "1"}, "`env` is missing"),
        ({"code": "1", "env": 3}, "`env` must be a string, not a number"),
        ({"code": "1", "env": "python", "session": 3}, "`session` must be a string"),
        ({"code": "1", "env": "python", "session": "../x"}, "'../x' is not allowed"),
        ({"code": "1", "env": "python", "session": "a\n"}, "not allowed"),
        ({"code": "1", "env": "python", "session": "x" * 65}, "1 to 64"),
        ({"code": "1", "env": "python", "session": "\u0430"}, "not allowed"),  # looks like a
        ({"code": "1", "env": "python", "timeout_seconds": "30 s"}, "not the string '30 s'"),
        ({"code": "1", "env": "python", "timeout_seconds": "inf"}, "finite"),
        ({"code": "1", "env": "python", "timeout_seconds": True}, "not a boolean"),
        ({"code": "1", "env": "python", "timeout_seconds": -1.5}, "above 0, not -1.5"),
        ({"code": "1", "env": "python", "timeout_seconds": float("nan")}, "finite"),
        ({"code": "1", "env": "python", "timeout_seconds": float("inf")}, "finite"),
        ({"code": "1", "env": "python", "timeout_seconds": 10**4000}, "finite"),
        ({"code": "1", "env": "python", "timeout": 3}, "Did you mean 'timeout_seconds'"),
        ({"code": "1", "env": "python", "language": "x"}, "name two environments"),
        (
            {"code": "1", "env": "bash", "cwd": "/project"},
            "'cwd': put `cd DIRECTORY` into the code",
        ),
        ({"script": "1", "env": "python"}, "no argument 'script'"),
        ({"fork_of": "a", "session": "b", "code": "1", "reset": True}, "`fork_of` runs"),
        ({"fork_of": "a", "session": "b", "code": "1", "background": True}, "`fork_of` runs"),
        ({"fork_of": "a", "session": "b", "code": "1", "undo": True}, "`fork_of` runs"),
        ({"fork_of": "a", "session": "b", "code": "1", "job": "a/1"}, "`fork_of` runs"),
        ({"fork_of": 1, "code": "1"}, "fork_of"),
        ({"fork_of": "a/b", "code": "1"}, "not allowed"),
    ],
)
def test_mistakes_say_what_to_write_instead(arguments: object, says: str) -> None:
    with pytest.raises(BadRequestError, match=f"(?s){says}"):
        parse_arguments(arguments)


def test_long_mistakes_are_quoted_in_part() -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_arguments({"code": "1", "env": "python", "x" * 100_000: 1})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("code", "fits"),
    [
        ("a" * MAX_CODE_BYTES, True),
        ("a" * (MAX_CODE_BYTES + 1), False),
        ("ä" * (MAX_CODE_BYTES // 2), True),
        ("ä" * (MAX_CODE_BYTES // 2 + 1), False),
    ],
    ids=["ascii", "ascii-over", "wide", "wide-over"],
)
def test_code_is_measured_in_bytes(code: str, fits: bool) -> None:
    if fits:
        assert parse_arguments({"code": code, "env": "python"}).code == code
        return
    with pytest.raises(CodeTooLargeError, match=r"8,388,6\d\d bytes; the limit is 8,388,608"):
        parse_arguments({"code": code, "env": "python"})


def test_every_refusal_is_of_our_own_kind() -> None:
    """The endpoint turns `NsmError` into a result; anything else would be a fault of ours."""
    odd: list[object] = [[[]], {"code": object(), "env": "x"}, {"code": "1", "env": "x", "": 1}]
    for arguments in odd:
        with pytest.raises(NsmError):
            parse_arguments(arguments)
