"""`python -m pccl`: the same as the command `pccl`, where its script is not on the path."""

import sys

from pccl.cli import main

sys.exit(main())
