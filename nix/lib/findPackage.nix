# Packages and dev shells of flakes, by reference.
#
# Type: { lib, flakes, system, directory } ->
#         { package : environment : String -> String -> derivation; devShell : String -> derivation }
#   flakes    : { REF = flake }, looked in before anything is fetched
#   directory : that relative references begin in
{
  lib,
  flakes,
  system,
  directory,
}:
let
  checks = import ./checks.nix;

  # A path of attributes in a set, or null.
  reach =
    path: set:
    builtins.foldl' (
      found: key: if builtins.isAttrs found && found ? ${key} then found.${key} else null
    ) set path;

  # The first of some paths that is there. Each is written as in a message.
  first =
    paths: set:
    builtins.foldl' (
      found: path: if found != null then found else reach (lib.splitString "." path) set
    ) null paths;

  isRelative = ref: ref == "." || ref == ".." || lib.hasPrefix "./" ref || lib.hasPrefix "../" ref;

  # By revision or hash. Where evaluation is pure, Nix fetches nothing else.
  isLocked = ref: builtins.match ".*([0-9a-f]{40}|[?&]narHash=).*" ref != null;
  isPure = !(builtins ? currentSystem);

  # Type: environment : String -> ref : String -> flake
  get =
    environment: ref:
    flakes.${ref} or (
      if isPure && !(isLocked ref) then
        throw (
          "nsm: environment '${environment}': flake ${ref} is in a file that a flake reads, where "
          + "what is fetched has to be locked. Make it an input, and pass it: "
          + "fromToml { flakes = { \"${ref}\" = inputs.NAME; }; }."
          + (if flakes == { } then "" else " Passed are ${checks.listed (builtins.attrNames flakes)}.")
        )
      else
        builtins.addErrorContext "while fetching flake ${ref} of environment '${environment}'" (
          builtins.getFlake (if isRelative ref then "path:${toString directory}/${ref}" else ref)
        )
    );
in
{
  # REF#attribute. Type: String -> String -> derivation
  package =
    environment: reference:
    let
      fail = text: throw "nsm: environment '${environment}': ${text}";
      parts =
        if builtins.isString reference then builtins.match "([^#]+)(#(.*))?" reference else null;
      ref = builtins.elemAt parts 0;
      attribute =
        let
          given = builtins.elemAt parts 2;
        in
        if given == null then "" else given;

      tried =
        if attribute == "" then
          [ "packages.${system}.default" ]
        else if builtins.length (lib.splitString "." attribute) > 1 then
          [ attribute ]
        else
          [
            "packages.${system}.${attribute}"
            "legacyPackages.${system}.${attribute}"
          ];
      found = first tried (get environment ref);
    in
    if parts == null then
      fail "flake is ${checks.shown reference}: expected \"REF#attribute\", such as \"nixpkgs#jq\"."
    else if found == null then
      fail "there is no such package in flake ${ref}. Tried: ${checks.listed tried}."
    else if !(lib.isDerivation found) then
      fail "${reference} is ${checks.shown found}, not a package."
    else
      found;

  # The project's own. Type: String -> derivation
  devShell =
    path:
    let
      ref = if lib.hasPrefix "/" path || isRelative path then path else "./${path}";
      tried = [
        "devShells.${system}.default"
        "devShell.${system}"
      ];
      found = first tried (get "project" ref);
    in
    if found == null then
      throw (
        "nsm: environment 'project': [project] use_flake is set, but the flake in ${path} has no dev "
        + "shell. Tried: ${checks.listed tried}. Add devShells.${system}.default, or remove use_flake."
      )
    else
      found;
}
