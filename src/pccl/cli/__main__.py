"""`python -m pccl.cli`, for whoever has the package but not its script."""

import sys

from pccl.cli import main

sys.exit(main())
