"""Readers of the files of annotation tools and of published data: `fgrlhf data import`.

None of them is public: their result is a file of our own formats."""

__all__: list[str] = []
