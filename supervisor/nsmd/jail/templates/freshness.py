"""Changes of the files that a template consists of; these functions block."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence

from nsm.dataclass import dataclass
from nsmd.host.paths import Trail, WatchedPaths, is_within
from nsmd.jail.interface import TemplateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """State of these files at one moment.

    Attributes:
        state: differs if another file is at one of the paths, or has other content.
        changed_s: time of the last change of one of them, on the system's clock.
        places: paths to watch.
    """

    state: str
    changed_s: float = 0.0
    places: WatchedPaths


def host_paths(spec: TemplateSpec, loaded: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Paths on the host of the files that a template consists of.

    Args:
        loaded: names by directory, as seen in the template's jail.
    """
    shown = [(bind.target, bind.source) for bind in spec.binds]
    if spec.project is not None:
        shown.append((spec.project.mount_point, spec.project.path))
    shown.sort(key=lambda each: len(each[0]), reverse=True)

    def on_host(path: str) -> str:
        for target, source in shown:
            if is_within(path, target):
                return source + path[len(target) :]
        return path

    paths = [spec.agent_python]
    paths += [os.path.join(directory, name) for directory in loaded for name in loaded[directory]]
    return [on_host(path) for path in paths]


def look(paths: Sequence[str]) -> Files:
    """Read the state of all of them: some 10 us each."""
    trail = Trail(())
    digest = hashlib.sha256()
    now, changed_s = time.time(), 0.0
    for path in paths:
        try:
            found = trail.status(trail.follow(path, trusted=False))
        except OSError:
            digest.update(b"-")
            continue
        digest.update(
            b"%d %d %d %d;" % (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        )
        if found.st_ctime <= now:  # else the clock was set back
            changed_s = max(changed_s, found.st_ctime)
    return Files(state=digest.hexdigest(), changed_s=changed_s, places=trail.places)
