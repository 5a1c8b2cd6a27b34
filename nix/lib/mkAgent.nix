# What runs sessions in an environment: the Python that does, and the agent and the template
# compiled for it (half of an agent's start is compiling).
#
# Type: { pkgs } -> { name : String, interpreter_type : String, preload : [String], env : derivation }
#         -> derivation
#   out/python    path of the environment's own python3, or of a bundled one
#   out/program   path of the environment's interpreter, valid in its jail
#   out/agent.pyc, out/template.pyc
#
# The environment's own Python is taken where there is one, so that sessions can import its
# packages. Only the build can tell: what packages hold is not known before they are built. Its path
# is written down, since through a link of ours a virtual environment would not find its packages.
{ pkgs }:
{
  name,
  interpreter_type,
  preload ? [ ],
  env,
}:
let
  inherit (pkgs) lib;

  bundled = import ./python.nix { inherit pkgs; };

  command =
    {
      python = "python3";
      bash = "bash";
      node = "node";
    }
    .${interpreter_type};
in
pkgs.runCommand "nsm-agent-${name}" { passthru = { inherit env; }; } ''
  fail() { echo "nsm: environment '${name}': $1" >&2; exit 1; }
  try() { "$1" -I -B ${./compile_agent.py} --check; }

  if [ ! -x ${env}/bin/${command} ] && [ ${command} != bash ]; then
    fail "interpreter_type is ${interpreter_type}, but none of its packages has bin/${command}. Add one to packages, such as pkgs.${
      if interpreter_type == "node" then "nodejs" else "python3"
    }."
  fi

  python=${env}/bin/python3
  if [ ! -x "$python" ] || ! reason=$(try "$python" 2>&1); then
    [ ${interpreter_type} != python ] \
      || fail "its python3 cannot run sessions: ''${reason:-it does not start}"
    python=${bundled}/bin/python3
  fi

  ${lib.optionalString (preload != [ ]) ''
    missing=$("$python" -I -B ${./compile_agent.py} --preload ${lib.escapeShellArgs preload} 2>&1) \
      || fail "preload: its python3 cannot import $missing. Add what has them to packages, such as (pkgs.python3.withPackages (python: [ python.numpy ])), or take them out of preload."
  ''}
  mkdir $out
  echo "$python" > $out/python
  PATH=${env}/bin:${pkgs.bash}/bin "$python" -I -B ${./compile_agent.py} \
    ${../../agent/sandbox_agent.py} ${../../agent/sandbox_template.py} ${command} $out
''
