"""Names that count wherever below a project they are."""

from __future__ import annotations

import re
from typing import Literal

from nsm.wire.tuples import NamedTuple

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
        only_with: program without which on PATH it is `denied` nowhere. `*.json` and its like find
            what stands for such a file, since its name begins with no dot.
        says: regular expression. Files of this name are mostly harmless, and count only if they
            have it; directories of this name never count.
    """

    path: str
    by: str
    when: str
    measure: Measure = "denied"
    nothing: str | None = None
    private: bool = False
    only_beside: bool = False
    only_with: str = ""
    says: str = ""

    @property
    def reason(self) -> str:
        """Programs that run it, and their occasion, for people."""
        return f"{self.by}, {self.when}"

    def counts(self, content: bytes | None) -> bool:
        """Return whether a file of this name counts; its content is None if nobody knows."""
        # What programs read in another encoding has NUL bytes.
        return (
            not self.says
            or content is None
            or b"\0" in content
            or re.search(self.says.encode(), content, re.IGNORECASE | re.MULTILINE) is not None
        )


MAX_CONTENT_BYTES = 1024 * 1024
"""Longer files count whatever they say."""


def entries(
    names: str,
    by: str,
    when: str,
    measure: Measure = "denied",
    nothing: str | None = None,
    *,
    private: bool = False,
    only_beside: bool = False,
    only_with: str = "",
    says: str = "",
) -> tuple[Autorun, ...]:
    """Make entries of several names, which differ in nothing else."""
    return tuple(
        Autorun(name, by, when, measure, nothing, private, only_beside, only_with, says)
        for name in names.split()
    )


_OPENED = "when it opens the directory"
_STARTED = "when it starts in the directory"
_COMMIT = "at a commit, once its hooks are installed"
_ENTERED = "when a shell enters the directory"
_LOGIN = "at the next login or start"
_CALLED = "at its next call, whatever the call is for"
_HOME = "if a home directory has it or a link to it"
_FILE_OPENED = "when a file is opened or saved"

_ESCAPED = r"\\[ux]"
"""A character that TOML or JSON need not escape: it may hide a name."""

_PYTHON_CHECKERS = (
    r"init-hook|evaluation|plugins|extension-pkg|unsafe-load|python_executable|" + _ESCAPED
)
"""Settings of Pylint, mypy and Flake8 that name programs or code."""

_CARGO = r"""(^|[\s.,{"'])build["']?\s*=|proc[-_]macro(?!\d)|""" + _ESCAPED
"""A build script of another name than `build.rs`, and code that runs in the compiler."""

# A version among the dependencies is no configuration.
_PACKAGE_JSON = (
    r'"(lint-staged|husky|gitHooks|simple-git-hooks|pre-commit|commitlint|eslintConfig|prettier|'
    r'stylelint|xo|babel|remarkConfig)"\s*:\s*(?!\s|"[\^~<>=*\d]|"(latest|next|workspace:|npm:|'
    r"catalog:))|" + _ESCAPED
)

_MAVEN = r"<extensions?\b|lifecycle-?mapping|m2e|<!DOCTYPE|<!ENTITY"

_MSBUILD = r"<(Target|UsingTask|Import|Analyzer|Sdk)\b|<!DOCTYPE|Sdk\s*=\s*['\"](?!Microsoft\.NET)"

_VARIABLES = (
    r"^[ \t]*(export[ \t]+)?(LD_\w+|DYLD_\w+|PYTHON\w+|NODE_OPTIONS|PATH|BASH_ENV|ENV|GIT_\w+|"
    r"RUBYOPT|PERL5\w+|JAVA_TOOL_OPTIONS)\s*=|`|\$\("
)
"""Variables that have programs run others; commands, for shells."""


NAMES: tuple[Autorun, ...] = (
    # Agents: MCP servers, hooks, permissions.
    *entries(".mcp.json", "Claude Code", _STARTED, nothing='{"mcpServers": {}}\n'),
    *entries(".claude", "Claude Code", _STARTED),
    *entries(".codex", "Codex", _STARTED),
    *entries(".gemini", "Gemini CLI", _STARTED),
    *entries(".opencode", "opencode", _STARTED, private=True),
    *entries(
        "opencode.json opencode.jsonc",
        "opencode",
        _STARTED,
        nothing="{}\n",
        only_with="opencode",
    ),
    *entries(".cursor", "Cursor", _OPENED),
    *entries(".windsurf", "Windsurf", _OPENED),
    *entries(".kiro", "Kiro", _OPENED),
    *entries(".amazonq", "Amazon Q", _STARTED),
    *entries(".continue", "Continue", _OPENED),
    *entries(".roo", "Roo Code", _OPENED),
    *entries(".junie", "Junie", _OPENED),
    *entries(".aider.conf.yml", "Aider", _STARTED),
    *entries(".amp", "Amp", _STARTED, "read-only"),
    *entries(".factory", "Droid", _STARTED, "read-only"),
    *entries(".kilocode", "Kilo Code", _OPENED, "read-only"),
    *entries(".openhands", "OpenHands", _STARTED, "read-only"),
    *entries(".pi", "Pi", _STARTED, "read-only"),
    *entries(".qwen", "Qwen Code", _STARTED, "read-only"),
    *entries(".tabnine", "Tabnine", _OPENED, "read-only"),
    *entries(".trae", "Trae", _OPENED, "read-only"),
    *entries(".vibe", "Mistral Vibe", _STARTED, "read-only"),
    *entries(".warp", "Warp", _OPENED, "read-only"),
    *entries(".clinerules/hooks .cline", "Cline", _STARTED, "read-only"),
    *entries(
        ".agents/hooks.json .agents/plugins .agents/mcp_config.json",
        "Antigravity, goose and others",
        _STARTED,
        "read-only",
    ),
    *entries(".augment", "Augment", _STARTED, "read-only"),
    *entries(".codebuddy", "CodeBuddy", _STARTED, "read-only"),
    *entries(".iflow", "iFlow", _STARTED, "read-only"),
    *entries(".qoder", "Qoder", _STARTED, "read-only"),
    *entries(".crush.json", "Crush", _STARTED),
    *entries("crush.json", "Crush", _STARTED, only_with="crush"),
    # Editors: tasks, language servers, settings that name programs.
    *entries(".vscode", "VS Code and its forks", _OPENED),
    *entries("*.code-workspace", "VS Code and its forks", "when it is opened", "read-only"),
    *entries(".devcontainer .devcontainer.json", "editors with containers", _OPENED),
    *entries(".idea", "IDEs of JetBrains", _OPENED),
    *entries(".zed", "Zed", _OPENED),
    *entries(".run", "IDEs of JetBrains", "when a run configuration starts", "reported"),
    *entries(".fleet", "Fleet", _OPENED, "read-only"),
    *entries(".nova", "Nova", _OPENED, "read-only"),
    *entries(".theia", "Theia", _OPENED, "read-only"),
    *entries("*.sublime-project", "Sublime Text", "when it is opened", "read-only"),
    *entries(".kateproject", "Kate", _OPENED, "reported"),
    *entries(".externalToolBuilders", "Eclipse", _OPENED, "read-only"),
    *entries(".factorypath", "Java in Eclipse and VS Code", _OPENED, "reported"),
    *entries(".bsp", "Metals and IntelliJ", _OPENED, "reported"),
    *entries(".lapce", "Lapce", _OPENED, "read-only"),
    *entries(".helix", "Helix", _STARTED),
    *entries(".exrc .vimrc .nvimrc .nvim.lua .vim", "Vim and Neovim", _STARTED),
    *entries(".lvimrc .local.vimrc", "Vim with localvimrc", "when it opens a file", "read-only"),
    *entries(".lazy.lua .neoconf.json", "Neovim with plugins", _STARTED, "read-only"),
    *entries(".ycm_extra_conf.py", "YouCompleteMe", "when it opens a file", "reported"),
    *entries(".kakrc", "Kakoune", _STARTED, "read-only"),
    *entries(".dir-locals.el .dir-locals-2.el", "Emacs", "when it opens a file"),
    *entries(
        "Code/User Code-OSS/User VSCodium/User Cursor/User Windsurf/User",
        "VS Code and its forks",
        "if ~/.config has it or a link to it",
        "read-only",
    ),
    # Shells that come to the directory.
    *entries(".envrc .direnv", "direnv", _ENTERED),
    *entries(".mise.toml .mise.local.toml .mise", "mise", _ENTERED),
    *entries("mise.toml mise.local.toml", "mise", _ENTERED, only_with="mise"),
    *entries(".config/mise.toml .config/mise mise/config.toml", "mise", _ENTERED, "read-only"),
    *entries(".tool-versions", "mise and asdf", _CALLED, "reported"),
    *entries(
        "flake.nix shell.nix default.nix devenv.nix devenv.yaml devbox.json",
        "direnv",
        "when a shell enters the directory, if .envrc uses it",
        "reported",
    ),
    *entries(".autoenv .autoenv.zsh", "autoenv", _ENTERED, "read-only"),
    *entries(".rvmrc", "RVM", _ENTERED, "read-only"),
    *entries(".shadowenv.d", "Shadowenv", _ENTERED, "read-only"),
    *entries(".prototools", "proto", _ENTERED, "reported"),
    *entries(
        ".env",
        "Python in VS Code, and shells that read it",
        "when the directory is opened or entered",
        "reported",
        says=_VARIABLES,
    ),
    # Managers of git's hooks.
    *entries(".husky", "husky", _COMMIT),
    *entries(".pre-commit-config.yaml", "pre-commit", _COMMIT),
    *entries("prek.toml .pre-commit-config.yml", "prek", _COMMIT, "read-only"),
    *entries("hk.pkl", "hk", _COMMIT, "read-only"),
    *entries("captainhook.json", "CaptainHook", _COMMIT, "read-only"),
    *entries("grumphp.yml", "GrumPHP", _COMMIT, "read-only"),
    *entries(".rusty-hook.toml .cargo-husky", "Rust's managers of hooks", _COMMIT, "read-only"),
    *entries(
        ".huskyrc .huskyrc.json .huskyrc.js .huskyrc.yml husky.config.js",
        "husky",
        _COMMIT,
        "read-only",
    ),
    *entries(".gitlint", "gitlint", _COMMIT, "reported"),
    *entries(
        ".lintstagedrc .lintstagedrc.json .lintstagedrc.yaml .lintstagedrc.yml .lintstagedrc.js "
        ".lintstagedrc.mjs .lintstagedrc.cjs lint-staged.config.js lint-staged.config.mjs "
        "lint-staged.config.cjs",
        "lint-staged",
        _COMMIT,
        "reported",
    ),
    *entries(
        ".commitlintrc .commitlintrc.json .commitlintrc.yaml .commitlintrc.yml .commitlintrc.js "
        ".commitlintrc.cjs .commitlintrc.mjs .commitlintrc.ts commitlint.config.js "
        "commitlint.config.cjs commitlint.config.mjs commitlint.config.ts",
        "commitlint",
        _COMMIT,
        "reported",
    ),
    # Other version control, which a prompt may call.
    *entries(".hg/hgrc .hg/hgrc-not-shared", "Mercurial", _CALLED, "read-only"),
    *entries(".jj/repo/config.toml .jj/workspace-config.toml", "Jujutsu", _CALLED, "read-only"),
    *entries(".sl/config", "Sapling", _CALLED, "read-only"),
    *entries(".pijul/config", "Pijul", _CALLED, "read-only"),
    *entries(
        "lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml lefthook.toml lefthook.json "
        "lefthook-local.yml lefthook-local.yaml .lefthook-local.yml",
        "lefthook",
        _COMMIT,
        nothing="",
        only_beside=True,
    ),
    *entries(".lefthook .lefthook-local", "lefthook", _COMMIT, only_beside=True),
    *entries(".overcommit.yml", "overcommit", _COMMIT, "read-only"),
    *entries(".githooks", "git", "if core.hooksPath names it", "read-only"),
    # Start-up files. No program reads them in a project; in a directory of dotfiles they count.
    *entries(".bashrc .bash_profile .bash_login .bash_logout", "Bash", _HOME, "read-only"),
    *entries(".bash_aliases", "Bash", _HOME, "read-only"),
    *entries(
        ".profile .xprofile .xsessionrc .xsession .xinitrc .pam_environment",
        "the login",
        _HOME,
        "read-only",
    ),
    *entries(".zshenv .zshrc .zprofile .zlogin .zlogout", "Zsh", _HOME, "read-only"),
    *entries(".cshrc .tcshrc .login", "csh", _HOME, "read-only"),
    *entries(".tmux.conf", "tmux", _HOME, "read-only"),
    *entries(".emacs .emacs.el", "Emacs", _HOME, "read-only"),
    *entries(".wezterm.lua", "WezTerm", _HOME, "read-only"),
    *entries(".inputrc", "Readline", _HOME, "read-only"),
    *entries(".gitconfig", "git", _HOME, "read-only"),
    # Settings of tools that people call for something else.
    *entries(
        ".npmrc .yarnrc .yarnrc.yml .yarn/releases .yarn/plugins .pnp.cjs .pnp.loader.mjs "
        ".pnpmfile.cjs .pnpmfile.mjs pnpm-workspace.yaml",
        "npm, Yarn or pnpm",
        _CALLED,
        "reported",
    ),
    *entries("bunfig.toml", "Bun", _CALLED, "reported"),
    *entries(".python-version uv.toml", "uv", _CALLED, "reported"),
    *entries(".pdm-python pdm.toml", "PDM", _CALLED, "reported"),
    *entries("poetry.toml", "Poetry", _CALLED, "reported"),
    *entries("pyvenv.cfg", "editors and uv", "when they start the python beside it", "reported"),
    *entries(
        "sitecustomize.py usercustomize.py",
        "Python",
        "at its next call, if PYTHONPATH has the directory",
        "reported",
    ),
    *entries("rust-toolchain rust-toolchain.toml", "rustup", _CALLED, "reported"),
    *entries(".cargo/config .cargo/config.toml", "Cargo", _CALLED, "reported"),
    *entries(".bazelrc .bazeliskrc .bazelversion tools/bazel", "Bazel", _CALLED, "reported"),
    *entries(".buckconfig .buckconfig.local", "Buck", _CALLED, "reported"),
    *entries("pants.toml .pants.rc", "Pants", _CALLED, "reported"),
    *entries(
        ".mvn/extensions.xml .mvn/jvm.config .mvn/maven.config .mvn/wrapper",
        "Maven",
        _CALLED,
        "reported",
    ),
    *entries(".bundle/config", "Bundler", _CALLED, "reported"),
    *entries("ansible.cfg", "Ansible", _CALLED, "reported"),
    *entries("Vagrantfile", "Vagrant", _CALLED, "reported"),
    *entries("aqua.yaml .aqua.yaml", "aqua", _CALLED, "reported"),
    *entries("global.json", "dotnet", _CALLED, "reported"),
    *entries(
        "package.json",
        "hooks of git, and checkers in editors",
        "at a commit or when a file is saved",
        "reported",
        says=_PACKAGE_JSON,
    ),
    *entries(".Rprofile .Renviron .RData", "R", _STARTED, "reported"),
    *entries(".irbrc .pryrc", "irb or Pry", _STARTED, "reported"),
    *entries(".iex.exs", "IEx", _STARTED, "reported"),
    *entries(".ghci", "GHCi", _STARTED, "reported"),
    *entries(".ocamlinit", "OCaml", _STARTED, "reported"),
    *entries(".erlang", "Erlang", _STARTED, "reported"),
    *entries(".octaverc", "Octave", _STARTED, "reported"),
    # Programs that editors start by themselves, and that run or obey these.
    *entries("build.rs rust-project.json rust-analyzer.toml", "rust-analyzer", _OPENED, "reported"),
    *entries("Cargo.toml", "rust-analyzer", _OPENED, "reported", says=_CARGO),
    *entries(
        "CMakeLists.txt *.cmake CMakePresets.json CMakeUserPresets.json",
        "editors that run CMake",
        _OPENED,
        "reported",
    ),
    *entries("meson.build", "editors that run Meson", _OPENED, "reported"),
    *entries("xmake.lua", "editors that run xmake", _OPENED, "reported"),
    *entries(
        "Gemfile gems.rb *.gemspec", "Bundler and language servers of Ruby", _OPENED, "reported"
    ),
    *entries("build.zig", "ZLS", _OPENED, "reported"),
    *entries("Package.swift", "SourceKit-LSP", _OPENED, "reported"),
    *entries(
        "mix.exs .formatter.exs .credo.exs", "language servers of Elixir", _OPENED, "reported"
    ),
    *entries("rebar.config rebar.config.script", "language servers of Erlang", _OPENED, "reported"),
    *entries(
        "hie.yaml cabal.project stack.yaml Setup.hs",
        "Haskell Language Server",
        _OPENED,
        "reported",
    ),
    *entries(".merlin", "the language server of OCaml", _OPENED, "reported"),
    *entries("lakefile.lean", "Lean", _OPENED, "reported"),
    *entries("*.nims *.nimble", "language servers of Nim", _OPENED, "reported"),
    *entries("analysis_options.yaml", "the analyzer of Dart", _OPENED, "reported"),
    *entries(".luarc.json .luarc.jsonc", "the language server of Lua", _OPENED, "reported"),
    *entries("project.clj build.boot .lsp/config.edn", "clojure-lsp", _OPENED, "reported"),
    *entries(".rubocop.yml .solargraph.yml", "language servers of Ruby", _OPENED, "reported"),
    *entries(".terraform", "the language server of Terraform", _OPENED, "reported"),
    *entries(
        "*.gradle *.gradle.kts gradle.properties buildSrc gradle/wrapper",
        "editors that import Gradle builds",
        _OPENED,
        "reported",
    ),
    *entries(
        "*.props *.targets Directory.Build.rsp nuget.config",
        "editors that start MSBuild",
        _OPENED,
        "reported",
    ),
    *entries(
        "*.csproj *.fsproj *.vbproj",
        "editors that start MSBuild",
        _OPENED,
        "reported",
        says=_MSBUILD,
    ),
    *entries("pom.xml", "editors that import Maven builds", _OPENED, "reported", says=_MAVEN),
    *entries("*.sbt build.sc build.mill .sbtopts .jvmopts .bloop", "Metals", _OPENED, "reported"),
    *entries(
        "eslint.config.js eslint.config.mjs eslint.config.cjs eslint.config.ts eslint.config.mts "
        "eslint.config.cts .eslintrc .eslintrc.js .eslintrc.cjs .eslintrc.json .eslintrc.yml "
        ".eslintrc.yaml babel.config.js babel.config.cjs babel.config.mjs babel.config.cts "
        "babel.config.json .babelrc .babelrc.js .babelrc.cjs .babelrc.mjs .babelrc.json",
        "ESLint in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        ".prettierrc .prettierrc.json .prettierrc.yml .prettierrc.yaml .prettierrc.toml "
        ".prettierrc.json5 .prettierrc.js .prettierrc.mjs .prettierrc.cjs .prettierrc.ts "
        ".prettierrc.mts .prettierrc.cts prettier.config.js prettier.config.mjs "
        "prettier.config.cjs prettier.config.ts prettier.config.mts prettier.config.cts",
        "Prettier in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        ".stylelintrc .stylelintrc.json .stylelintrc.yml .stylelintrc.yaml .stylelintrc.js "
        ".stylelintrc.cjs .stylelintrc.mjs "
        "stylelint.config.js stylelint.config.cjs stylelint.config.mjs",
        "Stylelint in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        "tailwind.config.js tailwind.config.cjs tailwind.config.mjs tailwind.config.ts",
        "Tailwind CSS in editors",
        _OPENED,
        "reported",
    ),
    *entries("svelte.config.js svelte.config.ts", "Svelte in editors", _OPENED, "reported"),
    *entries(
        "vitest.config.js vitest.config.mjs vitest.config.cjs vitest.config.ts vitest.config.mts "
        "vitest.config.cts vitest.workspace.js vitest.workspace.ts vitest.workspace.json "
        "vite.config.js vite.config.mjs vite.config.cjs vite.config.ts vite.config.mts "
        "vite.config.cts postcss.config.js postcss.config.mjs postcss.config.cjs "
        "postcss.config.ts .postcssrc .postcssrc.json .postcssrc.js .postcssrc.cjs "
        "playwright.config.js playwright.config.mjs playwright.config.ts playwright.config.mts "
        "jest.config.js jest.config.mjs jest.config.cjs jest.config.ts jest.config.json "
        ".mocharc.js .mocharc.cjs .mocharc.json .mocharc.jsonc .mocharc.yml .mocharc.yaml",
        "explorers of tests in editors",
        _OPENED,
        "reported",
    ),
    *entries("nx.json", "Nx Console", _OPENED, "reported"),
    *entries(
        "hardhat.config.js hardhat.config.cjs hardhat.config.ts",
        "Hardhat in editors",
        _OPENED,
        "reported",
    ),
    *entries(
        "graphql.config.js graphql.config.mjs graphql.config.cjs graphql.config.ts .graphqlrc.js "
        ".graphqlrc.mjs .graphqlrc.cjs .graphqlrc.ts",
        "GraphQL in editors",
        _OPENED,
        "reported",
    ),
    *entries(
        "cspell.config.js cspell.config.cjs cspell.config.mjs .markdownlint.cjs "
        ".markdownlint.mjs .markdownlint-cli2.cjs .markdownlint-cli2.mjs "
        ".markdownlint-cli2.jsonc .markdownlint-cli2.yaml .remarkrc .remarkrc.json "
        ".remarkrc.yml .remarkrc.yaml .remarkrc.js .remarkrc.mjs .remarkrc.cjs .textlintrc "
        ".textlintrc.json .textlintrc.yml .textlintrc.js",
        "checkers of text in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        ".pylintrc pylintrc .pylintrc.toml pylintrc.toml .flake8 mypy.ini .mypy.ini pyrefly.toml "
        ".pyre_configuration .pyre_configuration.local",
        "checkers of Python in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        "pyproject.toml setup.cfg tox.ini",
        "checkers of Python in editors",
        _FILE_OPENED,
        "reported",
        says=_PYTHON_CHECKERS,
    ),
    *entries(
        ".php-cs-fixer.php .php-cs-fixer.dist.php phpstan.neon phpstan.neon.dist "
        "phpstan.dist.neon psalm.xml psalm.xml.dist phpcs.xml phpcs.xml.dist .phpcs.xml "
        ".phpcs.xml.dist .phpactor.json .phpactor.yml",
        "checkers of PHP in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(
        ".golangci.yml .golangci.yaml .golangci.toml .golangci.json .oxlintrc.json "
        ".template-lintrc.js .tflint.hcl .checkov.yml .checkov.yaml .ansible-lint "
        ".config/ansible-lint.yml",
        "other checkers in editors",
        _FILE_OPENED,
        "reported",
    ),
    *entries(".latexmkrc latexmkrc", "latexmk, also from editors", _FILE_OPENED, "reported"),
    *entries(
        ".gdbinit .lldbinit .pdbrc .pdbrc.py .byebugrc .rdbgrc .perldb",
        "debuggers",
        _STARTED,
        "reported",
    ),
    *entries(".github/hooks .github/copilot", "Copilot", _STARTED, "reported"),
    *entries(".gitmodules", "git", "when it updates submodules", "reported"),
    *entries(".lfsconfig", "Git LFS", "when it sends logins", "reported"),
    # What others obey: git without running it, build servers, models.
    *entries(".gitattributes", "git", _CALLED, "allowed"),
    *entries(
        ".gitlab-ci.yml .circleci .github/workflows .github/actions .forgejo .gitea .woodpecker "
        ".woodpecker.yml .drone.yml .buildkite .travis.yml azure-pipelines.yml "
        "bitbucket-pipelines.yml Jenkinsfile",
        "build servers",
        "once pushed",
        "allowed",
    ),
    *entries(
        ".gitpod.yml .gitpod .codesandbox .stackblitzrc .idx .replit",
        "workspaces in a cloud",
        "once pushed",
        "allowed",
    ),
    *entries(
        "AGENTS.md CLAUDE.md CLAUDE.local.md GEMINI.md .cursorrules .windsurfrules "
        ".github/copilot-instructions.md",
        "agents",
        "as instructions",
        "allowed",
    ),
    *entries(".cargo", "Cargo", _CALLED, "allowed"),
    *entries(".yarn", "Yarn", _CALLED, "allowed"),
)
"""If two entries fit a path, the first counts."""

IN_HOME: tuple[Autorun, ...] = (
    *entries(
        ".config/autostart .config/plasma-workspace .config/hypr .config/i3 .config/sway "
        ".config/niri .config/river .config/awesome .config/qtile .config/bspwm .config/sxhkd "
        ".config/openbox .config/waybar .config/polybar .xmonad "
        ".local/share/applications .local/share/dbus-1",
        "the desktop",
        _LOGIN,
    ),
    *entries(".config/systemd .config/environment.d .local/share/systemd", "systemd", _LOGIN),
    *entries(".config/bash", "Bash", _LOGIN),
    *entries(".config/zsh .oh-my-zsh", "Zsh", _LOGIN),
    *entries(".config/fish", "fish", _LOGIN),
    *entries(".config/nushell", "Nushell", _LOGIN),
    *entries(".config/git", "git", "at its next call"),
    *entries(".config/nvim .local/share/nvim .config/vim", "Vim and Neovim", _LOGIN),
    *entries(".config/emacs .emacs.d", "Emacs", _LOGIN),
    *entries(".config/helix", "Helix", _LOGIN),
    *entries(".config/zed", "Zed", _LOGIN),
    *entries(
        ".config/Code/User .config/Code-OSS/User .config/VSCodium/User .config/Cursor/User "
        ".config/Windsurf/User .vscode-server",
        "VS Code and its forks",
        _LOGIN,
    ),
    *entries(".config/tmux", "tmux", _LOGIN),
    *entries(".config/zellij", "Zellij", _LOGIN),
    *entries(
        ".config/alacritty .config/kitty .config/ghostty .config/wezterm .config/foot",
        "the terminal",
        _LOGIN,
    ),
    *entries(".config/starship.toml", "the prompt", "before each command"),
    *entries(".config/mise", "mise", _ENTERED),
    *entries(".config/direnv", "direnv", _ENTERED),
    *entries(".config/nix .config/nixpkgs .config/home-manager", "Nix", "at its next call"),
    *entries(".local/bin bin", "whoever calls a program of that name", "by PATH"),
)
"""Below HOME: of interest where a box begins in one of these, or in a directory that holds one."""
