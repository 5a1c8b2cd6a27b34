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
#
# In a cross build nothing of the environment can be run. The build platform's Python compiles for the
# environment's, which has to be the same version; what only the environment's could tell is not checked.
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
  builder = import ./python.nix { pkgs = pkgs.buildPackages; };
  sources = builtins.path {
    name = "nsm-agent";
    path = ../../agent;
    filter = path: _: baseNameOf path != "__pycache__";
  };
  isCross = !(pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform);

  command =
    {
      python = "python3";
      bash = "bash";
      node = "node";
    }
    .${interpreter_type};
  # Each sets `python`, which runs sessions, `compiler`, and `program`, the interpreter to look for.
  native = ''
    try() { "$1" -I -B ${./compile_agent.py} --check; }

    python=${env}/bin/python3
    if [ ! -x "$python" ] || ! reason=$(try "$python" 2>&1); then
      [ ${interpreter_type} != python ] \
        || fail "its python3 cannot run sessions: ''${reason:-it does not start}"
      python=${bundled}/bin/python3
    fi
    compiler=$python program=${command}

    ${lib.optionalString (preload != [ ]) ''
      missing=$("$python" -I -B ${./compile_agent.py} --preload ${lib.escapeShellArgs preload} 2>&1) \
        || fail "preload: its python3 cannot import $missing. Add what has them to packages, such as (pkgs.python3.withPackages (python: [ python.numpy ])), or take them out of preload."
    ''}
  '';
  cross = ''
    python=${bundled}/bin/python3
    # A .pyc file is for one version of Python.
    if [ -x ${env}/bin/python${builder.pythonVersion} ]; then
      python=${env}/bin/python3
    elif [ ${interpreter_type} = python ]; then
      fail "its python3 is not Python ${builder.pythonVersion}, which a cross build compiles for. Take that version, or build on the machine's own platform."
    fi
    compiler=${builder}/bin/python3 program=${env}/bin/${command}
    [ -x "$program" ] || program=${command}
  '';
in
pkgs.runCommand "nsm-agent-${name}" { passthru = { inherit env; }; } ''
  fail() { echo "nsm: environment '${name}': $1" >&2; exit 1; }

  if [ ! -x ${env}/bin/${command} ] && [ ${command} != bash ]; then
    fail "interpreter_type is ${interpreter_type}, but none of its packages has bin/${command}. Add one to packages, such as pkgs.${
      if interpreter_type == "node" then "nodejs" else "python3"
    }."
  fi

  ${if isCross then cross else native}
  mkdir $out
  echo "$python" > $out/python
  PATH=${env}/bin:${pkgs.bash}/bin "$compiler" -I -B ${./compile_agent.py} \
    ${sources} "$program" $out
''
