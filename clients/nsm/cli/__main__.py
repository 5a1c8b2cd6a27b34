"""`python -m nsm.cli`."""

from __future__ import annotations

import sys

from nsm.cli.main import main

sys.exit(main())
