"""Networks that judge texts: their inputs, loading and scoring (docs/rewards.md)."""

__all__ = [
    "inputs",
    "loading",
    "networks",
    "prefix",
    "rm_input",
    "scoring",
    "spec",
]
