"""Which kernel computes a product, with which tiles. Every kernel is a form; the planner asks a list of them in order.

Files, in reading order:

- `product.py`: puts a product on a plan, and the sum of its partial products.
- `alignment.py`: copies operands that TMA cannot walk, where that pays.
- `choose.py`: the list of forms, and how one is chosen.
- `problem.py`: a product and its epilogue, and the facts that the choice depends on.
- `tile_times.py`: predicts the time of each tile size.
- `form.py`: what every form and every config has.
- `by_pointers.py`: forms by plain pointers, for any GPU.
- `by_tma.py`: forms by TMA.
- `half_on_hopper.py`: the form for half precision that stores a tile while it multiplies the next.
- `half_tiles.py`: the form for half precision with tiles of many sizes, and the choice of its tiles.
- `exactness.py`: which Hopper kernels can multiply exact float32, and when splitting in memory pays.
- `exact_on_hopper.py`: forms for exact float32 in Gluon.
"""
