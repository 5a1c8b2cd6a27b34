"""Has Python take what the wrapper of an environment tells it, as nixpkgs' own module does.

The variables are taken away, so that other Pythons started by this one don't take them for theirs.
"""

import os
import site
import sys

_packages = os.environ.pop("NIX_PYTHONPATH", None)
_executable = os.environ.pop("NIX_PYTHONEXECUTABLE", None)
_prefix = os.environ.pop("NIX_PYTHONPREFIX", None)

for _directory in _packages.split(":") if _packages else ():
    site.addsitedir(_directory)
if _executable is not None and "PYTHONEXECUTABLE" not in os.environ:
    sys.executable = _executable
if _prefix is not None:
    sys.prefix = sys.exec_prefix = _prefix
    site.PREFIXES.insert(0, _prefix)
