"""Lets the tests here import the modules beside them (pytest's importlib mode adds no folder to the path)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
