# nsm in a nixpkgs: `pkgs.nsm` with the presets, and `pkgs.nsm-lib` to make sandboxes with.
#
# Type: { libraryFor, packagesFor } -> final -> prev -> attrs
{ libraryFor, packagesFor }:
final: _:
let
  library = libraryFor final;
in
{
  nsm = (packagesFor final).default;
  nsm-lib = { inherit (library) fromToml mkSandbox presets; };
}
