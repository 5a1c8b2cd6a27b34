"""Probes in sessions whose jails are made by an artifact's programs, not by nsm's own arguments."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from isolation.background import Background
from isolation.harness import Kind, Probe, run_with
from isolation.stage import Stage
from nsmd.jail import Launcher, open_router
from nsmd.templates import open_templates
from nsmd.values import Environment
from realjail import new_launcher


def verdict_in(
    background: Background,
    kind: Kind,
    probe: Probe,
    stage: Stage,
    environment: Environment,
    store: str,
) -> str:
    """Run a probe in a session of an artifact.

    Args:
        store: where its jail shows what it consists of.

    Returns:
        The verdict, as `run_with`.
    """

    async def run() -> str:
        launcher = await background.launcher((kind, stage), partial(_opened, kind))
        return await run_with(launcher, probe, stage, environment, store)

    return background.run(run)


@asynccontextmanager
async def _opened(kind: Kind) -> AsyncGenerator[Launcher]:
    async with (
        open_router(new_launcher(), "/homeless") as cold,
        open_templates(cold, enabled=kind == "forked") as launcher,
    ):
        yield launcher
