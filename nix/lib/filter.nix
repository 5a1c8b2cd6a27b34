# The system calls that code in jails may make, as a program for the kernel: the same one as for
# jails of the host's own interpreters, made by nsmd.jail.seccomp.
#
# Type: { pkgs } -> derivation
{ pkgs }:
pkgs.runCommand "nsm-filter" { } ''
  mkdir -p nsmd/jail
  touch nsmd/__init__.py nsmd/jail/__init__.py
  cp ${../../supervisor/nsmd/jail/seccomp.py} nsmd/jail/seccomp.py
  cp ${../../supervisor/nsmd/jail/syscalls.py} nsmd/jail/syscalls.py
  PYTHONPATH=$PWD ${pkgs.python3}/bin/python3 -B - <<'END' > $out
  import sys
  from nsmd.jail.seccomp import filter_program

  program = filter_program("${pkgs.stdenv.hostPlatform.parsed.cpu.name}")
  assert program, "nsmd.jail.syscalls has no table for this machine"
  sys.stdout.buffer.write(program)
  END
''
