"""Algorithms of RL: advantages, losses, and the hooks between them (docs/algorithms.md).

`protocol` has the interface; a class of another package follows it too."""

__all__ = [
    "a2c",
    "actor_critic",
    "advantages",
    "config",
    "gpg",
    "group",
    "grpo",
    "kl",
    "losses",
    "nlpo",
    "ppo",
    "protocol",
    "registry",
    "reinforce",
    "rloo",
    "trpo",
]
