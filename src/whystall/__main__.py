"""``python -m whystall`` is the command ``whystall``."""

from __future__ import annotations

import sys

from whystall.cli import main

if __name__ == "__main__":
    sys.exit(main())
