"""Faster forms of the layers and the attention of transformers, with the same results.

None of them is public: loading a policy installs those that its model can use."""

__all__: list[str] = []
