"""Record what the programs of one launch do in the interpreter.

Files, in reading order:

- `launch_signature.py`: decides which launches are alike.
- `trace.py`: counts accesses and arithmetic of the traced programs.
- `views.py`: which elements of a storage belong to a tensor.
- `shadow_memory.py`: notes for every element which programs loaded and stored it.
- `effects.py`: what a traced launch writes.
- `suspects.py`: finds the programs of a large grid that deserve a trace.
- `program_order.py`: races between the threads of one program.
- `number_log.py`: low precision, infinities and NaN of the followed programs.
- `steps.py`: the statements of one program, with what its variables hold.
- `sanitizer.py`: detects races, out-of-bounds accesses and uninitialised loads.
"""
