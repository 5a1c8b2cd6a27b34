# The system calls that code in jails may make, as a program for the kernel: the same one as for
# jails of the host's own interpreters, made by nsm.seccomp. The Python of the build platform makes
# it, for the processor of the host platform.
#
# Type: { pkgs } -> derivation
{ pkgs }:
pkgs.runCommand "nsm-filter" { } ''
  mkdir nsm
  touch nsm/__init__.py
  cp -r ${../../clients/nsm/seccomp} nsm/seccomp
  PYTHONPATH=$PWD ${pkgs.buildPackages.python3}/bin/python3 -B - <<'END' > $out
  import sys
  from nsm.seccomp import filter_program

  program = filter_program("${pkgs.stdenv.hostPlatform.parsed.cpu.name}")
  assert program, "nsm.seccomp.syscalls has no table for this machine"
  sys.stdout.buffer.write(program)
  END
''
