# The programs for `nix run FLAKE#NAME`.
#
# Type: { default, claudebox } -> { NAME = { type, program, meta } }
#   default, claudebox : from ./packages.nix
{ default, claudebox }:
let
  app = package: name: description: {
    type = "app";
    program = "${package}/bin/${name}";
    meta = { inherit description; };
  };
  nsm = app default "nsm" "Runs code in jailed sessions that are kept ready";
in
{
  inherit nsm;
  default = nsm;
  nsm-mcp = app default "nsm-mcp" "Connects an MCP client to nsm over standard input and output";
  nsm-supervisor = app default "nsm-supervisor" "Keeps the sessions; the other programs start it";
  claudebox = app claudebox "claudebox" claudebox.meta.description;
}
