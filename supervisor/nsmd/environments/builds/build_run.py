"""One build: from a reference to a sandbox that is a garbage-collector root."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import trio

from nsm.dataclass import replace
from nsm.wire.errors import NsmError
from nsmd.environments.builds.build_index import BuildIndex
from nsmd.environments.builds.build_state import Attempt, Building, Built
from nsmd.environments.builds.output import built_path, sandbox
from nsmd.environments.nix.program import NixFinder
from nsmd.environments.nix.progress import NixProgress
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import Environment


class BuildRun:
    """Builder of single environments with Nix.

    Args:
        finder: finds Nix.
        index: keeps builds and logs.
        defaults: limits of environments that set none.
        configured: environments of config.toml, by name.
        owners: users whose programs may be run.
        timeout_s: time limit of one build, seconds.
    """

    def __init__(
        self,
        finder: NixFinder,
        index: BuildIndex,
        *,
        defaults: Defaults,
        configured: Mapping[str, EnvironmentSettings],
        owners: Collection[int],
        timeout_s: float,
    ) -> None:
        self._finder = finder
        self._index = index
        self._defaults = defaults
        self._configured = configured
        self._owners = owners
        self._timeout_s = timeout_s

    async def build(self, building: Building, attempt: Attempt) -> Built:
        """Build.

        Args:
            building: environment to build; only notified of changes in the attempt.
            attempt: gets the progress.

        Raises:
            NsmError: the result is no sandbox; the log says so, too.
            OSError: our own directory cannot be used.
        """

        def on_progress(progress: NixProgress, log_bytes: int) -> None:
            attempt.progress, attempt.log_bytes = progress, log_bytes
            building.note()

        nix = await self._finder.find()
        attempt.link = await trio.to_thread.run_sync(self._index.roots.fresh, building.key)
        log_fd = await trio.to_thread.run_sync(self._index.new_log, building.key)
        try:
            arguments = ["build", "--json", "--out-link", self._index.roots.path(attempt.link)]
            # Nobody expects background work to write into a user's directories.
            arguments.append("--no-write-lock-file")
            if attempt.refresh:
                arguments.append("--refresh")
            stdout = await nix.run(
                [*arguments, "--", building.reference],
                timeout_s=self._timeout_s,
                on_progress=on_progress,
                log_fd=log_fd,
            )
            path = built_path(stdout, building.reference)
            environment = await trio.to_thread.run_sync(
                self.look, path, building.reference, building.given_name
            )
        except NsmError as error:
            # The lines after the first are the end of this very log.
            text = error.message.partition("\n")[0]
            with suppress(OSError):  # a full disk, which is not the error to report here
                os.write(log_fd, f"nsm: {text}\n".encode(errors="replace"))
            raise
        finally:
            os.close(log_fd)
        return Built(environment=environment, path=path, link=attempt.link, built_s=time.time())

    def look(self, path: str, reference: str, name: str) -> Environment:
        """Make the environment in a store path. Blocks; arguments and errors as for `sandbox`."""
        environment = sandbox(path, reference, self._defaults, self._owners, name=name)
        entry = self._configured.get(name)
        if entry is None or entry.flake != reference:
            return environment
        return replace(
            environment,
            description=entry.description or environment.description,
            timeout_s=entry.timeout_seconds or environment.timeout_s,
            memory_mb=entry.memory_mb or environment.memory_mb,
            cpu_weight=entry.cpu_weight or environment.cpu_weight,
            preload=entry.preload or environment.preload,
            network=entry.network_rule,
            variables=tuple(entry.env.items()),
        )
