"""Rows for people: what lies in a project."""

from __future__ import annotations

from nsm.dataclass import dataclass
from nsmd.environments.project import package_lists, reading
from nsmd.environments.project.reading import FoundEnvironment, NoEnvironmentError
from nsmd.model.values import ProjectMount


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """An environment of a project, or a list of packages, for people.

    Attributes:
        found: None if it is not there any more, or was not read.
        package_count: number of packages of a lock; 0 if nobody has counted.
        name: name in use; None if nobody has agreed to use it.
        changed: its packages have changed since.
        problem: why it cannot be used; else empty.
    """

    path: str
    kind: str
    found: FoundEnvironment | None
    package_count: int = 0
    name: str | None = None
    changed: bool = False
    problem: str = ""


def find_rows(project: ProjectMount) -> list[ProjectRow]:
    """Read what lies in a project. Blocks.

    Raises:
        OSError: the project cannot be read.
    """
    rows = [
        ProjectRow(path=found.path, kind=found.kind, found=found)
        for found in reading.find_all(project)
    ]
    for path in package_lists.find_all(project):
        count, problem = 0, package_lists.why_not(path)
        if not problem:
            try:
                count = package_lists.read(project, path).count
            except NoEnvironmentError as error:
                problem = str(error)
        rows.append(
            ProjectRow(path=path, kind="packages", found=None, package_count=count, problem=problem)
        )
    return rows
