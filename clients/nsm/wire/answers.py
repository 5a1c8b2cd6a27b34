"""Reads what a supervisor sent: an answer, the data of an event, or a field of one."""

from typing import Any, TypeVar

from nsm.wire.decode import MISSING, DecodeError, decode
from nsm.wire.frames import RemoteProtocolError

T = TypeVar("T")


def read(kind: type[T], wire: Any, key: str = "") -> T:
    """The value of that type that a supervisor sent.

    Args:
        key: key of its field; without one, it is the whole of `wire`.

    Raises:
        RemoteProtocolError: a field is missing or of another type; the message names it.
    """
    try:
        return decode(kind, wire.get(key, MISSING) if key else wire)
    except DecodeError as error:
        path = error.within(key).path
        found = "nothing" if error.missing else type(error.found).__name__
        raise RemoteProtocolError(
            f"the supervisor sent {found} for `{path}` ({kind.__name__}); expected "
            f"{error.expected}",
            hint="Is an older or newer supervisor running? `nsm shutdown` ends it.",
        ) from None
