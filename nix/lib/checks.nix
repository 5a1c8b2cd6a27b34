# Checks of what users write. Each gives the value back or throws what is wrong and what to do.
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

  positive =
    key: environment: value:
    if (builtins.isInt value || builtins.isFloat value) && value > 0 then
      value
    else
      throw "nsm: environment '${environment}': ${key} is ${shown value}: expected a number greater than 0.";

  whole =
    key: environment: value:
    if builtins.isInt value then
      positive key environment value
    else
      throw "nsm: environment '${environment}': ${key} is ${shown value}: expected a whole number greater than 0.";
in
{
  inherit listed shown;

  # A name ends up in paths and messages, and is what models type. Type: value -> String
  name =
    value:
    if builtins.isString value && builtins.match "[a-z0-9][a-z0-9-]*" value != null then
      value
    else
      throw "nsm: environment name ${shown value}: expected lower-case letters, digits and '-', beginning with a letter or digit, such as \"data-science\".";

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

  timeout = positive "timeout_seconds";
  memory = whole "memory_mb";

  description =
    environment: value:
    if value == null || (builtins.isString value && builtins.match "[^\n]*" value != null) then
      value
    else
      throw "nsm: environment '${environment}': description is ${shown value}: expected one line of text.";

  preload =
    environment: value:
    if
      builtins.isList value
      && builtins.all (
        item:
        builtins.isString item
        && builtins.match "[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*" item != null
      ) value
    then
      value
    else
      throw "nsm: environment '${environment}': preload: expected a list of names of Python modules, such as [ \"numpy\" ].";
}
