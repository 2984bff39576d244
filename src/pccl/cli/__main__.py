"""`python -m pccl.cli`, where the package is on the path but its script is not."""

import sys

from pccl.cli import main

sys.exit(main())
