# The place of a backend that runs environments in small virtual machines. It is not there yet.
#
# Type: { ... } -> backend
{ ... }:
let
  notYet =
    { name, ... }:
    throw (
      "nsm: environment '${name}': the microvm backend is not there yet. Leave `backend` out, or "
      + "set it to \"jail\"."
    );
in
{
  mkJailedEnv = notYet;
  mkSessionJailedEnv = notYet;
  mkTemplateJailedEnv = notYet;
}
