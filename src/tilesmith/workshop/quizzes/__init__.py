"""Quizzes: questions with a number as answer.

Files, in reading order:

- `answers.py`: the right and the wrong answers, computed from a trace, a binary or arithmetic.
- `written_numbers.py`: numbers as people write them.
- `replies.py`: the reply to a guess, and the problems of a question for its author.
"""
