"""Agreements of people to use environments of projects, in a file that outlives the supervisor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from nsm.dataclass import dataclass
from nsm.wire.decode import Constraint
from nsmd.environments import saved_records
from nsmd.environments.project.package_lists import ListCopies
from nsmd.environments.project.reading import Kind
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.packages import WantedPackages

MAX_AGREEMENTS = 256
"""Largest number of agreements to remember. Each has less than 10 KiB."""


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and os.path.normpath(path) == path


def _is_below(path: str) -> bool:
    return path != "" and not path.startswith("/") and ".." not in path.split("/")


def _is_name(name: str) -> bool:
    return ENVIRONMENT_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAgreement:
    """An environment of a project that somebody agreed to use.

    Attributes:
        project: real path of the project.
        path: of the environment's directory, relative to the project.
        name: name of the environment.
        home, version, interpreter_key, packages_key: as in `FoundEnvironment`, when it was agreed.
        files: of a list of packages: paths of all its files, relative to the project.
        packages: of a list of packages: those to install, named by nsm's copies of its files.
        agreed_s: Unix time.
    """

    project: Annotated[str, Constraint(_is_absolute, "a normalised absolute path")]
    path: Annotated[str, Constraint(_is_below, "a path below the project")]
    kind: Kind
    name: Annotated[str, Constraint(_is_name, "a name of an environment")]
    home: str = ""
    version: str = ""
    interpreter_key: str
    packages_key: str
    files: tuple[Annotated[str, Constraint(_is_below, "a path below the project")], ...] = ()
    packages: WantedPackages | None = None
    agreed_s: float = 0.0

    @property
    def source(self) -> str:
        """Absolute path of the environment's directory."""
        return os.path.join(self.project, self.path)


class AgreementFile:
    """The file of all agreements. The methods block.

    Args:
        path: of the file; its directory is made with the first agreement.

    Attributes:
        lists: copies of the lists of packages that somebody agreed to, beside the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.lists = ListCopies(f"{os.path.splitext(path)[0]}.lists")

    def load(self) -> list[UseAgreement]:
        """Load the agreements; none if the file is missing or broken."""
        rows = saved_records.load(
            self._path, UseAgreement, "agreements", cure="`nsm env use` agrees once more"
        )
        return rows[:MAX_AGREEMENTS]

    def save(self, agreements: Sequence[UseAgreement]) -> None:
        """Replace the file.

        Raises:
            OSError: it cannot be written; the old one is unchanged.
        """
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        saved_records.save(self._path, "agreements", agreements)
