"""The kernels that Triton compiles for CUDA devices; `_triton` launches them.

Row quantities have the shape (ROWS,), tiles (ROWS, BLOCK).

    layout  <-  arithmetic, summary  <-  reductions  <-  cuts  <-  slots  <-  scores  <-  sets  <-  fixed
"""
