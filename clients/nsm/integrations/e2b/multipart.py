"""Files in a form (multipart/form-data, RFC 7578), as clients upload them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from nsm.integrations.e2b.errors import RefusalError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FILES = 1000
"""Files of one form."""


def files_of(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Read the names and contents of the files in a form.

    Raises:
        RefusalError: it is no form, ends too early, or has too many parts.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise RefusalError("invalid_argument", "the body is no form with files")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
    except (MultipartParseError, ValueError):
        raise RefusalError("invalid_argument", "the form is damaged") from None
    if not form.ended:
        raise RefusalError("invalid_argument", "the form is not whole")
    return form.files


class _Form:
    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.ended = False
        self._field, self._value, self._name = b"", b"", ""
        self._data = bytearray()
        self._is_file = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._name, self._data, self._is_file = "", bytearray(), False
        if len(self.files) >= MAX_FILES:
            raise RefusalError("resource_exhausted", f"a form has at most {MAX_FILES} files")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._is_file = options.get(b"name") == b"file"
            self._name = options.get(b"filename", b"").decode("utf-8", "surrogateescape")
        self._field, self._value = b"", b""

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._data += data[start:end]

    def _part_end(self) -> None:
        if self._is_file:
            self.files.append((self._name, bytes(self._data)))

    def _end(self) -> None:
        self.ended = True
