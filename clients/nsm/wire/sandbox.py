"""Sessions that a program makes with settings of its own."""

from typing import NamedTuple


class OpenedSession(NamedTuple):
    """A session that was made."""

    id: str
    name: str
    env: str
    labels: dict[str, str] = {}  # noqa: RUF012  # nobody changes it
