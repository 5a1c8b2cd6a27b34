# As much of the module system, which the stand-in for nixpkgs lacks, as lets a module of ours say
# what it defines. Types are not checked; by hand, the modules were evaluated with
# those of NixOS 25.05 and home-manager of August 2026.
#
# Type: { pkgs } -> { lib, pkgs }
{ pkgs }:
{
  lib = pkgs.lib // {
    allUnique =
      list:
      builtins.all (each: builtins.length (builtins.filter (other: other == each) list) == 1) list;
    literalExpression = text: text;
    mkEnableOption = description: { inherit description; };
    mkIf = condition: content: if condition then content else { };
    mkOption = option: option;
    types = {
      enum = values: { inherit values; };
      listOf = type: { inherit type; };
      package = { };
    };
  };

  # TOML of a table of tables of numbers and texts is all that is needed.
  pkgs = pkgs // {
    formats.toml = _: {
      type = { };
      generate =
        name: settings:
        let
          line = key: value: "${key} = ${builtins.toJSON value}\n";
          table =
            key: values: "[${key}]\n" + pkgs.lib.concatStrings (pkgs.lib.mapAttrsToList line values);
        in
        pkgs.writeText name (pkgs.lib.concatStrings (pkgs.lib.mapAttrsToList table settings));
    };
  };
}
