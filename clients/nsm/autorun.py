"""Files of a project that make the host run something, each with the program that does, and when.

This table decides what a box can neither change nor make, what nsm reports when a box has ended,
and which changes `nsm apply` warns of; docs/reference/files-that-run.md is made from it. It lacks
what people run by a command of its own: a Makefile, a test, a script of package.json. For files of
git the content counts, not the name (`nsmbox.protection.leftovers`).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Measure = Literal["denied", "read-only", "reported", "allowed"]
"""Rights of a box to such a file, and the report at its end; `nsm apply` warns of all.

`denied`: read-only where it exists, and the box cannot make it. `read-only`: read-only where it
exists; a new one is reported. `reported`: the box can change it, which is reported. `allowed`: the
box can change it.
"""


class Autorun(NamedTuple):
    """Files of one name.

    Attributes:
        path: name, or the last components of a path; a directory stands for what is in it, and
            `*.x` for all names that end so.
        by: programs that run it or obey it.
        when: occasion, as the end of a sentence.
        measure: see `Measure`.
        nothing: content without any entries, for programs that fail at an empty directory; else
            None.
        private: its programs fail if they cannot write there, so a box gets an empty directory of
            its own in its place.
        only_beside: `denied` only where another file of the same programs exists: without one they
            ignore this one.
    """

    path: str
    by: str
    when: str
    measure: Measure = "denied"
    nothing: str | None = None
    private: bool = False
    only_beside: bool = False

    @property
    def reason(self) -> str:
        """Programs that run it, and their occasion, for people."""
        return f"{self.by}, {self.when}"


_OPENED = "when it opens the directory"
_STARTED = "when it starts in the directory"
_COMMIT = "at a commit, once its hooks are installed"
_ENTERED = "when a shell enters the directory"
_CALLED = "at its next call, whatever the call is for"
_HOME = "if a home directory has it or a link to it"


def _all(
    names: str,
    by: str,
    when: str,
    measure: Measure = "denied",
    nothing: str | None = None,
    *,
    private: bool = False,
    only_beside: bool = False,
) -> tuple[Autorun, ...]:
    return tuple(
        Autorun(name, by, when, measure, nothing, private, only_beside) for name in names.split()
    )


NAMES: tuple[Autorun, ...] = (
    # Agents: MCP servers, hooks, permissions.
    *_all(".mcp.json", "Claude Code", _STARTED, nothing='{"mcpServers": {}}\n'),
    *_all(".claude", "Claude Code", _STARTED),
    *_all(".codex", "Codex", _STARTED),
    *_all(".gemini", "Gemini CLI", _STARTED),
    *_all(".opencode", "opencode", _STARTED, private=True),
    *_all("opencode.json opencode.jsonc", "opencode", _STARTED, nothing="{}\n"),
    *_all(".cursor", "Cursor", _OPENED),
    *_all(".windsurf", "Windsurf", _OPENED),
    *_all(".kiro", "Kiro", _OPENED),
    *_all(".amazonq", "Amazon Q", _STARTED),
    *_all(".continue", "Continue", _OPENED),
    *_all(".roo", "Roo Code", _OPENED),
    *_all(".junie", "Junie", _OPENED),
    *_all(".aider.conf.yml", "Aider", _STARTED),
    *_all(".crush.json crush.json", "Crush", _STARTED),
    # Editors: tasks, language servers, settings that name programs.
    *_all(".vscode", "VS Code and its forks", _OPENED),
    *_all("*.code-workspace", "VS Code and its forks", "when it is opened", "read-only"),
    *_all(".devcontainer .devcontainer.json", "editors with containers", _OPENED),
    *_all(".idea", "IDEs of JetBrains", _OPENED),
    *_all(".zed", "Zed", _OPENED),
    *_all(".fleet", "Fleet", _OPENED, "read-only"),
    *_all(".helix", "Helix", _STARTED),
    *_all(".exrc .vimrc .nvimrc .nvim.lua .vim", "Vim and Neovim", _STARTED),
    *_all(".lvimrc", "Vim with localvimrc", "when it opens a file", "read-only"),
    *_all(".kakrc", "Kakoune", _STARTED, "read-only"),
    *_all(".dir-locals.el .dir-locals-2.el", "Emacs", "when it opens a file"),
    *_all(
        "Code/User Code-OSS/User VSCodium/User Cursor/User Windsurf/User",
        "VS Code and its forks",
        "if ~/.config has it or a link to it",
        "read-only",
    ),
    # Shells that come to the directory.
    *_all(".envrc .direnv", "direnv", _ENTERED),
    *_all(".mise.toml mise.toml .mise.local.toml mise.local.toml .mise", "mise", _ENTERED),
    *_all(".autoenv .autoenv.zsh", "autoenv", _ENTERED, "read-only"),
    # Managers of git's hooks.
    *_all(".husky", "husky", _COMMIT),
    *_all(".pre-commit-config.yaml", "pre-commit", _COMMIT),
    *_all(
        "lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml lefthook.toml lefthook.json "
        "lefthook-local.yml lefthook-local.yaml .lefthook-local.yml",
        "lefthook",
        _COMMIT,
        nothing="",
        only_beside=True,
    ),
    *_all(".lefthook .lefthook-local", "lefthook", _COMMIT, only_beside=True),
    *_all(".overcommit.yml", "overcommit", _COMMIT, "read-only"),
    *_all(".githooks", "git", "if core.hooksPath names it", "read-only"),
    # Start-up files. No program reads them in a project; in a directory of dotfiles they count.
    *_all(".bashrc .bash_profile .bash_login .bash_logout", "Bash", _HOME, "read-only"),
    *_all(".profile .xprofile .xsessionrc", "the login", _HOME, "read-only"),
    *_all(".zshenv .zshrc .zprofile .zlogin", "Zsh", _HOME, "read-only"),
    *_all(".inputrc", "Readline", _HOME, "read-only"),
    *_all(".gitconfig", "git", _HOME, "read-only"),
    # Settings of tools that people call for something else.
    *_all(
        ".npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .pnpmfile.cjs",
        "npm, Yarn or pnpm",
        _CALLED,
        "reported",
    ),
    *_all(".cargo/config .cargo/config.toml", "Cargo", _CALLED, "reported"),
    *_all(".bazelrc", "Bazel", _CALLED, "reported"),
    *_all(".gdbinit .lldbinit", "gdb or lldb", _STARTED, "reported"),
    *_all(".github/hooks", "Copilot", _STARTED, "reported"),
    # What others obey: git without running it, build servers, models.
    *_all(".gitmodules .gitattributes", "git", _CALLED, "allowed"),
    *_all(".gitlab-ci.yml .circleci .github/workflows", "build servers", "once pushed", "allowed"),
    *_all(
        "AGENTS.md CLAUDE.md CLAUDE.local.md GEMINI.md .cursorrules .windsurfrules "
        ".github/copilot-instructions.md",
        "agents",
        "as instructions",
        "allowed",
    ),
    *_all(".cargo", "Cargo", _CALLED, "allowed"),
    *_all(".yarn", "Yarn", _CALLED, "allowed"),
)
"""If two entries fit a path, the first counts."""

_LOGIN = "at the next login or start"

IN_HOME: tuple[Autorun, ...] = (
    *_all(
        ".config/autostart .config/plasma-workspace .config/hypr .config/i3 .config/sway "
        ".local/share/applications .local/share/dbus-1",
        "the desktop",
        _LOGIN,
    ),
    *_all(".config/systemd .config/environment.d .local/share/systemd", "systemd", _LOGIN),
    *_all(".config/bash", "Bash", _LOGIN),
    *_all(".config/zsh .oh-my-zsh", "Zsh", _LOGIN),
    *_all(".config/fish", "fish", _LOGIN),
    *_all(".config/nushell", "Nushell", _LOGIN),
    *_all(".config/git", "git", "at its next call"),
    *_all(".config/nvim .local/share/nvim .config/vim", "Vim and Neovim", _LOGIN),
    *_all(".config/emacs .emacs.d", "Emacs", _LOGIN),
    *_all(".config/helix", "Helix", _LOGIN),
    *_all(".config/zed", "Zed", _LOGIN),
    *_all(
        ".config/Code/User .config/Code-OSS/User .config/VSCodium/User .config/Cursor/User "
        ".config/Windsurf/User .vscode-server",
        "VS Code and its forks",
        _LOGIN,
    ),
    *_all(".config/tmux", "tmux", _LOGIN),
    *_all(".config/mise", "mise", _ENTERED),
    *_all(".config/direnv", "direnv", _ENTERED),
    *_all(".config/nix .config/nixpkgs .config/home-manager", "Nix", "at its next call"),
    *_all(".local/bin bin", "whoever calls a program of that name", "by PATH"),
)
"""Below HOME: of interest where a box begins in one of these, or in a directory that holds one."""

DENIED = Autorun("", "you", "as you said")
"""Entry for a path that the user or git's configuration names."""

