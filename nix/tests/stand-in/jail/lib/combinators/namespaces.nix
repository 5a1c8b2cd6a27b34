# Namespaces that the jail shares with the host; by default none.
{ check, ... }:
{
  share-ns =
    namespace: state:
    state // { namespaces = state.namespaces ++ [ (check.namespace "share-ns" namespace) ]; };

  # Of use together with `network` alone, as in jail.nix.
  set-hostname = hostname: state: state // { hostname = check.code "set-hostname" hostname; };
}
