# Checks of what users write. Each gives the value back or throws what is wrong and what to do. The
# supervisor has the same bounds for artifacts (nsmd.environments.artifacts.metadata), so what is built is taken.
#
# Type: { NAME = environment : String -> value -> value }
let
  interpreters = import ./interpreters.nix;

  listed = names: builtins.concatStringsSep ", " names;

  # A value as a person would write it; never forces what cannot be shown.
  shown =
    value:
    if
      builtins.isString value
      || builtins.isInt value
      || builtins.isFloat value
      || builtins.isBool value
      || value == null
    then
      builtins.toJSON value
    else
      "a ${builtins.typeOf value}";

  # nsmd.model.settings.MAX_SECONDS, MAX_MEGABYTES
  maxSeconds = 366 * 86400;
  maxMegabytes = 1024 * 1024;

  number =
    {
      key,
      what,
      max,
      fractions,
    }:
    environment: value:
    if
      (builtins.isInt value || (fractions && builtins.isFloat value)) && value > 0 && value <= max
    then
      value
    else
      throw "nsm: environment '${environment}': ${key} is ${shown value}: expected a ${what} greater than 0, at most ${toString max}.";
in
{
  inherit listed shown;

  # What is called so in a set, or a default; a user may have written anything as its name.
  #
  # Type: attrs -> value -> value -> value
  pick =
    set: name: default:
    if builtins.isString name then set.${name} or default else default;

  # A name ends up in paths and messages, and is what models type. Type: value -> String
  name =
    value:
    if
      builtins.isString value
      && builtins.match "[a-z0-9][a-z0-9-]*" value != null
      && builtins.stringLength value <= 64
    then
      value
    else
      throw "nsm: environment name ${shown value}: expected up to 64 lower-case letters, digits and '-', beginning with a letter or digit, such as \"data-science\".";

  interpreterType =
    environment: value:
    if builtins.isString value && interpreters ? ${value} then
      value
    else
      throw "nsm: environment '${environment}': unknown interpreter_type ${shown value}: expected one of ${listed (builtins.attrNames interpreters)}.";

  packages =
    environment: value:
    if
      builtins.isList value && builtins.all (item: builtins.isAttrs item || builtins.isPath item) value
    then
      value
    else
      throw "nsm: environment '${environment}': packages is ${
        if builtins.isList value then "a list with something else than packages in it" else shown value
      }: expected a list of packages, such as [ pkgs.python3 ].";

  timeout = number {
    key = "timeout_seconds";
    what = "number";
    max = maxSeconds;
    fractions = true;
  };

  memory = number {
    key = "memory_mb";
    what = "whole number of MiB";
    max = maxMegabytes;
    fractions = false;
  };

  description =
    environment: value:
    if value == null || (builtins.isString value && builtins.match "[^\n]*" value != null) then
      value
    else
      throw "nsm: environment '${environment}': description is ${shown value}: expected one line of text.";

  # Type: environment : String -> interpreter_type : String -> value -> [String]
  preload =
    environment: interpreter_type: value:
    if
      !(
        builtins.isList value
        && builtins.all (
          item:
          builtins.isString item
          && builtins.match "[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*" item != null
        ) value
        && builtins.length value <= 64
      )
    then
      throw "nsm: environment '${environment}': preload: expected a list of up to 64 names of Python modules, such as [ \"numpy\" ]."
    else if value != [ ] && interpreter_type != "python" then
      throw "nsm: environment '${environment}': preload is for Python environments only. Remove it."
    else
      value;
}
