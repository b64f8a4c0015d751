"""The workshop: exercises that a learner solves in files of their own, checked stage by stage on any machine."""
