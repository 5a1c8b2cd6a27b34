"""Contents of a sandbox's files, up and down (`/files` of E2B's)."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from nsm.integrations.e2b.access import USER
from nsm.integrations.e2b.errors import RefusalError
from nsm.integrations.e2b.multipart import files_of
from nsm.wire.files import PIECE_BYTES

if TYPE_CHECKING:
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox, Sandboxes


class FileContents:
    """Contents of files of the sandboxes of one key.

    Args:
        max_bytes: largest upload.
    """

    def __init__(self, sandboxes: Sandboxes, max_bytes: int) -> None:
        self._sandboxes = sandboxes
        self._max_bytes = max_bytes

    def __repr__(self) -> str:
        return f"<FileContents of {self._sandboxes}>"

    async def answer(self, sandbox: E2bSandbox, request: HttpRequest) -> None:
        """Answer a request.

        Raises:
            RefusalError, NsmError: it cannot be carried out, and nothing was sent.
        """
        if request.query.get("username", "") not in ("", USER):
            raise RefusalError("unauthenticated", "a sandbox of nsm has one user, named user")
        match request.method:
            case "GET":
                await self._download(sandbox, request)
            case "POST":
                await self._upload(sandbox, request)
            case _:
                raise RefusalError("not_found", f"there is no {request.method} /files")

    async def _download(self, sandbox: E2bSandbox, request: HttpRequest) -> None:
        path = self._path(request)
        files = self._sandboxes.client.files(sandbox.id)
        entry = await files.stat(path)
        if entry.kind == "directory":
            raise RefusalError("invalid_argument", f"{path} is a directory")
        piece = await files.read(path, length=PIECE_BYTES)
        kind = {"content-type": "application/octet-stream"}
        if len(piece) < PIECE_BYTES:
            await request.begin(200, {**kind, "content-length": str(len(piece))})
            await request.end(piece)
            return
        # Without a length: the file may grow or shrink while it is read.
        await request.begin(200, kind)
        offset = 0
        while piece:
            await request.write(piece)
            offset += len(piece)
            piece = await files.read(path, offset=offset, length=PIECE_BYTES)
        await request.end()

    async def _upload(self, sandbox: E2bSandbox, request: HttpRequest) -> None:
        kind = request.headers.get("content-type", "")
        if any(name.startswith("x-metadata-") for name in request.headers):
            raise RefusalError("unimplemented", "nsm keeps no metadata of files")
        if kind.startswith("multipart/form-data"):
            found = files_of(kind, self._body(request))
            if "path" in request.query:
                if len(found) != 1:
                    raise RefusalError("invalid_argument", "one file was expected")
                found = [(self._path(request), found[0][1])]
        else:
            found = [(self._path(request), self._body(request))]
        written: list[dict[str, str]] = []
        for name, data in found:
            if not name:
                raise RefusalError("invalid_argument", "a file has no path")
            path = self._sandboxes.path(name)
            info = await self._sandboxes.client.files(sandbox.id).write(path, data, parents=True)
            shown = info.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            written.append({"name": os.path.basename(shown), "type": "file", "path": shown})
        await request.answer(200, written)

    def _path(self, request: HttpRequest) -> str:
        path = request.query.get("path", "")
        if not path or "\0" in path:
            raise RefusalError("invalid_argument", "path is missing")
        return self._sandboxes.path(path)

    def _body(self, request: HttpRequest) -> bytes:
        """The body, unpacked if it is compressed."""
        match request.headers.get("content-encoding", "").lower():
            case "" | "identity":
                return request.body
            case "gzip":
                unpack = zlib.decompressobj(wbits=31)
                try:
                    data = unpack.decompress(request.body, self._max_bytes)
                except zlib.error:
                    raise RefusalError("invalid_argument", "the body is not gzip") from None
                if not unpack.eof:
                    raise RefusalError(
                        "invalid_argument",
                        f"the body ends too early, or has more than {self._max_bytes} bytes",
                    )
                return data
            case other:
                raise RefusalError("invalid_argument", f"the body is compressed by {other!r:.40}")
