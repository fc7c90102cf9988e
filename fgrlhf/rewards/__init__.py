"""The kinds of rewards of a config (docs/rewards.md), and the server of a reward."""

__all__ = [
    "build",
    "client",
    "kind",
    "kinds",
    "protocol",
    "scored",
    "server",
    "text_rewards",
]
