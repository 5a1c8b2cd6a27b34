# The environments of a config.toml, and what the supervisor is to know of them.
#
# Type: { pkgs, mkEnvironment, presets, older } -> { flakes ? { } } -> path
#         -> { drvs, environments, metadata, metadataJson, devShell }
#   presets      : ../environments
#   older        : the same by older names
#   flakes       : { REF = flake }, for REFs of the file; where evaluation is pure, these must be
#                  here, since only locked ones can be fetched: { nixpkgs = inputs.nixpkgs; "." = self; }
#   environments : { NAME = artifact }, each evaluated only when it is asked for
#   drvs         : the artifacts as a list
#   metadata     : for NIX_SANDBOX_METADATA; metadataJson is its text
#   devShell     : of the project, with `[project] use_flake = true`; else null. The supervisor makes
#                  the environment `project` of it (as `nix develop` would), no artifact has it.
{
  pkgs,
  mkEnvironment,
  presets,
  older,
}:
{
  flakes ? { },
}:
file:
let
  inherit (pkgs) lib;
  checks = import ./checks.nix;
  mkMetadata = import ./mkMetadata.nix;
  interpreterOf = import ./interpreterOf.nix;
  findPackage = import ./findPackage.nix {
    inherit lib flakes;
    inherit (pkgs.stdenv.hostPlatform) system;
    directory = builtins.dirOf file;
  };

  config = builtins.fromTOML (builtins.readFile file);
  defaults = config.defaults or { };
  project = config.project or { };
  useFlake = project.use_flake or false;

  known = [
    "backend"
    "description"
    "flake"
    "interpreter"
    "memory_mb"
    "preload"
    "preset"
    "timeout_seconds"
  ];
  # Only the supervisor, which reads the same file, uses these: nothing is built differently. It is
  # not told each time, since the file is right; `nsm config check` says what the supervisor leaves out.
  supervisors = [
    "allow_builds"
    "cpu_weight"
    "devices"
    "env"
    "network"
    "secrets"
  ];

  # An entry with one of these is an environment that the supervisor makes from packages or of an
  # image, without Nix: it is left out here.
  packaged = [
    "image"
    "npm"
    "package_lock"
    "pip"
    "project"
    "requirements"
    "root"
  ];

  # What an entry of [environments] says, with everything that it leaves out.
  #
  # Type: String -> attrs -> arguments of mkEnvironment
  read =
    key: entry:
    let
      name = checks.name key;
      fail = text: throw "nsm: environment '${name}': ${text}";
      all = builtins.sort builtins.lessThan (known ++ supervisors ++ packaged);
      unknown = builtins.filter (word: !(builtins.elem word all)) (builtins.attrNames entry);
      # Most slips are at the end of a word.
      near = builtins.filter (lib.hasPrefix (builtins.substring 0 3 (builtins.head unknown))) all;

      # An entry that has the name of a preset changes that one, as it does for the supervisor.
      isPreset = entry ? preset || (!(entry ? flake) && presets ? ${name});
      wanted = entry.preset or name;
      preset =
        checks.pick (presets // older) wanted (fail (
          "unknown preset ${checks.shown wanted}: expected one of "
          + "${checks.listed (builtins.attrNames presets)}."
        ));

      # A flake's package is used from Bash, if nothing else is said.
      basis =
        if isPreset then
          preset
        else
          {
            interpreter = "bash -s";
            packages = [ (findPackage.package name entry.flake) ];
          };
      # A path alone is a program of the host, which the supervisor starts where there is no Nix.
      isHosts =
        isPreset
        && builtins.isString (entry.interpreter or null)
        && builtins.match "[/~][^[:space:]]*" entry.interpreter != null;
      interpreter =
        if isHosts then null else entry.interpreter or basis.interpreter or null;
    in
    if !(builtins.isAttrs entry) then
      fail "it is ${checks.shown entry}: expected a table, such as [environments.${name}]."
    else if unknown != [ ] then
      fail "unknown ${checks.listed unknown}: expected only ${checks.listed all}${
        lib.optionalString (near != [ ]) "; did you mean ${builtins.head near}?"
      }."
    else if entry ? preset && entry ? flake then
      fail "it has preset and flake. Remove one."
    else if !isPreset && !(entry ? flake) then
      fail "it has neither preset nor flake. Add preset = \"python\" (or ${
        checks.listed (builtins.attrNames presets)
      }), or flake = \"REF#attribute\"."
    else if name == "project" && useFlake then
      fail "[project] use_flake makes an environment of that name. Rename this one, or remove use_flake."
    else
      {
        inherit name;
        inherit (basis) packages;
        timeout_seconds = entry.timeout_seconds or defaults.timeout_seconds or 30;
        memory_mb = entry.memory_mb or defaults.memory_mb or 512;
        description = entry.description or basis.description or null;
        preload = entry.preload or [ ];
        backend = entry.backend or "jail";
      }
      // (
        if interpreter == null then
          { inherit (basis) interpreter_type; }
        else
          interpreterOf name interpreter
      );

  isPackaged = entry: builtins.isAttrs entry && builtins.any (key: entry ? ${key}) packaged;

  entries =
    let
      given = config.environments or { };
    in
    if builtins.isAttrs given then
      lib.mapAttrs read (lib.filterAttrs (_: entry: !isPackaged entry) given)
    else
      throw "nsm: environments is ${checks.shown given}: expected tables, such as [environments.python].";
  environments = lib.mapAttrs (_: mkEnvironment) entries;

  metadata = mkMetadata.registry {
    environments = lib.mapAttrs (
      name: entry:
      mkMetadata.registered {
        artifact = environments.${name};
        inherit (entry)
          backend
          interpreter_type
          timeout_seconds
          memory_mb
          ;
      }
    ) entries;
    session = config.session or null;
    project =
      if useFlake then
        {
          use_flake = true;
          inherit_env = project.inherit_env.vars or [ ];
        }
      else
        null;
  };
in
{
  inherit environments metadata;
  drvs = builtins.attrValues environments;
  metadataJson = builtins.toJSON metadata;
  devShell = if useFlake then findPackage.devShell (project.path or ".") else null;
}
