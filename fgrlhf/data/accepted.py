"""Rows that an annotator of Prodigy rejected or ignored are no rows to train on.

Prodigy writes `{text, answer, ...}` with one of three answers, and numbers of its own for each
task. Its `answer` is not the answer to the text, which rows `{text, answer}` have under this key.
"""

from collections.abc import Collection

from fgrlhf.base.records import LeftOutError
from fgrlhf.data.rows import Row

ACCEPT, REJECT = "accept", "reject"
ANSWERS = (ACCEPT, REJECT, "ignore")
TASK_NUMBERS = ("_task_hash", "_input_hash")


def accepted(row: Row, names: Collection[str]) -> Row:
    """The row, in which Prodigy's answer `accept` is not read as an answer to its text.

    Rows with Prodigy's numbers are Prodigy's. So are rows `{text, answer}` without them, unless the
    format reads `answer` as something else.

    Args:
      names: the keys of the row's format.

    Raises:
      LeftOutError: the annotator rejected or ignored the row.
    """
    answer = row.values.get("answer")
    if not isinstance(answer, str) or answer not in ANSWERS or "answer" in row.columns:
        return row
    has_numbers = any(key in row.values for key in TASK_NUMBERS)
    if not has_numbers and ("answer" in names or "text" not in row.values):
        return row
    if answer != ACCEPT:
        raise LeftOutError(
            "answer",
            f"is `{answer}`: an annotator of Prodigy did not accept this row. Remove such rows;"
            " `fgrlhf data import IN OUT from=prodigy` reads the accepted ones, and `fgrlhf data"
            " convert` leaves the others out",
            f"rows with the answer `{answer}` of Prodigy",
        )
    if "answer" not in names:
        return row
    values = {key: value for key, value in row.values.items() if key != "answer"}
    return Row(values, row.columns, row.counts, row.reading)
