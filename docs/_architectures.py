"""Writes `architectures.md`, from a tiny model of each architecture of the installed transformers.

`python docs/_architectures.py`, in half a minute; a test fails while the page is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent

if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    from tests.architectures import page

    (DOCS / "architectures.md").write_text(page(), encoding="utf-8")
