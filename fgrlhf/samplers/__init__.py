"""Where responses are sampled: in this process, or by an engine on a server."""

__all__ = [
    "config",
    "correction",
    "one_step_behind",
    "sampler",
    "vllm",
]