DENIED_FILE = Autorun("", "git", "at its next call", nothing="")
"""The same for a file that git reads."""

PACKAGE_DIRECTORIES = frozenset(
    "node_modules site-packages dist-packages vendor .venv venv .tox .nox .cache .npm .pnpm-store "
    "bower_components .gradle .m2".split()
)
"""Directories full of other people's projects, which nobody opens as projects."""

# Characters that file systems without regard to case may also leave out (as HFS+ and casefolded
# ext4 do); git's list of them is the same (utf8.c, next_hfs_char).
_LEFT_OUT = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def folded(name: str) -> str:
    """Return a name as a file system without regard to case compares it."""
    if name.isascii():
        return name.lower()
    return _LEFT_OUT.sub("", name).casefold()


_BY_FIRST: dict[str, list[tuple[tuple[str, ...], Autorun]]] = {}
_BY_ENDING: dict[str, Autorun] = {}
for _each in NAMES:
    if _each.path.startswith("*"):
        _BY_ENDING[_each.path[1:]] = _each
    else:
        _parts = tuple(map(folded, _each.path.split("/")))
        _BY_FIRST.setdefault(_parts[0], []).append((_parts, _each))

FIRST = frozenset(_BY_FIRST)
"""Folded first components: a name that is not one of these and has no ending of `ENDINGS` begins
no path of the table."""

ENDINGS = tuple(_BY_ENDING)


def beside(entry: Autorun) -> tuple[str, ...]:
    """Return the other names of the table that the same programs read."""
    return tuple(other.path for other in NAMES if other.by == entry.by and other != entry)


def find(path: str) -> Autorun | None:
    """Return the entry that a path falls under, wherever below a project it lies.

    Args:
        path: relative, without `.` and `..`.
    """
    parts = tuple(map(folded, path.split("/")))
    for place, name in enumerate(parts):
        for wanted, entry in _BY_FIRST.get(name, ()):
            if parts[place : place + len(wanted)] == wanted:
                return entry
    return next((_BY_ENDING[end] for end in ENDINGS if parts[-1].endswith(end)), None)
