"""Says which version of a package it got, and from where."""

import json
import os
import sys

import tinypkg

import phalanx.train  # the library itself can still be imported

with open(f"{os.environ['PROBE_OUT']}.{os.environ['RANK']}", "w") as file:
    found = {"version": tinypkg.VERSION, "prefix": sys.prefix, "library": phalanx.train.__file__}
    json.dump(found, file)
