"""Names that count below a home directory."""

from __future__ import annotations

from nsm.autorun.entry import Autorun, entries

_ENTERED = "when a shell enters the directory"
_LOGIN = "at the next login or start"

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
