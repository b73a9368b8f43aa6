"""One fold of a cross-validation, chosen by its index in an array."""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--fold", type=int, required=True)
parser.add_argument("--of", type=int, required=True)
args = parser.parse_args()
held_out = [sample for sample in range(20) if sample % args.of == args.fold]
print(f"array {os.environ.get('PHALANX_ARRAY', 'none')}, fold {args.fold}: holds out {held_out}")
