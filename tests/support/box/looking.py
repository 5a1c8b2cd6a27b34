"""A look around in a box: `inspection.py` runs there, and what it tells comes back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from box.attack import IN_BOX
from box.world import HOME, PROJECT

if TYPE_CHECKING:
    from box.world import World

SOURCE = Path(__file__).with_name("inspection.py").read_text()

BUNDLE = next(
    path
    for path in (
        "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, NixOS
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
        os.devnull,
    )
    if Path(path).exists()
)
"""Places of certificates on this host."""

PASSED = {
    "HOME": HOME,
    "TERM": "xterm-of-ada",
    "EDITOR": "vi -u NONE",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TZ": "Asia/Tokyo",
    "NIX_SSL_CERT_FILE": BUNDLE,
    "SSL_CERT_FILE": BUNDLE,
    "ANTHROPIC_API_KEY": "sk-ant-of-ada",
    "USER": "ada",
    "SHELL": "/bin/bash",
    "ADAS_OWN": 'a value, with "quotes" and\na line',
}
"""Variables of the host that a box has, with their values."""


def look(world: World, *before: str, directory: str = PROJECT, **asked: object) -> dict[str, Any]:
    """Have `box.inspection` look around in a box that `before` starts."""
    done = world.run(
        *(*before, IN_BOX, "-I", "-c", SOURCE, json.dumps(asked)),
        directory=directory,
        variables=PASSED
        | {
            "CLAUDEBOX_EXTRA_ENV": "ADAS_OWN,NOT_SET_AT_ALL",
            "TMPDIR": "/var/tmp",
            "NIX_PATH": "nixpkgs=/nowhere",
            "LD_PRELOAD": "",
            "BASH_ENV": f"{HOME}/.bashrc",
            "PYTHONPATH": f"{HOME}/evil",
        },
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told
