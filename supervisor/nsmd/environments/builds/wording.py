"""Messages about environments that are being built or failed to build, for people and models."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from nsm.wire.errors import NsmError
from nsmd.environments.builds.build_state import Attempt, Building, Failed
from nsmd.environments.nix.errors import NixRunError
from nsmd.model.flakes import shown, why_no_reference
from nsmd.model.text import duration
from nsmd.model.values import Environment, EnvironmentProblem

MAX_CAUSE_CHARS = 300


def failure(error: NsmError | OSError, at_s: float) -> Failed:
    """Make the record of an error.

    Args:
        at_s: Unix time of the error.
    """
    if not isinstance(error, NsmError):
        where = f" ({error.filename})" if error.filename else ""
        cause = f"nsm's state directory cannot be used: {error.strerror}{where}"
        hint = "`nsm doctor` says where it is."
        return Failed(cause=cause, message=f"{cause}.", hint=hint, at_s=at_s)
    cause = error.cause if isinstance(error, NixRunError) else ""
    cause = (cause or error.message.partition("\n")[0]).rstrip(".")
    return Failed(cause=cause[:MAX_CAUSE_CHARS], message=error.message, hint=error.hint, at_s=at_s)


def interrupted(building: Building, at_s: float) -> Failed:
    """Make the record of a build during which the supervisor has ended too often.

    Args:
        at_s: Unix time of this decision.
    """
    cause = f"the supervisor ended during it {building.interruptions} times in a row"
    return Failed(
        cause=cause,
        message=f"The build is not begun again: {cause}.",
        hint=f"`nsm env update {building.name}` tries again.",
        at_s=at_s,
    )


def problem(building: Building) -> EnvironmentProblem | None:
    """Why an environment cannot be used, or is out of date; None if all is well."""
    where, log = shown(building.reference), f"`nsm env log {building.name}`"
    if building.attempt is not None:
        if building.built is not None:
            return None
        attempt = building.attempt
        return EnvironmentProblem(
            name=building.name,
            where=where,
            why=f"it is being built; {log} shows how",
            explain=lambda: f"{so_far(attempt)}; {log} shows how",
        )
    if building.failed is None:
        return None
    cause = building.failed.cause
    if building.built is None:
        why = f"its build failed: {cause}; {log} has more, `nsm env update` tries again"
    else:
        # Without a time, which would make it a new problem each time that it is reported.
        why = f"its update failed: {cause}; the one built before is used; {log} has more"
    return EnvironmentProblem(name=building.name, where=where, why=why)


def said(buildings: Sequence[Building]) -> tuple[list[Environment], list[EnvironmentProblem]]:
    """Split builds into usable environments, with unique names, and problems to report."""
    found: dict[str, Environment] = {}
    problems: list[EnvironmentProblem] = []
    for building in buildings:
        if building.built is not None:
            environment = building.built.environment
            first = found.setdefault(environment.name, environment)
            if first is not environment:
                why = f"it is called {first.name!r}, as {first.source} is, which comes first"
                where = shown(building.reference)
                problems.append(EnvironmentProblem(name=first.name, where=where, why=why))
        if (trouble := problem(building)) is not None:
            problems.append(trouble)
    return list(found.values()), problems


def bad_reference(reference: str) -> EnvironmentProblem:
    """Make the problem for a reference in `NIX_SANDBOX_ENVS` that nsm does not pass to nix."""
    why = why_no_reference(reference) or "there are too many"
    where = f"NIX_SANDBOX_ENVS: {shown(reference)!r:.200}"
    return EnvironmentProblem(name=None, where=where, why=why)


def so_far(attempt: Attempt) -> str:
    """Describe the progress of a build."""
    now_s = trio.current_time()
    if attempt.started_s is None:
        return f"it waits for other builds, for {duration(now_s - attempt.queued_s)} so far"
    progress = attempt.progress
    done = f", {progress.built} of {progress.to_build} built" if progress.to_build else ""
    if megabytes := progress.downloaded_bytes // 1_000_000:
        done += f", {megabytes} MB received"
    doing = progress.activity or progress.phase
    return f"it is being built, for {duration(now_s - attempt.started_s)} so far{done} ({doing})"
