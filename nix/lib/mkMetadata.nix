# What is said about environments to the supervisor.
#
# Type: { artifact : {...} -> attrs; registered : {...} -> attrs; registry : {...} -> attrs }
#
# `artifact`   : metadata.json of an artifact, but for `program`, which its build adds
# `registered` : one environment's entry in NIX_SANDBOX_METADATA
# `registry`   : the whole of NIX_SANDBOX_METADATA
let
  # Without what is not there: metadata has no nulls.
  present =
    attrs:
    builtins.removeAttrs attrs (
      builtins.filter (key: attrs.${key} == null || attrs.${key} == [ ]) (builtins.attrNames attrs)
    );
in
{
  artifact =
    {
      name,
      interpreter_type,
      timeout_seconds,
      memory_mb,
      description ? null,
      preload ? [ ],
    }:
    present {
      schema = 1;
      template = 2;
      # What ../backends/wrapper.bash takes beyond the first programs of this schema.
      takes = [
        "policy"
        "variables"
      ];
      inherit
        name
        interpreter_type
        timeout_seconds
        memory_mb
        description
        preload
        ;
    };

  registered =
    {
      artifact,
      backend,
      interpreter_type,
      timeout_seconds,
      memory_mb,
    }:
    {
      inherit
        backend
        interpreter_type
        timeout_seconds
        memory_mb
        ;
      # Its metadata.json says the rest.
      artifact = "${artifact}";
      exec = "${artifact}/bin/run";
      session_exec = "${artifact}/bin/session-run";
    };

  registry =
    {
      environments,
      session ? null,
      project ? null,
    }:
    { inherit environments; } // present { inherit session project; };
}
