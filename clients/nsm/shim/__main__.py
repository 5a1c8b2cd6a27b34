"""`python -m nsm.shim`."""

from __future__ import annotations

import sys

from nsm.shim import main

sys.exit(main())
