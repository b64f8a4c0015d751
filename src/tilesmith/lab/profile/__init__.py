"""Running a command under a profiler that is there, and saying in a few lines what it recorded."""
