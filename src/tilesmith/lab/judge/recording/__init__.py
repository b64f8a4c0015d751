"""In the candidate's process: call the candidate, and write down what it does on the device.

Nothing here decides a verdict. A candidate can change what these modules write down; then the judge replays something
else, and judges that.

Files, in reading order:

- `plain_values.py`: arguments of PyTorch's operators as JSON, and back.
- `compiled_stand_in.py`: what `kernel.warmup` returns where there is no GPU.
- `tape.py`: the launches and PyTorch operators of one call, in order, with the memory they use.
- `candidate_module.py`: load the candidate's files and find its function.
- `circumstances.py`: circumstances of a call that a candidate can ask for.
- `forcing.py`: conditions of a candidate's Python, inverted one at a time.
- `worker.py`: answer the judge's requests.
"""
