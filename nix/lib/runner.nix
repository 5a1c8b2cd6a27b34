# What runs in the jail of `bin/run`: the interpreter, with the code from standard input.
#
# It is PID 1, so it waits for the interpreter instead of becoming it: signals would have no effect
# on that. What the shell itself says of one that a signal ends is nobody's output.
#
# Type: { pkgs } -> { name : String, interpreter : String, stdinMode : "arg" | "pipe" } -> derivation
{ pkgs }:
{
  name,
  interpreter,
  stdinMode,
}:
let
  inherit (pkgs) lib;

  words = builtins.filter (word: builtins.isString word && word != "") (
    builtins.split "[[:space:]]+" interpreter
  );
  command =
    if words == [ ] then
      throw "nsm: environment '${name}': its interpreter is empty. Name a command, such as \"bash -s\"."
    else
      lib.escapeShellArgs words;

  modes = {
    # The kernel takes no argument of 128 KiB or more (MAX_ARG_STRLEN of linux/binfmts.h). `head`
    # reads one byte past that, so that code without end is refused, too.
    arg = ''
      LC_ALL=C
      code=$(${pkgs.coreutils}/bin/head -c 131072; printf .)
      code=''${code%.}
      if [ "''${#code}" -ge 131072 ]; then
        echo "nsm: the code is longer than 128 KiB, and here it is passed as one argument, which" \
          "the kernel limits to that. Write it to a file and run the file, or use a session." >&2
        exit 64
      fi
      unset LC_ALL
      case $code in -*) code=$'\n'$code ;; esac # not an option
      exec 3>&2 2>/dev/null
      ${command} "$code" </dev/null 2>&3 3>&-
      exit "$?"
    '';
    pipe = ''
      exec 3>&2 2>/dev/null
      ${command} 2>&3 3>&-
      exit "$?"
    '';
  };
in
pkgs.writeShellScriptBin "runner-${name}" (
  modes.${stdinMode}
    or (throw "nsm: environment '${name}': stdinMode is '${toString stdinMode}': expected arg or pipe.")
)
