"""An interpreter of Gluon: layouts have no effect, memory is numpy arrays, mbarriers and partitions are followed.

Files, in reading order:

- `order.py`: partitions and asynchronous operations, and which are known to be over.
- `shared_memory.py`: allocations, views of them, and accesses that no wait orders.
- `barriers.py`: mbarriers.
- `partitions.py`: the threads behind `warp_specialize`.
- `machine.py`: what the operations of one program share.
- `values.py`: operations on values and on shared memory.
- `copies.py`: TMA, `cp.async` and mbarriers, as kernels call them.
- `products.py`: tensor cores and tensor memory.
- `language.py`: the modules of `gluon.language`, bound to all of the above.
"""
