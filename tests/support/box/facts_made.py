"""Facts made by hand, of one user on an ordinary host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nsmbox.host.facts import BoxRequest, Facts, HostPath, Tool
from nsmbox.host.nsm_itself import NsmPaths
from nsmbox.host.program_links import Links
from nsmbox.profiles import load
from nsmbox.protection.git_repository import GitFacts, Identity
from nsmbox.protection.guarded_files import Guarded
from nsmbox.protection.secrets import Known, Secret

HOME = "/home/mia"
PROJECT = f"{HOME}/work/shop"

VARIABLES = {
    "ANTHROPIC_API_KEY": "sk-ant-1234",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "EDITOR": "vim",
    "GH_TOKEN": "ghp_1234",
    "HOME": HOME,
    "LANG": "de_DE.UTF-8",
    "PATH": f"{HOME}/.npm-global/bin:/usr/bin:/bin",
    "REPOSITORY": "https://mia:pass@git.example.org/shop",
    "SHELL": "/usr/bin/zsh",
    "SSH_AUTH_SOCK": "/run/user/1000/ssh",
    "TERM": "xterm-256color",
    "TMPDIR": f"{HOME}/tmp",
    "USER": "mia",
    "XDG_RUNTIME_DIR": "/run/user/1000",
}

NPM = f"{HOME}/.npm-global/lib/node_modules"

CLAUDE = Tool(
    name="claude",
    place=f"{HOME}/.npm-global/bin/claude",
    path=f"{NPM}/@anthropic-ai/claude-code/cli.js",
    shown=(NPM,),
)
NODE = Tool(
    name="node",
    place=f"{HOME}/.nvm/versions/node/v22.3.0/bin/node",
    path=f"{HOME}/.nvm/versions/node/v22.3.0/bin/node",
    shown=(f"{HOME}/.nvm/versions/node/v22.3.0",),
)

OWN = NsmPaths(
    python="/opt/python/bin/python3.12",
    library=("/opt/python/lib/python3.12",),
    packages=(("nsm", "/opt/nsm/nsm"), ("nsmbox", "/opt/nsm/nsmbox"), ("cbor2", "/opt/nsm/cbor2")),
)

KNOWN = Known(
    homes=(HOME,),
    secrets=(
        Secret(path=f"{HOME}/.ssh", name="~/.ssh", is_directory=True),
        Secret(path=f"{PROJECT}/deploy/.aws", name="~/.aws", is_directory=True),
        Secret(path=f"{PROJECT}/.netrc", name="~/.netrc", is_directory=False),
    ),
)

REPOSITORY = GitFacts(
    identity=Identity(name="Mia", email="mia@example.org", known=True),
    git_directory=f"{PROJECT}/.git",
    common=f"{PROJECT}/.git",
)


def facts(**other: Any) -> Facts:
    """Facts of a claude in a project; `other` replaces some."""
    return replace(
        Facts(
            home=HOME,
            directory=PROJECT,
            variables=VARIABLES,
            system=(
                HostPath(path="/usr", source="/usr"),
                HostPath(path="/bin", link="usr/bin"),
                HostPath(path="/etc/passwd", source="/etc/passwd"),
                HostPath(path="/etc/resolv.conf", source="/run/systemd/resolve/stub-resolv.conf"),
            ),
            state=(HostPath(path=f"{HOME}/.claude", source=f"{HOME}/.claudebox"),),
            links=Links(directories=("/usr/bin",), path=f"{HOME}/.cache/nsm/box-tools/1234"),
            command=("/run/nsm/bin/claude", "--dangerously-skip-permissions"),
            tools=(CLAUDE, NODE),
            forbidden=("/usr/bin/gpg", "/usr/bin/ssh"),
            secrets=KNOWN,
            git=REPOSITORY,
            guarded=Guarded(held=(f"{PROJECT}/.git",), read_only=(f"{PROJECT}/.git/hooks",)),
            shell="/usr/bin/zsh",
            own=OWN,
        ),
        **other,
    )


def request(profile: str = "claude", **other: Any) -> BoxRequest:
    """Make a request for a box."""
    return replace(BoxRequest(profile=load(profile)), **other)
