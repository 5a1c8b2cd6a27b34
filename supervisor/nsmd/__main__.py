"""`python -m nsmd`: how clients start the supervisor, whatever PATH they have."""

import sys

from nsmd.app.main import main

if __name__ == "__main__":
    sys.exit(main())
