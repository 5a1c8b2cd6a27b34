# What a box made by the package has on its PATH, and what must not be on it.
#
# Type: { pkgs, comma } -> { tools : [derivation]; forbidden : [String] }
#   comma     : the program `,` with its database
#   forbidden : patterns of programs' names, those of nsmbox.host.program_links.KEYS; tests/nix compares
{ pkgs, comma }:
{
  # Earlier ones go first. Programs that work on their own: what hands out keys or opens other
  # machines is left out, and so is all that could be fetched with `nix shell` or `,` instead.
  tools = [
    pkgs.bashInteractive
    pkgs.coreutils
    pkgs.gnugrep
    pkgs.gnused
    pkgs.gawk
    pkgs.findutils
    pkgs.diffutils
    pkgs.gnupatch
    pkgs.gnutar
    pkgs.gzip
    pkgs.xz
    pkgs.unzip
    pkgs.which
    pkgs.file
    pkgs.less
    pkgs.procps
    pkgs.git
    pkgs.ripgrep
    pkgs.fd
    pkgs.jq
    pkgs.curl
    pkgs.nodejs
    pkgs.python3
    pkgs.nix
    comma
  ];

  forbidden = [
    "gpg*"
    "ssh*"
    "scp"
    "sftp"
    "slogin"
    "dirmngr*"
    "pinentry*"
    "kbxutil"
    "keyboxd"
    "age"
    "age-*"
    "agenix"
    "rage"
    "rage-*"
    "tailscale*"
  ];
}
