"""Answers, from what the program did, or by counting addresses."""

SIDE, SECTOR_BYTES, ROW = 16, 32, 4096


def blocks(facts):
    return facts.sizes["blocks"]


def blocks_rounded_down(facts):
    return sum(max(rows // SIDE, 1) * max(columns // SIDE, 1) for rows, columns in ((32, 32), (20, 37), (1, 5)))


def sectors_of_store(facts):
    return _sectors(lambda row, column: column * ROW + row)


def sectors_of_load(facts):
    return _sectors(lambda row, column: row * ROW + column)


def _sectors(place):
    """The sectors that the first warp's 32 threads touch, in a matrix with long rows."""
    threads = [divmod(thread, SIDE) for thread in range(32)]
    return len({4 * place(row, column) // SECTOR_BYTES for row, column in threads})
