"""The page that `fgrlhf report` writes.

None of its modules is public: they read the folders that the other programs write."""

__all__: list[str] = []
