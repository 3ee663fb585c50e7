"""What every test finds: the same environment whoever runs them.

Output is as wide as COLUMNS says; shells and test runners set it or do not.
"""

from __future__ import annotations

import os

os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
