"""Choice of the line that is shown first of a failed nix run: real messages of several versions."""

from __future__ import annotations

import pytest

from nsmd.environments.nix.program import NixExitError, cause

DRV = "/nix/store/smnmgw05pgxsqslwhawq24y8vf43d8zq-thing.drv"
TOP = "/nix/store/2m1lg4m811iiadr7b3jlz9qm325d2maz-top.drv"
BUILDER_2_18 = f"""\
error: builder for '{DRV}' failed with exit code 2;
       last 4 log lines:
       > compiling
       > error: linker `cc` not found
       > make: *** [all] Error 1
       > leaving
       For full logs, run 'nix log {DRV}'.
error: 1 dependencies of derivation '{TOP}' failed to build"""
BUILDER_2_31 = f"""\
error: Cannot build '{DRV}'.
       Reason: builder failed with exit code 1.
       Output paths:
         /nix/store/0v3cl9l9bfz5g4m5kzqrlsvcjcpslbvn-thing
       Last 2 log lines:
       > ModuleNotFoundError: No module named 'setuptools'
       > done
       For full logs, run:
         nix log {DRV}
error: Cannot build '{TOP}'.
       Reason: 1 dependency failed.
       Output paths:
         /nix/store/1v3cl9l9bfz5g4m5kzqrlsvcjcpslbvn-top
error: Build failed due to failed dependency"""
TRACE_2_18 = """\
error:
       … while calling the 'derivationStrict' builtin
         at <nix/derivation-internal.nix>:9:12:
            8|
            9|   strict = derivationStrict drvAttrs;
             |            ^
       … while evaluating attribute 'text'

       error: attribute 'missing' missing
       at /nix/store/l30fqclg27h2bm8lmm2hb3jpmxxin3qa-source/flake.nix:4:54:
            4|   e = f y.missing;
             |       ^"""
HASH = f"""\
error: hash mismatch in fixed-output derivation '{DRV}':
         specified: sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
            got:    sha256-1mvkrnKgaGxRyN4HePh0a6wtTs8vr5jmg0qCVyAzkEM=
error: 1 dependencies of derivation '{TOP}' failed to build"""

TABLE = [
    pytest.param(
        BUILDER_2_18,
        [],
        "error: building thing failed: linker `cc` not found",
        id="a builder's error among its last lines",
    ),
    pytest.param(
        BUILDER_2_31,
        [],
        "error: building thing failed: ModuleNotFoundError: No module named 'setuptools'",
        id="the same in newer words",
    ),
    pytest.param(
        f"error: builder for '{DRV}' failed with exit code 1",
        [
            f"building '{DRV}'",
            "other> error: not this one",
            "thing> error: unable to download 'https://x': Couldn't resolve host name (6)",
            f"error: builder for '{DRV}' failed with exit code 1",
        ],
        "error: building thing failed: unable to download 'https://x': "
        "Couldn't resolve host name (6)",
        id="a builder's error in the log only (2.8)",
    ),
    pytest.param(
        f"error: builder for '{DRV}' failed with exit code 1",
        ["thing> nsm: environment 'x': preload: its python3 cannot import numpy."],
        "error: building thing failed: nsm: environment 'x': preload: its python3 cannot import "
        "numpy.",
        id="a builder that does not say error",
    ),
    pytest.param(
        f"error: builder for '{DRV}' failed with exit code 1",
        [],
        f"error: builder for '{DRV}' failed with exit code 1",
        id="a builder that said nothing",
    ),
    pytest.param(TRACE_2_18, [], "error: attribute 'missing' missing", id="evaluation with trace"),
    pytest.param(
        "error: attribute 'missing' missing\n       at /x/flake.nix:4:54:\n   3| { a = 1;",
        [],
        "error: attribute 'missing' missing",
        id="evaluation (2.8)",
    ),
    pytest.param(
        HASH,
        [],
        f"error: hash mismatch in fixed-output derivation '{DRV}': specified: "
        "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=, got: "
        "sha256-1mvkrnKgaGxRyN4HePh0a6wtTs8vr5jmg0qCVyAzkEM=",
        id="hash mismatch",
    ),
    pytest.param(
        "error: flake 'path:/x' does not provide attribute 'packages.x86_64-linux.scince', "
        "'legacyPackages.x86_64-linux.scince' or 'scince'\n       Did you mean science?",
        [],
        "error: flake 'path:/x' does not provide attribute 'packages.x86_64-linux.scince', "
        "'legacyPackages.x86_64-linux.scince' or 'scince'. Did you mean science?",
        id="missing attribute",
    ),
    pytest.param(
        "error:\n       … while updating the flake input 'nixpkgs'\n\n"
        "       error: unable to download 'https://api.github.com/x': Could not resolve host: "
        "api.github.com (6)\n       warning: you can disable this",
        ["warning: error: unable to download 'https://api.github.com/x'; retrying in 281 ms"],
        "error: unable to download 'https://api.github.com/x': Could not resolve host: "
        "api.github.com (6)",
        id="network down",
    ),
    pytest.param(
        "trace: hm\nerror: evaluation aborted with the following error message: 'stop here'",
        [],
        "error: evaluation aborted with the following error message: 'stop here'",
        id="abort after a trace",
    ),
    pytest.param("", ["warning: dirty"], "", id="no error at all"),
]


@pytest.mark.parametrize(("error", "tail", "expected"), TABLE)
def test_the_cause(error: str, tail: list[str], expected: str) -> None:
    assert cause(error, tail) == expected


def test_a_failure_leads_with_its_cause() -> None:
    failed = NixExitError("nix build", 1, error=BUILDER_2_18, tail=["thing> leaving"])
    first, *rest = failed.message.splitlines()
    what = "`nix build` failed (exit code 1)"
    assert first == f"{what}: error: building thing failed: linker `cc` not found"
    assert rest[0] == f"error: builder for '{DRV}' failed with exit code 2;"
    assert not any("For full logs" in line for line in rest)
    short = NixExitError("nix build", 1, error="error: no", tail=["error: no"])
    assert short.message == "`nix build` failed (exit code 1): error: no"
