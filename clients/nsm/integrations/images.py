"""Sandbox of a container image, as adapters use it."""

from __future__ import annotations

import hashlib
import os
import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from nsm import AsyncClient, NsmError
from nsm.integrations.sandboxes import MAX_ARGUMENT_BYTES, STOP_S, LazySandbox, left_out
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Unpack

    from nsm.client.sandbox import AsyncSandbox, SandboxSettings
    from nsm.client.shared_sandbox import CommandResult

TRANSPORTS = ("docker://", "oci:", "oci-archive:", "docker-archive:")

USERS = (None, "", "root", 0, "0")
"""Users that frameworks ask for when they mean an administrator. A session has one user only, which
takes the place of all of these."""

_SHELL = 'command -v bash >/dev/null 2>&1 && exec bash "$@"; exec sh "$@"'


class ImageSandbox(LazySandbox):
    """A sandbox of a container image, whose files it may change.

    The environment of the image is made before the first use, if there is none; others with the
    same image use it, too, and it stays for the next program.

    Args:
        framework: as of `LazySandbox`.
        image: as `nsm env add --image` takes it, or the name of an image in a registry; None for
            the environment in the settings.
        root: ``overlay``, or ``readonly``.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self,
        framework: str,
        image: str | None,
        *,
        root: str = "overlay",
        socket_path: str | None = None,
        autostart: bool = True,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        super().__init__(framework, socket_path=socket_path, autostart=autostart, **settings)
        self._image = image
        self._root = root
        self._builder = AsyncClient(
            name=framework, socket_path=socket_path, autostart=autostart, project=None
        )

    async def opened(self) -> AsyncSandbox:
        """The sandbox.

        Raises:
            BadRequestError: its image cannot be used.
            UnknownSessionError, NsmError: as in `LazySandbox`.
        """
        if self._image is not None and self.session is None:
            async with self._builder as client:
                self._settings["env"] = await environment_of(client, self._image, self._root)
            self._image = None
        return await super().opened()

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command of Bash, or of sh if the image has no Bash, to its end."""
        words, script = ["-c", command], None
        if len(command.encode("utf-8", "surrogateescape")) > MAX_ARGUMENT_BYTES:
            script = f"/tmp/nsm-{os.urandom(8).hex()}.sh"  # noqa: S108  # of the session
            await self.write(script, command.encode("utf-8", "surrogateescape"))
            words = [script]
        argv = ["sh", "-c", _SHELL, "sh", *words]
        try:
            return await self.execute(argv, cwd=cwd, environ=environ, timeout_s=timeout_s)
        finally:
            if script is not None:  # not by the script, since an image may have no rm
                with trio.move_on_after(STOP_S, shield=True), suppress(NsmError):
                    await (await self.opened()).files.remove(script)

    async def upload(self, local: str | Path, path: str) -> None:
        """Copy a file or what is in a directory from the host, making missing directories.

        Raises:
            OSError: it can't be done.
        """
        folder = posixpath.dirname(path.rstrip("/"))
        await self.files(lambda files: files.mkdir(folder or ".", parents=True))
        await self.files(lambda files: files.upload(local, path))

    async def download(self, path: str, local: str | Path) -> None:
        """Copy a file or what is in a directory to the host, with the directories that are missing.

        Raises:
            OSError: it can't be done.
        """
        os.makedirs(os.path.dirname(local) or ".", exist_ok=True)
        await self.files(lambda files: files.download(path, local))


def reference_of(image: str) -> str:
    """Reference to an image as nsm takes it; a plain name is of a registry."""
    return image if image.startswith(TRANSPORTS) else f"docker://{image}"


def check_user(user: str | int | None) -> None:
    """Check a user that a command is to run as.

    Raises:
        BadRequestError: a session has no such user.
    """
    if user not in USERS:
        raise BadRequestError(
            f"A session has one user, so nothing can run as {user!r}.",
            hint="Leave the user out, or name root.",
        )


def texts_of(result: CommandResult) -> tuple[str, str]:
    """Standard output and standard error of a command, with a note if some of it is left out."""
    stdout, stderr = (each.decode(errors="replace") for each in (result.stdout, result.stderr))
    return stdout, stderr + left_out(result.missing)


async def environment_of(client: AsyncClient, image: str, root: str = "overlay") -> str:
    """Name of the environment of an image, which is made if there is none.

    Raises:
        BadRequestError: it cannot be made.
    """
    reference = reference_of(image)
    name = f"image-{hashlib.sha256(f'{root} {reference}'.encode()).hexdigest()[:16]}"
    rows = {row.name: row for row in await client.builds.list_all()}
    row = rows.get(name)
    if row is None or row.path is None:
        row = await client.builds.add_packages(
            name, image=reference, root=root if root == "overlay" else None
        )
    if row.path is None:
        raise BadRequestError(
            f"The image {reference} cannot be used: {row.error or row.state}", hint=row.hint or ""
        )
    return row.name
