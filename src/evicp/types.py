"""Names for the types of arrays and of coverages."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

#: What may be asked for: a share of labels between 0 and 1, and several of them.
Coverage = float | Fraction | Decimal | np.floating[Any]
Coverages = Sequence[Coverage] | NDArray[np.floating[Any]]
