"""The JAX example as a rank of a gang that a test starts: its digest goes beside the other results."""

import argparse
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "jax" / "train.py"

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
given, flags = parser.parse_known_args()
sys.argv = [str(EXAMPLE), *flags, "--digest", f"{given.out}.digest"]
runpy.run_path(str(EXAMPLE), run_name="__main__")
