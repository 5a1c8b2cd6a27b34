# Checks of combinators' arguments, by the types that jail.nix documents.
#
#   { NAME = combinator : String -> value -> value }
let
  expect =
    what: isRight: combinator: value:
    if isRight value then
      value
    else
      throw "jail.nix's stand-in: ${combinator} takes ${what}, not a ${builtins.typeOf value}";

  isPackage = value: builtins.isAttrs value && value.type or null == "derivation";
  isFunction = value: builtins.isFunction value || value ? __functor;
in
{
  # What is taken over into the script as it is.
  code = expect "a string" builtins.isString;

  # What is escaped, unless it was made by `noescape`. A package is its path, as everywhere.
  text = expect "a string" (
    value: builtins.isString value || value ? _noescape || isPackage value
  );

  packages = expect "a list of packages" (
    value: builtins.isList value && builtins.all isPackage value
  );
  package = expect "a package" isPackage;
  list = expect "a list" builtins.isList;
  permission = expect "a permission" isFunction;

  namespace = expect "the name of a namespace" (
    value:
    builtins.elem value [
      "cgroup"
      "ipc"
      "net"
      "pid"
      "user"
      "uts"
    ]
  );

  variable = expect "the name of a variable" (
    value: builtins.isString value && builtins.match "[a-zA-Z_][a-zA-Z0-9_]*" value != null
  );
}
