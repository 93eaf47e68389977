"""The compiled kernels of the CPU backend: the built-in scores, close to the cost of reading the logits.

Every built-in score falls as the logit rises, so a row needs a few reductions, a label needs a count of the labels
above it, and a set is a top-m set of which only the candidates are ever ordered.

Reductions of floats run in 16 explicit lanes: their order is written here, not chosen by the compiler, so results
depend neither on the processor's vector width nor on where a function is inlined. Lanes hold logits of one row, or, of
narrow rows and the usual scores, one logit of each of 16 rows. Kernels are serial, release the GIL and allocate
nothing; `_numba` shares out blocks of rows to threads. They are kept on disk until one of the files here changes.

    toolchain  <-  lanes  <-  columns, parts, reductions  <-  memory, parameters  <-  rows  <-  batches
      <-  sets  <-  limits  <-  small  <-  within  <-  entries
"""

from evicp.kernels._compiled.batches import make_batch
from evicp.kernels._compiled.entries import (
    dense_kernel,
    label_kernel,
    likelihood_kernel,
    limit_kernel,
    set_kernel,
    top_kernel,
    uncertainty_kernel,
    widen_kernel,
)
from evicp.kernels._compiled.lanes import LANES
from evicp.kernels._compiled.limits import demands
from evicp.kernels._compiled.parameters import KINDS, Ways, parameters, ways
from evicp.kernels._compiled.sets import make_scratch
from evicp.kernels._compiled.within import make_notes

__all__ = [
    "KINDS",
    "LANES",
    "Ways",
    "demands",
    "dense_kernel",
    "label_kernel",
    "likelihood_kernel",
    "limit_kernel",
    "make_batch",
    "make_notes",
    "make_scratch",
    "parameters",
    "set_kernel",
    "top_kernel",
    "uncertainty_kernel",
    "ways",
    "widen_kernel",
]
