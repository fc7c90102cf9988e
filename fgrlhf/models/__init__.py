"""Language models behind one interface: encoding, sampling, log-probabilities, loading, saving.

`base` has the interface; `fgrlhf.policy` loads a policy."""

__all__ = [
    "base",
    "causal",
    "chat",
    "decoding",
    "encoder_decoder",
    "loading",
    "logprobs",
    "lora",
    "tiny",
]
