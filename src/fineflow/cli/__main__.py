"""``python -m fineflow.cli``."""

import sys

from fineflow.cli.main import main

sys.exit(main())
