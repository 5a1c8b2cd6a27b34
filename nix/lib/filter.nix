# The system calls that code in jails may make, as a program for the kernel: the same one as for
# jails of the host's own interpreters, made by nsm.jail.seccomp. The Python of the build platform
# makes it, for the processor of the host platform.
#
# Type: { pkgs } -> derivation
{ pkgs }:
pkgs.runCommand "nsm-filter" { } ''
  mkdir -p nsm/jail
  touch nsm/__init__.py nsm/jail/__init__.py
  cp ${../../clients/nsm/dataclass.py} nsm/dataclass.py
  cp -r ${../../clients/nsm/jail/seccomp} nsm/jail/seccomp
  PYTHONPATH=$PWD ${pkgs.buildPackages.python3}/bin/python3 -B - <<'END' > $out
  import sys
  from nsm.jail.seccomp import filter_program

  program = filter_program("${pkgs.stdenv.hostPlatform.parsed.cpu.name}")
  assert program, "nsm.jail.seccomp.syscalls has no table for this machine"
  sys.stdout.buffer.write(program)
  END
''
