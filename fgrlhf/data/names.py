"""The names of annotators: which spellings are one person."""

import unicodedata


def name_key(name: str) -> str:
    """What two spellings of one name have in common.

    NFKC, casefold and single blanks: `Anna`, `anna` and ` ANNA ` are one name, and so are the
    composed and the decomposed form of an accent. The key is only compared, never shown.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


class Spellings:
    """The spelling in which each name was first written."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The first spelling of a name. A new name is remembered as it is."""
        return self._first.setdefault(name_key(name), name)
