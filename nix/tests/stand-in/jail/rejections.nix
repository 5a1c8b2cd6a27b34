# What the stand-in for jail.nix refuses, in the form of nix-unit: whatever the real one lacks, and
# arguments of other types than it documents.
#
# Type: { pkgs } -> tests
{ pkgs }:
let
  jailLib = import ./lib;
  jail = jailLib.init pkgs;

  # Forces the whole script. Type: (combinators -> [Permission]) -> String
  scriptOf = permissions: (jail "name" "/bin/program" permissions).drvPath;

  refused = permissions: msg: {
    expr = scriptOf permissions;
    expectedError = { inherit msg; };
  };
  taken = permissions: {
    expr = builtins.isString (scriptOf permissions);
    expected = true;
  };
in
{
  testNames = {
    expr = builtins.length (builtins.attrNames jail.combinators);
    expected = 58;
  };
  testUnknownCombinator = refused (c: [ c.rw-tmpfs ]) "attribute 'rw-tmpfs' missing";
  testNotHere = refused (c: [ c.network ]) "stand-in for jail.nix has no network yet";
  testUnknownOption = {
    expr = jailLib.extend {
      inherit pkgs;
      permissions = [ ];
    };
    expectedError.msg = "called with unexpected argument 'permissions'";
  };
  testNoPkgs = {
    expr = jailLib.extend { };
    expectedError.msg = "called without required argument 'pkgs'";
  };

  testPermissionsText = refused "readonly" "permissions are a function, a list or null, not a string";
  testPermissionsNone = taken null;
  testPermissionsList = taken [ jail.combinators.no-new-session ];
  testPermissionIsNone = refused (_: [ "readonly" ]) "attempt to call something which is not a function";

  testVariableName = refused (c: [ (c.set-env "A-B" "x") ]) "set-env takes the name of a variable";
  testVariableNumber = refused (c: [ (c.set-env "A" 3) ]) "escape takes a string, not a int";
  testVariable = taken (c: [ (c.set-env "A" "b c") ]);
  testVariableAsCode = taken (c: [ (c.set-env "A" (c.noescape "\"$HOME\"")) ]);
  testRawList = refused (c: [
    (c.unsafe-add-raw-args [ "--dev" ])
  ]) "unsafe-add-raw-args takes a string, not a list";
  testRawEscaped = refused (c: [
    (c.unsafe-add-raw-args (c.noescape "--dev"))
  ]) "unsafe-add-raw-args takes a string, not a set";
  testBindOneArgument = refused (c: [ (c.ro-bind "/a") ]) "gave a lambda instead of the jail's state";
  testBindNumber = refused (c: [ (c.ro-bind "/a" 1) ]) "ro-bind takes a string, not a int";
  testPackages = refused (c: [ (c.add-pkg-deps pkgs.jq) ]) "add-pkg-deps takes a list of packages";
  testPackagesText = refused (c: [
    (c.add-pkg-deps [ "jq" ])
  ]) "add-pkg-deps takes a list of packages";
  testBindPackageText = refused (c: [ (c.bind-pkg "/etc" "/x") ]) "bind-pkg takes a package";
  testNamespace = refused (c: [ (c.share-ns "mount") ]) "share-ns takes the name of a namespace";
  testRuntimeList = refused (c: [ (c.add-runtime [ ]) ]) "add-runtime takes a string, not a list";
  testArgvText = refused (c: [ (c.set-argv "a") ]) "set-argv takes a list, not a string";
  testComposeFunction = refused (c: [ (c.compose c.no-new-session) ]) "compose takes a list, not a lambda";
  testFilterNumber = refused (c: [ (c.add-seccomp 1) ]) "escape takes a string, not a int";
}
