"""The chapters of `tilesmith tour`.

Files, in reading order:

- `chapter.py`: what a chapter is.
- `contents.py`: all chapters in order; the machine, checks, compiling, timing.
- `inspection.py`: the chapter on `tilesmith inspect`.
- `lanes_picture.py`: the picture that opens the page.
- `training.py`: the chapter on training a model.
- `hugging_face.py`: on a GPU, the step of a whole Llama beside transformers.
"""
