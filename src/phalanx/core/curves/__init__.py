"""Metrics as columns: chunks of points, and roll-ups from which a curve of any length is read.

`columns` has the points of one report or of many as arrays; `chunks` writes them as bytes and reads them
back; `rollups` reduces samples to intervals of steps. These modules need numpy, which takes long to
import: a control plane loads them with the first metrics, and ranks and supervisors never do.
"""

from typing import Literal, TypeAlias

Reduce: TypeAlias = Literal["extremes", "mean", "last"]
"""What an interval of steps is shown as."""
