# lib.meta and lib.customisation: programs of packages, and arguments that can be overridden.
let
  inherit (import ./attrsets.nix) getBin;
in
rec {
  getExe =
    package:
    getExe' package (
      package.meta.mainProgram or (throw "getExe: ${package.name or "package"} has no meta.mainProgram")
    );
  getExe' =
    package: program:
    if builtins.match ".*/.*" program != null then
      throw "getExe': ${program} must be a name without /"
    else
      "${getBin package}/bin/${program}";

  meta = {
    inherit getExe getExe';
  };

  makeOverridable =
    function: arguments:
    let
      result = function arguments;
    in
    if builtins.isAttrs result then
      result
      // {
        override =
          new: makeOverridable function (arguments // (if builtins.isFunction new then new arguments else new));
      }
    else
      result;

  callPackageWith =
    available: file: given:
    let
      function = if builtins.isFunction file then file else import file;
    in
    makeOverridable function (builtins.intersectAttrs (builtins.functionArgs function) available // given);

  addMetaAttrs = attributes: package: package // { meta = (package.meta or { }) // attributes; };
}
