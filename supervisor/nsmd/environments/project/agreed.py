"""One environment that somebody agreed to use: its files, and whether they have changed."""

from __future__ import annotations

import logging
import os
from functools import partial

from nsm.dataclass import dataclass, field
from nsmd.environments.project import package_lists, reading
from nsmd.environments.project.agreements import UseAgreement
from nsmd.environments.project.description import shown_path
from nsmd.environments.project.reading import FoundEnvironment, NoEnvironmentError
from nsmd.host.paths import is_within, printable
from nsmd.host.threads import BoundedReads
from nsmd.model.values import ProjectMount

log = logging.getLogger(__name__)

MAX_TOLD = 256
"""Largest number of scopes that are remembered as notified of a change."""


@dataclass(slots=True, kw_only=True)
class AgreedEnvironment:
    """An environment that somebody agreed to use.

    Attributes:
        signature: value for its files at the last look; it changes when they do.
        found: the environment at the last look; None if there was none.
        problem: why it cannot be used; else empty.
        told: scopes whose clients were notified that it has changed.
    """

    agreement: UseAgreement
    signature: tuple[object, ...] | None = None
    found: FoundEnvironment | None = None
    problem: str = ""
    told: set[str] = field(default_factory=set[str])

    @property
    def is_list(self) -> bool:
        """True if it is made from a list of packages; False if it lies in the project."""
        return self.agreement.kind == "packages"

    @property
    def changed(self) -> bool:
        """True if its packages are not those of the agreement."""
        if self.found is None:
            return self.is_list and self.signature is not None
        return self.found.packages_key != self.agreement.packages_key

    def look(self, project: ProjectMount, reads: BoundedReads) -> bool:
        """Read the files again if they may have changed.

        Returns:
            True if it has become usable or unusable.
        """
        first, before, changed = self.signature is None, self.problem, self.changed
        try:
            read = reads.read(project.path, partial(_read, self, project, self.signature))
        except TimeoutError as error:
            if first and not self.is_list:  # else nsm has a copy
                self.problem = f"{shown_path(self.agreement.path)}: {error.strerror}"
            return False
        if read is None:
            return False
        self.signature, self.found, self.problem = read
        if self.changed and not changed:
            self.told.clear()
            log.info("the packages in %s have changed", printable(self.agreement.source))
        return not first and self.problem != before

    def note(self, scope: str) -> str:
        """Note for a result that it has changed, once for each scope; else empty."""
        if not self.changed or scope in self.told:
            return ""
        if len(self.told) >= MAX_TOLD:
            self.told.clear()
        self.told.add(scope)
        path = printable(self.agreement.path)
        agrees = f"`nsm env use {path}` agrees to what is there now"
        if self.is_list:
            return (
                f"the project's {path} has changed since somebody agreed to it, and this "
                f"environment still has the packages from then; {agrees}"
            )
        return (
            f"the packages in the project's {path} have changed since somebody agreed to them; "
            f"{agrees}"
        )


def _read(
    agreed: AgreedEnvironment, project: ProjectMount, known: tuple[object, ...] | None
) -> tuple[tuple[object, ...], FoundEnvironment | None, str] | None:
    """Read the files unless they are as known. Blocks.

    Returns:
        What `AgreedEnvironment` has as `signature`, `found` and `problem`; None if nothing changed.
    """
    agreement = agreed.agreement
    files = (
        package_lists.signature(project, agreement.files)
        if agreed.is_list
        else reading.signature(project, agreement.path, agreement.kind, agreement.version)
    )
    sign = (project.device, project.inode, *files)
    if sign == known:
        return None
    try:
        if agreed.is_list:
            found = package_lists.read(project, agreement.path).found
        else:
            found = reading.read(project, agreement.path, details=False)
    except NoEnvironmentError as error:
        # Of a list nsm has a copy.
        return sign, None, "" if agreed.is_list else f"{shown_path(agreement.path)}: {error}"
    return sign, found, _why_not(found, agreement, project)


def why_python_refused(home: str, project: ProjectMount) -> str:
    """Why the Python in a directory is not used for a project; else empty."""
    if any(is_within(path, project.path) for path in (home, os.path.realpath(home)) if home):
        return "its pyvenv.cfg names a Python in the project, and nsm runs no programs of projects"
    return ""


def _why_not(found: FoundEnvironment, agreement: UseAgreement, project: ProjectMount) -> str:
    """Why an environment cannot be used although somebody agreed; else empty."""
    if found.interpreter_key != agreement.interpreter_key or found.kind != agreement.kind:
        path = shown_path(agreement.path)
        return (
            f"the interpreter of the project's {path} has changed since somebody agreed to use it; "
            f"`nsm env use {path}` agrees to what is there now"
        )
    return why_python_refused(found.home, project)
