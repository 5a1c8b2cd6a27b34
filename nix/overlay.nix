# nsm in a nixpkgs: `pkgs.nsm` with the presets, `pkgs.claudebox`, and `pkgs.nsm-lib` to make
# sandboxes with.
#
# Type: { libraryFor, packagesFor } -> final -> prev -> attrs
{ libraryFor, packagesFor }:
final: _:
let
  library = libraryFor final;
  packages = packagesFor final;
in
{
  nsm = packages.default;
  inherit (packages) claudebox;
  nsm-lib = {
    inherit (library) fromToml mkSandbox;
    presets = library.presets // library.olderPresets;
  };
}
