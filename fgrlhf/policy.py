"""Policies: one interface over encoder-decoder (`T5Policy`) and decoder-only (`CausalPolicy`) language models.

A policy encodes prompts, samples responses and gives the log-probability of given response tokens. The distribution
over the next token a_t given prompt x and response prefix y_<t at temperature tau is

    log pi(a_t | x, y_<t) = z_t[a_t] / tau - logsumexp(z_t / tau)

Only chosen-token log-probabilities leave a forward pass; logits are never kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from fgrlhf.types import PolicyOutput
from fgrlhf.utils import UserError, why_not_loaded

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. `top_k=0` and `top_p=None` keep the whole vocabulary; greedy without `do_sample`."""

    max_new_tokens: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float | None = None
    num_beams: int = 1


class InverseCdfSampler(LogitsProcessor):
    """Turns greedy decoding into sampling with given uniform numbers.

    Row b at response position t takes the first token (most probable first) at which the cumulated probability exceeds
    `uniform_BT[b, t]`. So a sample depends on its own row of numbers alone, not on which rows share its batch, its
    process or its device's random state: data-parallel runs draw what one process draws, and a resumed run what an
    uninterrupted one does.
    """

    def __init__(self, sampling: Sampling, uniform_BT: Tensor, prefix_length: int):
        self.sampling, self.uniform_BT, self.prefix_length = sampling, uniform_BT, prefix_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prefix_length
        k = self.sampling.top_k or scores.shape[-1]
        top_BV, ids_BV = torch.topk(scores.float() / self.sampling.temperature, min(k, scores.shape[-1]), dim=-1)
        probs_BV = torch.softmax(top_BV, -1)
        cumulated_BV = probs_BV.cumsum(-1)
        if self.sampling.top_p is not None:  # keep the smallest set whose probability reaches top_p
            kept_BV = cumulated_BV - probs_BV < self.sampling.top_p
            cumulated_BV = torch.where(kept_BV, cumulated_BV, cumulated_BV.new_zeros(()))
        total_B1 = cumulated_BV.amax(-1, keepdim=True)
        target_B1 = self.uniform_BT[:, step : step + 1].to(scores.device) * total_B1
        choice_B1 = (cumulated_BV > target_B1).int().argmax(-1, keepdim=True)
        chosen_B1 = ids_BV.gather(-1, choice_B1)
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen_B1, 0.0)


def uniform_rows(row_seeds: Sequence[int], length: int) -> Tensor:
    """uniform_BT in [0, 1): row b is a pure function of `row_seeds[b]`."""
    rows = [torch.rand(length, generator=torch.Generator().manual_seed(seed)) for seed in row_seeds]
    return torch.stack(rows) if rows else torch.zeros(0, length)


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at `ids_BT`, in fp32."""
    logits_BTV = logits_BTV.float() / temperature
    return logits_BTV.gather(-1, ids_BT[..., None])[..., 0] - logits_BTV.logsumexp(-1)


def token_entropy(logits_BTV: Tensor, temperature: float = 1.0) -> Tensor:
    """-sum_v p_v log p_v of softmax(logits / temperature)."""
    logprobs_BTV = torch.log_softmax(logits_BTV.float() / temperature, -1)
    return -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)


def response_mask(response_ids_BT: Tensor, eos_ids: Sequence[int]) -> Tensor:
    """1 up to and including each row's first end-of-sequence token; all ones where there is none (cut at the limit)."""
    is_eos_BT = torch.isin(response_ids_BT, torch.tensor(list(eos_ids), device=response_ids_BT.device))
    return (is_eos_BT.int().cumsum(1) - is_eos_BT.int() == 0).long()


