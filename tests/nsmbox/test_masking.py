"""Variables whose values are shown, and those that are masked."""

from __future__ import annotations

import pytest

from nsmbox.consent.masking import MASKED, masked, names_secret

SECRET = (
    "ANTHROPIC_API_KEY GITHUB_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD GOOGLE_CREDENTIALS "
    "npm_config__auth SESSION_COOKIE GH_PAT DB_PASS PGPASSWORD DB_PWD aws_secret my_key "
    "BORG_PASSPHRASE KeY"
).split()
OPEN = (
    "HOME TERM PATH LANG PWD OLD_PWD_DIR GIT_AUTHOR_NAME EDITOR PATH_INFO COMPASS PATTERN".split()
)


@pytest.mark.parametrize("name", SECRET)
def test_secrets_by_name(name: str) -> None:
    assert names_secret(name)
    assert masked(name, "s3cret") == MASKED
    assert masked(name, "") == ""


@pytest.mark.parametrize("name", OPEN)
def test_names_of_what_may_be_seen(name: str) -> None:
    assert not names_secret(name)
    assert masked(name, "seen") == "seen"


def test_what_is_marked_as_secret_is_one() -> None:
    assert masked("HARMLESS", "s3cret", secret=True) == MASKED


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://me:pw@proxy:3128", f"http://{MASKED}@proxy:3128"),
        ("http://me:p@w@proxy/x@y", f"http://{MASKED}@proxy/x@y"),
        ("postgres://u:p@h/d,redis://:q@r", f"postgres://{MASKED}@h/d,redis://{MASKED}@r"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_who_one_is_in_a_url_is_hidden(value: str, shown: str) -> None:
    assert masked("http_proxy", value) == shown
