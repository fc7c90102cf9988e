"""The sampler of a config."""

from fgrlhf.base.errors import UserError
from fgrlhf.models.base import Policy
from fgrlhf.samplers.config import AnySampler, LocalSamplerConfig
from fgrlhf.samplers.sampler import LocalSampler, Sampler


def make_sampler(config: AnySampler, policy: Policy) -> Sampler:
    """The sampler of a config, imported if the config names it. This does not contact a server.

    Args:
      policy: the policy to sample from; its weights may not be loaded yet.
    Raises:
      UserError: the sampler cannot sample from this policy.
    """
    if isinstance(config, LocalSamplerConfig):
        return LocalSampler()
    from fgrlhf.models.causal import CausalPolicy
    from fgrlhf.samplers.one_step_behind import OneStepBehind
    from fgrlhf.samplers.vllm import VllmSampler

    if not isinstance(policy, CausalPolicy):
        raise UserError(
            f"sampler.kind is vllm, but the policy {type(policy.model).__name__} is an"
            " encoder-decoder, which vLLM does not serve: use sampler.kind=local, or a decoder-only"
            " policy"
        )
    is_tied = bool(policy.model.config.tie_word_embeddings)
    sampler = VllmSampler(config, is_tied)
    return OneStepBehind(sampler) if config.one_step_behind else sampler