class Policy(nn.Module):
    """What every policy has in common. Subclasses say how prompt and response meet in the network.

    Args:
      model: a transformers language model.
      tokenizer: its tokenizer.
      max_input_len: longer prompts are cut (on the right for encoder-decoders, on the left for decoders).
    """

    padding_side: str

    def __init__(self, model: nn.Module, tokenizer, max_input_len: int = 1024, padding_side: str | None = None):
        super().__init__()
        self.model, self.tokenizer, self.max_input_len = model, tokenizer, max_input_len
        tokenizer.padding_side = padding_side or self.padding_side
        tokenizer.truncation_side = self.padding_side
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def hidden_size(self) -> int:
        return self.model.config.hidden_size

    @property
    def eos_ids(self) -> list[int]:
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None else eos
        return list(eos) if isinstance(eos, (list, tuple)) else [eos]

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompt texts -> (prompt_ids_BP, prompt_mask_BP), padded to the longest of them."""
        batch = self.tokenizer(list(texts), padding=True, truncation=True, max_length=self.max_input_len, return_tensors="pt")
        return batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)

    @torch.no_grad()
    def generate(
        self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor, sampling: Sampling, row_seeds: Sequence[int] | None = None, num_samples: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Sample `num_samples` responses per prompt.

        Args:
          row_seeds: one per response (B * num_samples of them), needed with `do_sample`.
        Returns:
          response_ids and response_mask, (B * num_samples, T): the samples of one prompt stand together; T is the
          longest response's length; ids on padding are the pad token's.
        """
        if sampling.do_sample and (row_seeds is None or len(row_seeds) != len(prompt_ids_BP) * num_samples):
            raise ValueError("sampling needs one seed per response")
        was_training = self.model.training
        self.model.eval()  # before the encoder runs: its dropout would be sampling noise too
        inputs, prefix_length = self._generation_inputs(prompt_ids_BP, prompt_mask_BP, num_samples)
        processors = LogitsProcessorList()
        if sampling.do_sample:
            uniform_BT = uniform_rows(row_seeds, sampling.max_new_tokens)
            processors.append(InverseCdfSampler(sampling, uniform_BT, prefix_length))
        output = self.model.generate(
            **inputs, logits_processor=processors, do_sample=False, temperature=None, top_k=None, top_p=None,
            num_beams=1 if sampling.do_sample else sampling.num_beams, max_new_tokens=sampling.max_new_tokens,
            eos_token_id=self.eos_ids, pad_token_id=self.tokenizer.pad_token_id,
        )
        self.model.train(was_training)
        response_ids_BT = output[:, prefix_length:]
        mask_BT = response_mask(response_ids_BT, self.eos_ids)
        longest = max(int(mask_BT.sum(1).max()), 1)
        mask_BT = mask_BT[:, :longest]
        pad = torch.full_like(response_ids_BT[:, :longest], self.tokenizer.pad_token_id)
        return torch.where(mask_BT.bool(), response_ids_BT[:, :longest], pad), mask_BT

    def forward(
        self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor, response_ids_BT: Tensor, response_mask_BT: Tensor, temperature: float = 1.0
    ) -> tuple[PolicyOutput, Tensor]:
        """Log-probabilities of given responses.

        Returns:
          PolicyOutput with logprobs_BT and entropy_BT (no gradient through the entropy), and hidden_BTD, the last
          hidden state from which token t was predicted: a value head can read it.
        """
        logits_BTV, hidden_BTD = self.predict(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        mask_BT = response_mask_BT.float()
        with torch.no_grad():
            entropy_BT = token_entropy(logits_BTV, temperature) * mask_BT
        logprobs_BT = token_logprobs(logits_BTV, response_ids_BT, temperature) * mask_BT
        return PolicyOutput(logprobs_BT, entropy_BT=entropy_BT), hidden_BTD

    def predict(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor, response_ids_BT: Tensor, response_mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """(logits_BTV, hidden_BTD), both at the position that predicts response token t."""
        raise NotImplementedError("abstract: a policy class says how prompt and response meet")

    def hidden(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor, response_ids_BT: Tensor, response_mask_BT: Tensor) -> Tensor:
        """hidden_BTD of `predict` without the projection onto the vocabulary."""
        raise NotImplementedError("abstract: a policy class says how prompt and response meet")

    def _generation_inputs(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor, num_samples: int) -> tuple[dict, int]:
        raise NotImplementedError("abstract: a policy class says what `generate` starts from")

    def save(self, folder: str | Path) -> None:
        """Write the model (safetensors) and its tokenizer as an ordinary transformers folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class T5Policy(Policy):
    """An encoder-decoder: the encoder reads the prompt, the decoder writes the response."""

    padding_side = "right"

    def _generation_inputs(self, prompt_ids_BP, prompt_mask_BP, num_samples):
        hidden_BPD = self.model.get_encoder()(input_ids=prompt_ids_BP, attention_mask=prompt_mask_BP).last_hidden_state
        encoded = BaseModelOutput(last_hidden_state=hidden_BPD.repeat_interleave(num_samples, 0))
        mask = prompt_mask_BP.repeat_interleave(num_samples, 0)
        return {"encoder_outputs": encoded, "attention_mask": mask}, 1  # the decoder starts from one start token

    def predict(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        encoded = BaseModelOutput(last_hidden_state=self._encoded(prompt_ids_BP, prompt_mask_BP))
        output = self.model(
            encoder_outputs=encoded, attention_mask=prompt_mask_BP, decoder_input_ids=self._shifted(response_ids_BT),
            output_hidden_states=True, use_cache=False,
        )
        return output.logits, output.decoder_hidden_states[-1]

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        return self.model.get_decoder()(
            input_ids=self._shifted(response_ids_BT), encoder_hidden_states=self._encoded(prompt_ids_BP, prompt_mask_BP),
            encoder_attention_mask=prompt_mask_BP, use_cache=False,
        ).last_hidden_state

    def _encoded(self, prompt_ids_BP: Tensor, prompt_mask_BP: Tensor) -> Tensor:
        """encoded_BPD. Each different prompt is encoded once, however many of the rows are samples of it."""
        both, row_B = torch.stack([prompt_ids_BP, prompt_mask_BP], 1).unique(dim=0, return_inverse=True)
        encoded = self.model.get_encoder()(input_ids=both[:, 0], attention_mask=both[:, 1]).last_hidden_state
        return encoded[row_B]

    def _shifted(self, response_ids_BT: Tensor) -> Tensor:
        """What the decoder has read when it predicts token t: a start token, then tokens 0 .. t-1."""
        start = self.model.config.decoder_start_token_id
        return torch.cat([torch.full_like(response_ids_BT[:, :1], start), response_ids_BT[:, :-1]], 1)


class CausalPolicy(Policy):
    """A decoder-only model: prompt (padded on the left) and response stand in one sequence."""

    padding_side = "left"

    def __init__(self, model: nn.Module, tokenizer, max_input_len: int = 1024, padding_side: str | None = None):
        if padding_side == "right":
            raise UserError(
                "model.policy_model.input_padding_side is `right`, but a decoder-only model writes its response right after the prompt, "
                "where the padding would stand: set it to left, or leave it out")
        super().__init__(model, tokenizer, max_input_len, padding_side)

    def generate(self, prompt_ids_BP, prompt_mask_BP, sampling, row_seeds=None, num_samples=1):
        """As `Policy.generate`. Raises `UserError` where prompt and response need more positions than the model has."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        needed = prompt_ids_BP.shape[1] + sampling.max_new_tokens
        if positions is not None and needed > positions:
            raise UserError(
                f"prompts of {prompt_ids_BP.shape[1]} tokens with responses of up to {sampling.max_new_tokens} need {needed} positions, "
                f"the model has {positions}: lower env.max_input_len or env.max_generated_len")
        return super().generate(prompt_ids_BP, prompt_mask_BP, sampling, row_seeds, num_samples)

    def _generation_inputs(self, prompt_ids_BP, prompt_mask_BP, num_samples):
        inputs = {"input_ids": prompt_ids_BP, "attention_mask": prompt_mask_BP}
        return {name: tensor.repeat_interleave(num_samples, 0) for name, tensor in inputs.items()}, prompt_ids_BP.shape[1]

    def predict(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        inputs, before = self._joined(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        output = self.model(**inputs, output_hidden_states=True, use_cache=False)
        return output.logits[:, before], output.hidden_states[-1][:, before]

    def hidden(self, prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT):
        inputs, before = self._joined(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT)
        return self.model.base_model(**inputs, use_cache=False).last_hidden_state[:, before]

    @staticmethod
    def _joined(prompt_ids_BP, prompt_mask_BP, response_ids_BT, response_mask_BT) -> tuple[dict, slice]:
        """Prompt and response as one input, and the positions before each response token: those predict it."""
        P, T = prompt_ids_BP.shape[1], response_ids_BT.shape[1]
        mask = torch.cat([prompt_mask_BP, response_mask_BT], 1)
        inputs = {
            "input_ids": torch.cat([prompt_ids_BP, response_ids_BT], 1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),  # padding does not count as distance
        }
        return inputs, slice(P - 1, P + T - 1)


def load_policy(ckpt: str | Path, dtype: str = "fp32", max_input_len: int = 1024, padding_side: str | None = None) -> Policy:
    """Load a hub name or folder as the policy class its config asks for.

    Raises:
      UserError: there is no such checkpoint, or it cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(ckpt)
        tokenizer = AutoTokenizer.from_pretrained(ckpt)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = auto.from_pretrained(ckpt, config=config, dtype=DTYPES[dtype], use_safetensors=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = why_not_loaded(ckpt, error)
        raise UserError(f"no language model could be loaded from `{ckpt}`: {reason} Give a folder that an earlier stage wrote, or a hub name while online.") from None
    return (T5Policy if config.is_encoder_decoder else CausalPolicy)(model, tokenizer, max_input_len, padding_side)
