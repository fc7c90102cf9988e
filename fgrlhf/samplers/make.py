"""The sampler of a config."""

from fgrlhf.base.errors import UserError
from fgrlhf.models.base import Policy
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.samplers.config import AnySampler, LocalSamplerConfig
from fgrlhf.samplers.one_step_behind import OneStepBehind
from fgrlhf.samplers.sampler import LocalSampler, Sampler
from fgrlhf.samplers.vllm import VllmSampler


def make_sampler(config: AnySampler, policy: Policy) -> Sampler:
    """The sampler of a config. This does not contact a server.

    Args:
      policy: whose responses are sampled; it may be without weights.
    Raises:
      UserError: the sampler cannot sample from this policy.
    """
    if isinstance(config, LocalSamplerConfig):
        return LocalSampler()
    if not isinstance(policy, CausalPolicy):
        raise UserError(
            f"sampler.kind is vllm, but the policy {type(policy.model).__name__} is an"
            " encoder-decoder, which vLLM does not serve: use sampler.kind=local, or a decoder-only"
            " policy"
        )
    is_tied = bool(policy.model.config.tie_word_embeddings)
    sampler = VllmSampler(config, is_tied)
    return OneStepBehind(sampler) if config.one_step_behind else sampler
