"""Training of the models: data with a known best loss, runs, checkpoints, several processes, and reports.

Files, in reading order:

- `data/`: token and chain data, and the tasks that pair a model with its data.
- `running/`: a training run: its steps, its processes, its checkpoints, and its profile.
- `results/`: parity of a model's versions, comparisons of runs, and their reports.
- `proof/`: `tilesmith prove`, a Hugging Face model trained patched and not.
- `debugging/`: the six programs of `tilesmith debug llama`.
"""
