"""Files of a project that make the host run something, each with the program that does, and when.

This table decides what a box can neither change nor make, what nsm reports when a box has ended,
and which changes `nsm apply` warns of; docs/reference/files-that-run.md is made from it. It lacks
what people run by a command of its own: a Makefile, a test, a script of package.json; and programs
in `.venv` and `node_modules`, which editors run, too. For files of git the content counts, not the
name (`nsmbox.protection.leftovers`).
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
_FILE_OPENED = "when a file is opened or saved"


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
    *_all(".amp", "Amp", _STARTED, "read-only"),
    *_all(".factory", "Droid", _STARTED, "read-only"),
    *_all(".kilocode", "Kilo Code", _OPENED, "read-only"),
    *_all(".openhands", "OpenHands", _STARTED, "read-only"),
    *_all(".pi", "Pi", _STARTED, "read-only"),
    *_all(".qwen", "Qwen Code", _STARTED, "read-only"),
    *_all(".tabnine", "Tabnine", _OPENED, "read-only"),
    *_all(".trae", "Trae", _OPENED, "read-only"),
    *_all(".vibe", "Mistral Vibe", _STARTED, "read-only"),
    *_all(".warp", "Warp", _OPENED, "read-only"),
    *_all(".crush.json crush.json", "Crush", _STARTED),
    # Editors: tasks, language servers, settings that name programs.
    *_all(".vscode", "VS Code and its forks", _OPENED),
    *_all("*.code-workspace", "VS Code and its forks", "when it is opened", "read-only"),
    *_all(".devcontainer .devcontainer.json", "editors with containers", _OPENED),
    *_all(".idea", "IDEs of JetBrains", _OPENED),
    *_all(".zed", "Zed", _OPENED),
    *_all(".run", "IDEs of JetBrains", "when a run configuration starts", "reported"),
    *_all(".fleet", "Fleet", _OPENED, "read-only"),
    *_all(".nova", "Nova", _OPENED, "read-only"),
    *_all(".theia", "Theia", _OPENED, "read-only"),
    *_all("*.sublime-project", "Sublime Text", "when it is opened", "read-only"),
    *_all(".kateproject", "Kate", _OPENED, "reported"),
    *_all(".externalToolBuilders", "Eclipse", _OPENED, "read-only"),
    *_all(".bsp", "Metals and IntelliJ", _OPENED, "reported"),
    *_all(".helix", "Helix", _STARTED),
    *_all(".exrc .vimrc .nvimrc .nvim.lua .vim", "Vim and Neovim", _STARTED),
    *_all(".lvimrc", "Vim with localvimrc", "when it opens a file", "read-only"),
    *_all(".lazy.lua .neoconf.json", "Neovim with plugins", _STARTED, "read-only"),
    *_all(".ycm_extra_conf.py", "YouCompleteMe", "when it opens a file", "reported"),
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
    *_all(".config/mise.toml .config/mise mise/config.toml", "mise", _ENTERED, "read-only"),
    *_all(".tool-versions", "mise and asdf", _CALLED, "reported"),
    *_all(
        "flake.nix shell.nix default.nix devenv.nix devenv.yaml devbox.json",
        "direnv",
        "when a shell enters the directory, if .envrc uses it",
        "reported",
    ),
    *_all(".autoenv .autoenv.zsh", "autoenv", _ENTERED, "read-only"),
    # Managers of git's hooks.
    *_all(".husky", "husky", _COMMIT),
    *_all(".pre-commit-config.yaml", "pre-commit", _COMMIT),
    *_all("prek.toml .pre-commit-config.yml", "prek", _COMMIT, "read-only"),
    *_all("hk.pkl", "hk", _COMMIT, "read-only"),
    *_all("captainhook.json", "CaptainHook", _COMMIT, "read-only"),
    *_all("grumphp.yml", "GrumPHP", _COMMIT, "read-only"),
    *_all(".rusty-hook.toml .cargo-husky", "Rust's managers of hooks", _COMMIT, "read-only"),
    *_all(
        ".lintstagedrc .lintstagedrc.json .lintstagedrc.yaml .lintstagedrc.yml .lintstagedrc.js "
        ".lintstagedrc.mjs .lintstagedrc.cjs lint-staged.config.js lint-staged.config.mjs "
        "lint-staged.config.cjs",
        "lint-staged",
        _COMMIT,
        "reported",
    ),
    *_all(
        ".commitlintrc .commitlintrc.json .commitlintrc.yaml .commitlintrc.yml .commitlintrc.js "
        ".commitlintrc.cjs .commitlintrc.mjs .commitlintrc.ts commitlint.config.js "
        "commitlint.config.cjs commitlint.config.mjs commitlint.config.ts",
        "commitlint",
        _COMMIT,
        "reported",
    ),
    # Other version control, which a prompt may call.
    *_all(".hg/hgrc .hg/hgrc-not-shared", "Mercurial", _CALLED, "read-only"),
    *_all(".jj/repo/config.toml .jj/workspace-config.toml", "Jujutsu", _CALLED, "read-only"),
    *_all(".sl/config", "Sapling", _CALLED, "read-only"),
    *_all(".pijul/config", "Pijul", _CALLED, "read-only"),
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
    *_all(".bash_aliases", "Bash", _HOME, "read-only"),
    *_all(
        ".profile .xprofile .xsessionrc .xsession .xinitrc .pam_environment",
        "the login",
        _HOME,
        "read-only",
    ),
    *_all(".zshenv .zshrc .zprofile .zlogin .zlogout", "Zsh", _HOME, "read-only"),
    *_all(".cshrc .tcshrc .login", "csh", _HOME, "read-only"),
    *_all(".tmux.conf", "tmux", _HOME, "read-only"),
    *_all(".emacs .emacs.el", "Emacs", _HOME, "read-only"),
    *_all(".wezterm.lua", "WezTerm", _HOME, "read-only"),
    *_all(".inputrc", "Readline", _HOME, "read-only"),
    *_all(".gitconfig", "git", _HOME, "read-only"),
    # Settings of tools that people call for something else.
    *_all(
        ".npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .pnp.cjs .pnp.loader.mjs "
        ".pnpmfile.cjs .pnpmfile.mjs pnpm-workspace.yaml",
        "npm, Yarn or pnpm",
        _CALLED,
        "reported",
    ),
    *_all("bunfig.toml", "Bun", _CALLED, "reported"),
    *_all(".python-version uv.toml", "uv", _CALLED, "reported"),
    *_all(".pdm-python pdm.toml", "PDM", _CALLED, "reported"),
    *_all("poetry.toml", "Poetry", _CALLED, "reported"),
    *_all("pyvenv.cfg", "editors and uv", "when they start the python beside it", "reported"),
    *_all(
        "sitecustomize.py usercustomize.py",
        "Python",
        "at its next call, if PYTHONPATH has the directory",
        "reported",
    ),
    *_all("rust-toolchain rust-toolchain.toml", "rustup", _CALLED, "reported"),
    *_all(".cargo/config .cargo/config.toml", "Cargo", _CALLED, "reported"),
    *_all(".bazelrc .bazeliskrc .bazelversion tools/bazel", "Bazel", _CALLED, "reported"),
    *_all(".buckconfig .buckconfig.local", "Buck", _CALLED, "reported"),
    *_all("pants.toml .pants.rc", "Pants", _CALLED, "reported"),
    *_all(
        ".mvn/extensions.xml .mvn/jvm.config .mvn/maven.config .mvn/wrapper",
        "Maven",
        _CALLED,
        "reported",
    ),
    *_all(".bundle/config", "Bundler", _CALLED, "reported"),
    *_all("ansible.cfg", "Ansible", _CALLED, "reported"),
    *_all(".Rprofile .Renviron .RData", "R", _STARTED, "reported"),
    *_all(".irbrc .pryrc", "irb or Pry", _STARTED, "reported"),
    *_all(".iex.exs", "IEx", _STARTED, "reported"),
    *_all(".ghci", "GHCi", _STARTED, "reported"),
    *_all(".octaverc", "Octave", _STARTED, "reported"),
    # Programs that editors start by themselves, and that run or obey these.
    *_all("build.rs", "rust-analyzer", _OPENED, "reported"),
    *_all("build.zig", "ZLS", _OPENED, "reported"),
    *_all("Package.swift", "SourceKit-LSP", _OPENED, "reported"),
    *_all("mix.exs .formatter.exs", "language servers of Elixir", _OPENED, "reported"),
    *_all("hie.yaml", "Haskell Language Server", _OPENED, "reported"),
    *_all("lakefile.lean", "Lean", _OPENED, "reported"),
    *_all("config.nims", "language servers of Nim", _OPENED, "reported"),
    *_all("analysis_options.yaml", "the analyzer of Dart", _OPENED, "reported"),
    *_all(".luarc.json .luarc.jsonc", "the language server of Lua", _OPENED, "reported"),
    *_all("project.clj", "clojure-lsp", _OPENED, "reported"),
    *_all(".rubocop.yml .solargraph.yml", "language servers of Ruby", _OPENED, "reported"),
    *_all(".terraform", "the language server of Terraform", _OPENED, "reported"),
    *_all(
        "build.gradle build.gradle.kts settings.gradle settings.gradle.kts gradle/wrapper",
        "editors that import Gradle builds",
        _OPENED,
        "reported",
    ),
    *_all(
        "Directory.Build.props Directory.Build.targets Directory.Build.rsp nuget.config",
        "editors that start MSBuild",
        _OPENED,
        "reported",
    ),
    *_all(
        "eslint.config.js eslint.config.mjs eslint.config.cjs eslint.config.ts eslint.config.mts "
        "eslint.config.cts .eslintrc .eslintrc.js .eslintrc.cjs .eslintrc.json .eslintrc.yml "
        ".eslintrc.yaml",
        "ESLint in editors",
        _FILE_OPENED,
        "reported",
    ),
    *_all(
        ".prettierrc .prettierrc.json .prettierrc.yml .prettierrc.yaml .prettierrc.toml "
        ".prettierrc.js .prettierrc.mjs .prettierrc.cjs .prettierrc.ts prettier.config.js "
        "prettier.config.mjs prettier.config.cjs prettier.config.ts",
        "Prettier in editors",
        _FILE_OPENED,
        "reported",
    ),
    *_all(
        ".stylelintrc .stylelintrc.json .stylelintrc.js .stylelintrc.cjs .stylelintrc.mjs "
        "stylelint.config.js stylelint.config.cjs stylelint.config.mjs",
        "Stylelint in editors",
        _FILE_OPENED,
        "reported",
    ),
    *_all(
        "tailwind.config.js tailwind.config.cjs tailwind.config.mjs tailwind.config.ts",
        "Tailwind CSS in editors",
        _OPENED,
        "reported",
    ),
    *_all("svelte.config.js", "Svelte in editors", _OPENED, "reported"),
    *_all(
        "graphql.config.js graphql.config.cjs graphql.config.ts .graphqlrc.js .graphqlrc.cjs "
        ".graphqlrc.ts",
        "GraphQL in editors",
        _OPENED,
        "reported",
    ),
    *_all(
        "cspell.config.js cspell.config.cjs cspell.config.mjs .markdownlint.cjs "
        ".markdownlint.mjs .markdownlint-cli2.cjs .markdownlint-cli2.mjs "
        ".markdownlint-cli2.jsonc .markdownlint-cli2.yaml",
        "checkers of text in editors",
        _FILE_OPENED,
        "reported",
    ),
    *_all(
        ".pylintrc pylintrc .flake8 mypy.ini .mypy.ini",
        "checkers of Python in editors",
        _FILE_OPENED,
        "reported",
    ),
    *_all(".latexmkrc latexmkrc", "latexmk, also from editors", _FILE_OPENED, "reported"),
    *_all(".gdbinit .lldbinit", "gdb or lldb", _STARTED, "reported"),
    *_all(".github/hooks", "Copilot", _STARTED, "reported"),
    # What others obey: git without running it, build servers, models.
    *_all(".gitmodules .gitattributes", "git", _CALLED, "allowed"),
    *_all(
        ".gitlab-ci.yml .circleci .github/workflows .github/actions .forgejo .gitea .woodpecker "
        ".woodpecker.yml .drone.yml .buildkite .travis.yml azure-pipelines.yml "
        "bitbucket-pipelines.yml Jenkinsfile",
        "build servers",
        "once pushed",
        "allowed",
    ),
    *_all(
        ".gitpod.yml .gitpod .codesandbox .stackblitzrc .idx .replit",
        "workspaces in a cloud",
        "once pushed",
        "allowed",
    ),
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
        ".config/niri .config/river .config/awesome .config/qtile .config/bspwm .config/sxhkd "
        ".config/openbox .config/waybar .config/polybar .xmonad "
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
    *_all(".config/zellij", "Zellij", _LOGIN),
    *_all(
        ".config/alacritty .config/kitty .config/ghostty .config/wezterm .config/foot",
        "the terminal",
        _LOGIN,
    ),
    *_all(".config/starship.toml", "the prompt", "before each command"),
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
