"""Survey: time operators on cases drawn at random, and say how the times are distributed.

Files, in reading order:

- `drawing.py`: the distribution of cases.
- `subjects.py`: a drawn case as tensors, cost and providers.
- `checking.py`: compares each provider's results with PyTorch's in higher precision.
- `racing.py`: device times of all providers, one after the other in several rounds.
- `surveyor.py`: checks and times one case after the other, in a child process.
- `compiling.py`: compiles the kernels of all cases in parallel processes beforehand.
- `survey_result.py`: the JSON of a survey, written while it grows.
- `summary.py`: quantiles, shares and worst cases by operator.
- `page.py`: terminal tables and HTML page with cumulative curves.
"""
