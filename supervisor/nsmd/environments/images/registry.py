"""Images of registries, fetched by skopeo, which knows the user's registries and logins."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

import trio

from nsmd.environments.packages.failures import InstallError
from nsmd.environments.packages.store import read_left
from nsmd.host.package_manager import install_command
from nsmd.model.packages import ImageReference

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024

_FATAL = re.compile(r'level=fatal msg="(?P<text>(?:[^"\\]|\\.)*)"')


class Registry:
    """Registries that a user's skopeo reaches.

    Args:
        search_path: value of PATH to find it on.
        environ: variables of the user, some of which configure it.
        place: directory for its files.
        say: gets lines for people.

    Raises:
        InstallError: there is no skopeo.
    """

    def __init__(
        self,
        search_path: str,
        environ: Mapping[str, str],
        place: str,
        say: Callable[[str], None],
    ) -> None:
        program = shutil.which("skopeo", path=search_path)
        if program is None:
            raise InstallError(
                "There is no skopeo, which fetches images of registries",
                f"Install it: {install_command('skopeo')}",
            )
        self._program = program
        self._environ = environ
        self._place = place
        self._say = say

    async def digest(self, reference: ImageReference) -> str:
        """Ask a registry for the digest of what a reference means now.

        Raises:
            InstallError: there is no such image, or no answer.
        """
        if reference.digest:
            return reference.digest
        name = f"docker://{reference.place}" + (f":{reference.tag}" if reference.tag else "")
        self._say(f"asking for {name}")
        path = os.path.join(self._place, "manifest.json")
        await self._run(["inspect", "--raw", name], path)
        try:
            # The registry's own word is not needed: a digest is the hash of these bytes.
            data = read_left(path, MAX_MANIFEST_BYTES).encode()
        except ValueError as error:
            raise InstallError(f"The manifest of {name} cannot be read: {error}") from error
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    async def fetch(self, reference: ImageReference, digest: str) -> str:
        """Fetch an image; return the path of the layout with it.

        Raises:
            InstallError: it cannot be had.
        """
        layout = os.path.join(self._place, "fetched")
        name = reference.pinned(digest)
        self._say(f"fetching {name}")
        await self._run(["copy", "--quiet", name, f"oci:{layout}:image"], os.devnull)
        return layout

    async def _run(self, words: Sequence[str], output: str) -> None:
        errors = os.path.join(self._place, "skopeo.log")
        with open(output, "wb") as out, open(errors, "wb") as err:  # noqa: ASYNC230  # no one waits
            ran = await trio.run_process(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd="/",
                env=dict(self._environ),
                check=False,
            )
        if ran.returncode == 0:
            return
        with open(errors, "rb") as file:  # noqa: ASYNC230
            said = file.read(MAX_ERROR_BYTES).decode(errors="replace")
        for line in said.splitlines():
            self._say(line)
        raise InstallError(
            f"skopeo cannot fetch it: {_cause(said, ran.returncode)}",
            "Check the image's name, and `skopeo login` if it is private.",
        )


def _cause(said: str, status: int) -> str:
    found = _FATAL.search(said)
    if found is not None:
        return found["text"].replace('\\"', '"').rstrip(".")[:600]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:600].rstrip(".") if lines else f"it ended with {status}"
