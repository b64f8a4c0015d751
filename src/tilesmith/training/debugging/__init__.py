"""A performance-debugging case in six stages: Tiny LLaMA with one real fault at a time, and at last with none.

case.py    what a stage is, and the list of them
small.py   the model and the data that the stages train, and timing that waits
stage_N.py a program with its fault in it; `python stage_N.py` shows the symptom, `--look` what reveals the fault
"""
