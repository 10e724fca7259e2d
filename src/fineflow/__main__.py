"""``python -m fineflow``."""

import sys

from fineflow.cli.main import main

sys.exit(main())
