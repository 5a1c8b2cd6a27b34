# How an environment becomes jailed programs: the backends by name.
#
# Type: { pkgs, jail, ... } -> { NAME = backend }
#
# A backend has `mkJailedEnv`, `mkSessionJailedEnv` and `mkTemplateJailedEnv` (./jail.nix).
{ pkgs, jail }:
{
  jail = import ./jail.nix { inherit pkgs jail; };
  microvm = import ./microvm.nix { };
}
