"""Times on a GPU that a candidate cannot fool.

Files, in reading order:

- `fresh.py`: new inputs for every replay, the same in the judge's process and in the timing process.
- `clock.py`: times replays, with new inputs before each.
- `gpu_turns.py`: one clock at a time on a GPU.
- `device_sets.py`: a tape on several input sets of a device.
- `host_stopwatch.py`: a stopwatch for machines without a GPU.
- `worker.py`: the timing process: answers the judge's requests.
- `timed.py`: one candidate's launches on the GPU: outputs compared, replays timed.
- `reference_time.py`: the time of the task's definition, in the judge's process.
- `gpu_stage.py`: from a candidate to what the GPU shows.
"""
