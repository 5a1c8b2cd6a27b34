# What a command says about its interpreter: which kind it is, and where it wants the code.
#
# Type: String -> String -> { interpreter, stdinMode, interpreter_type }
name: interpreter:
let
  checks = import ./checks.nix;

  words =
    if builtins.isString interpreter then
      builtins.filter (word: builtins.isString word && word != "") (
        builtins.split "[[:space:]]+" interpreter
      )
    else
      [ ];
  program = builtins.baseNameOf (builtins.head words);
  last = builtins.elemAt words (builtins.length words - 1);
  endsIn = letter: builtins.match "-[a-zA-Z]*${letter}" last != null;

  interpreter_type =
    if builtins.match "python[0-9.]*" program != null then
      "python"
    else if program == "bash" || program == "sh" then
      "bash"
    else if program == "node" || program == "nodejs" then
      "node"
    else
      throw "nsm: environment '${name}': interpreter ${checks.shown interpreter} is none that nsm has sessions for: expected a command of python3, bash or node, such as \"bash -s\".";
in
if words == [ ] then
  throw "nsm: environment '${name}': interpreter is ${checks.shown interpreter}: expected a command, such as \"python3 -c\"."
else
  {
    inherit interpreter interpreter_type;
    stdinMode = if endsIn "c" || endsIn "e" then "arg" else "pipe";
  }
