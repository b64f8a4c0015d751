"""Answers, by counting which threads meet in a bank."""

BANKS = 32


def turns_without_padding(facts):
    return _turns(row_length=32)


def turns_with_padding(facts):
    return _turns(row_length=33)


def _turns(row_length):
    banks = [row * row_length % BANKS for row in range(32)]
    return max(map(banks.count, banks))
