"""Sandbox of a container image, as adapters use it."""

from __future__ import annotations

import hashlib
import os
import posixpath
from typing import TYPE_CHECKING, Any

from nsm import AsyncClient
from nsm.integrations.sandboxes import IMAGE_SHELL, AdapterSandbox, shell_words
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from nsm import AsyncSandbox

TRANSPORTS = ("docker://", "oci:", "oci-archive:", "docker-archive:")

USERS = (None, "", "root", 0, "0")
"""Users that frameworks ask for when they mean an administrator. A session has one user only, which
takes the place of all of these."""


class ImageSandbox(AdapterSandbox):
    """A sandbox of a container image, whose files it may change.

    The environment of the image is made before the first use, if there is none; others with the
    same image use it, too, and it stays for the next program.

    Args:
        framework: as of `AdapterSandbox`.
        image: as `nsm env add --image` takes it, or the name of an image in a registry; None for
            the environment in the settings.
        root: ``overlay``, or ``readonly``.
        given: other arguments of `AdapterSandbox`.
    """

    def __init__(
        self,
        framework: str,
        image: str | None,
        *,
        root: str = "overlay",
        socket_path: str | None = None,
        **given: Any,
    ) -> None:
        super().__init__(framework, socket_path=socket_path, **given)
        self._image = image
        self._root = root
        self._builder = AsyncClient(name=framework, socket_path=socket_path, project=None)

    async def find_env(self) -> None:
        """Find the environment of the image, or make it.

        Raises:
            BadRequestError: the image cannot be used.
        """
        if self._image is not None and self.session is None:
            async with self._builder as client:
                self._settings["env"] = await environment_of(client, self._image, self._root)
            self._image = None

    async def opened(self) -> AsyncSandbox:
        """The sandbox.

        Raises:
            BadRequestError: its image cannot be used.
            UnknownSessionError, NsmError: as in `AdapterSandbox`.
        """
        await self.find_env()
        return await super().opened()

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


def image_shell(command: str) -> list[str]:
    """A program that runs a command of Bash, or of sh if the image has no Bash."""
    return ["sh", "-c", IMAGE_SHELL, "sh", *shell_words(command)]


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
