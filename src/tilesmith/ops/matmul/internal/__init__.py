"""Products for use inside other operators. Each chooses between our kernels and the BLAS.

Files, in reading order:

- `exact_or_blas.py`: a product by our kernels where float32 must be exact, else by the BLAS.
- `sum_of_products.py`: a sum of up to three products.
- `product_into_memory.py`: a product into existing memory.
- `suitability.py`: whether a kernel suits tensors, remembered.
"""
