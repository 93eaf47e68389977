"""The kernels that Triton compiles for CUDA devices; `_triton` launches them.

Row quantities have the shape (ROWS,), tiles (ROWS, BLOCK / WIDTH, WIDTH).

    layout  <-  arithmetic, counts, summary  <-  reductions  <-  cuts  <-  slots  <-  scores  <-  sets  <-  fixed
    slots  <-  split        fixed  <-  crowded
"""
