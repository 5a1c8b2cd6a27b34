# The runtime closure of paths: closureInfo, writeClosure.
#
# Deviates from nixpkgs: closureInfo has no `registration`.
pkgs:
let
  paths =
    name: roots: destination:
    pkgs.runCommand name
      {
        __structuredAttrs = true;
        exportReferencesGraph.closure = roots;
        nativeBuildInputs = [ pkgs.jq ];
      }
      ''
        mkdir -p "$(dirname "$out${destination}")"
        jq -r '.closure[].path' "$NIX_ATTRS_JSON_FILE" | sort >"$out${destination}"
      '';
in
{
  closureInfo = { rootPaths }: paths "closure-info" rootPaths "/store-paths";
  writeClosure = roots: paths "runtime-deps" roots "";
}
