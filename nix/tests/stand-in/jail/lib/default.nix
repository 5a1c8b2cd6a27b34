# What `jail-nix.lib` is.
#
#   init : pkgs -> jail
#   extend : { pkgs, additionalCombinators?, basePermissions?, bubblewrapPackage? } -> jail
#   jail : name -> package or path -> permissions -> derivation with bin/NAME
#
# Deviates from jail.nix: stricter. Arguments are checked against what jail.nix documents; what it
# lacks is an error here, too; what it has and the layer does not use is an error that says so
# (./combinators/absent.nix). A jail's derivation has no `override` and no manual pages.
let
  extend = import ./jail.nix;
in
{
  inherit extend;
  init = pkgs: extend { inherit pkgs; };
  mkOverlay = throw "the stand-in for jail.nix has no mkOverlay";
}
