"""Algorithms of RL: advantages, losses, and the hooks between them (docs/algorithms.md).

`protocol` has the interface; a class of another package follows it too."""

__all__ = [
    "a2c",
    "actor_critic",
    "advantages",
    "config",
    "distill",
    "gpg",
    "group",
    "grpo",
    "kl",
    "losses",
    "nlpo",
    "online_dpo",
    "ppo",
    "protocol",
    "registry",
    "reinforce",
    "rloo",
    "sdpo",
    "sections",
    "trpo",
]
