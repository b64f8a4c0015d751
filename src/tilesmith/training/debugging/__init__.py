"""A performance-debugging case in six stages: Tiny LLaMA with one real fault at a time, and finally without a fault.

Each stage is a program: `python stage_N.py` shows the symptom, `--reveal` shows the evidence.

Files, in reading order:

- `case.py`: what a stage is, and how to load one.
- `small_model.py`: the model and data of all stages, and timing that waits for the device.
- `stage_1.py`: a wrong initialisation.
- `stage_2.py`: an uncoalesced memory layout.
- `stage_3.py`: timing that does not wait for the device.
- `stage_4.py`: a kernel that computes GEMMs without tiles.
- `stage_5.py`: a kernel without a backward.
- `stage_6.py`: no fault.
"""
