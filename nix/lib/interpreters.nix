# The kinds of interpreter, and the command that `bin/run` passes code to for each.
#
# Type: { TYPE = { interpreter : String, stdinMode : "arg" | "pipe" } }
{
  python = {
    interpreter = "python3 -c";
    stdinMode = "arg";
  };
  bash = {
    interpreter = "bash -s";
    stdinMode = "pipe";
  };
  node = {
    interpreter = "node -e";
    stdinMode = "arg";
  };
}
