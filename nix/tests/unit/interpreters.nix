# Tests of ../../lib/interpreterOf.nix.
let
  interpreterOf = import ../../lib/interpreterOf.nix "x";
  says = interpreter: interpreter_type: stdinMode: {
    expr = interpreterOf interpreter;
    expected = { inherit interpreter interpreter_type stdinMode; };
  };
  fails = interpreter: msg: {
    expr = interpreterOf interpreter;
    expectedError = { inherit msg; };
  };
in
{
  testPython = says "python3 -c" "python" "arg";
  testPythonVersion = says "python3.12 -I -c" "python" "arg";
  testPythonOptions = says "python3 -Ic" "python" "arg";
  testPythonPipe = says "python3 -" "python" "pipe";
  testBash = says "bash -s" "bash" "pipe";
  testBashArgument = says "bash -c" "bash" "arg";
  testNode = says "node -e" "node" "arg";
  testNodePipe = says "node --input-type=module" "node" "pipe";
  testPath = says "/nix/store/x-python3/bin/python3 -c" "python" "arg";
  testSpaces = says "  bash   -s " "bash" "pipe";

  testUnknown = fails "ruby -e" "nsm: environment 'x': interpreter \"ruby -e\" is none that nsm has sessions for: expected a command of python3, bash or node";
  testEmpty = fails " " "nsm: environment 'x': interpreter is \" \": expected a command";
  testNumber = fails 3 "interpreter is 3: expected a command";
}
