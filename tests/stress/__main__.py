"""`python -m tests.stress`."""

import sys

from tests.stress.command import main

sys.exit(main())
