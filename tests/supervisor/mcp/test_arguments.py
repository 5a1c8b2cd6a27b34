"""Arguments of a call: what is taken, and what a model is told about the rest."""

from __future__ import annotations

import pytest

from nsm.wire.errors import BadRequestError, CodeTooLargeError, NsmError
from nsmd.mcp.run_tool import JobId, RunArguments, parse_arguments
from nsmd.model.values import MAX_CODE_BYTES


def test_the_least_and_the_most() -> None:
    assert parse_arguments({"code": "1", "env": "python"}) == RunArguments(
        code="1", env="python", session=None, timeout_s=None
    )
    assert parse_arguments(
        {"code": "", "env": "bash", "session": "a-1_.B", "timeout_seconds": 3}
    ) == RunArguments(code="", env="bash", session="a-1_.B", timeout_s=3.0)


def test_null_counts_as_left_out() -> None:
    given = {"code": "1", "env": "python", "session": None, "timeout_seconds": None}
    assert parse_arguments(given) == parse_arguments({"code": "1", "env": "python"})


@pytest.mark.parametrize("session", ["", " ", "null", "None", "undefined"])
@pytest.mark.parametrize("timeout", [0, 0.0, "0", "", "null"])
def test_what_clients_write_that_must_send_every_argument(session: str, timeout: object) -> None:
    given = {"code": "1", "env": "python", "session": session, "timeout_seconds": timeout}
    assert parse_arguments(given) == parse_arguments({"code": "1", "env": "python"})


def test_language_is_another_word_for_env() -> None:
    expected = parse_arguments({"code": "1", "env": "js"})
    assert parse_arguments({"code": "1", "language": "js"}) == expected
    assert parse_arguments({"code": "1", "env": "js", "language": "js"}) == expected
    assert parse_arguments({"code": "1", "env": "js", "language": None, "cwd": None}) == expected


def test_a_number_may_come_as_text() -> None:
    given = {"code": "1", "env": "python", "timeout_seconds": " 2.5 "}
    assert parse_arguments(given).timeout_s == 2.5


def test_a_job_needs_no_code() -> None:
    assert parse_arguments({"job": "work/3"}) == RunArguments(job=JobId("work", "3"))
    nothing = {"code": "", "env": "", "background": False, "reset": None, "timeout_seconds": 5}
    expected = RunArguments(job=JobId("work", "3"), stop=True, timeout_s=5.0)
    for job, session in (("work/3", ""), ("3", "work"), (3, "work"), (" work/3", "other")):
        given = {**nothing, "job": job, "session": session, "stop": "true"}
        assert parse_arguments(given) == expected


def test_a_reset_needs_no_code() -> None:
    expected = RunArguments(session="work", reset=True)
    assert parse_arguments({"session": "work", "reset": True}) == expected
    assert parse_arguments({"session": "work", "reset": True, "code": "", "env": ""}) == expected


def test_a_job_may_be_started() -> None:
    given = {"code": "1", "env": "python", "session": "work", "background": True}
    expected = RunArguments(code="1", env="python", session="work", background=True)
    assert parse_arguments(given) == expected


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


def test_a_fork_needs_no_environment() -> None:
    parsed = parse_arguments({"code": "1", "fork_of": "analysis", "session": "tried"})
    assert (parsed.fork_of, parsed.session, parsed.env) == ("analysis", "tried", "")
    assert parse_arguments({"code": "1", "env": "python", "fork_of": "null"}).fork_of is None


@pytest.mark.parametrize(
    "more", [{"reset": True}, {"background": True}, {"undo": True}, {"job": "work/1"}]
)
def test_a_fork_is_made_for_code_only(more: dict[str, object]) -> None:
    with pytest.raises(BadRequestError, match="`fork_of` runs"):
        parse_arguments({"code": "1", "session": "tried", "fork_of": "analysis", **more})


@pytest.mark.parametrize("given", [1, ["a"], "a/b"])
def test_what_is_forked_is_a_name(given: object) -> None:
    with pytest.raises(BadRequestError):
        parse_arguments({"code": "1", "fork_of": given})
