# a package with relative imports and a data file
from .host import softmax

__all__ = ["softmax"]
