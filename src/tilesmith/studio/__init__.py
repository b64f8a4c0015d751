"""The studio: a local web app to read a lesson, write the kernel, and see its checks and its picture.

Files, in reading order:

- `guard.py`: who may ask: the token, the Host and Origin headers, the content security policy.
- `kernel_files.py`: the files that the editor may open, read and written with versions.
- `events.py`: messages to all open tabs, and the watch for changes outside the studio.
- `lessons.py`: an exercise and the map of the course as JSON.
- `checks.py`: the thread that checks files in the warm worker.
- `commands.py`: inspect, check, judge and bench of any kernel file, each in its own process.
- `language.py`: names of Triton and CUDA with their documentation, for the editor.
- `classroom.py`: the progress of a class from handed-in reports.
- `app.py`: the routes, and the files of the page in `static/`.
- `server.py`: the socket, the address with its token, and the browser.
"""
