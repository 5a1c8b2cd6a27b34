# PATH of boxes, with more packages on it: a derivation that the tests build.
#
# Type: { nixpkgs, jailLib, extraTools : pkgs -> [derivation] } -> derivation
{
  nixpkgs,
  jailLib,
  extraTools,
}:
let
  pkgs = import nixpkgs { system = "x86_64-linux"; };
  own = import ../packages.nix {
    inherit pkgs;
    library = import ../lib { inherit pkgs jailLib; };
    comma = pkgs.jq;
  };
in
(own.claudebox.override { extraTools = extraTools pkgs; }).path
