"""BERTScore: how well the words of a text and of a reference match in context (Zhang et al. 2020).

With the unit vectors x_i of the text's tokens and y_j of the reference's, of one hidden layer,

    P = 1/|x| sum_i max_j x_i . y_j,  R = 1/|y| sum_j max_i x_i . y_j,  F = 2 P R / (P + R)

Special tokens can be matched, but do not count in the sums, as in the package `bert_score` 0.3.13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModel

from fgrlhf.base.errors import UserError, counted, shorten
from fgrlhf.models.loading import check_vocabulary, load_config, load_tokenizer, load_weights
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.precision import DTYPES, place
from fgrlhf.scorers.base import RewardContext
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.scorers.kinds import BertScoreScorer


BATCH = 32  # texts per forward pass


@dataclass(frozen=True)
class Embedded:
    """A text's tokens.

    Attributes:
      vectors_TD: of length 1.
      counts_T: whether each is no special token.
    """

    vectors_TD: Tensor
    counts_T: Tensor


def f_score(text: Embedded, reference: Embedded) -> float:
    """F; 0 if one of the two has no token that counts."""
    if not text.counts_T.any() or not reference.counts_T.any():
        return 0.0
    similarity_TU = text.vectors_TD @ reference.vectors_TD.T
    precision = float(similarity_TU.amax(1)[text.counts_T].mean())
    recall = float(similarity_TU.amax(0)[reference.counts_T].mean())
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0


class BertScore:
    """F of each text, for the best of its references.

    Args:
      model: an encoder with its hidden states.
      layer: whose hidden states are compared, from 1 on.
    """

    def __init__(self, model: Any, tokenizer, layer: int):
        self.model = model
        self.tokenizer = tokenizer
        self.layer = layer
        self.max_length = min(longest_input(model) or 2**20, tokenizer.model_max_length)
        # byte-level tokenizers read the first word of a text differently without a space before it
        self.before = " " if getattr(tokenizer, "add_prefix_space", None) is False else ""

    @classmethod
    def load(cls, config: "BertScoreScorer", context: RewardContext) -> "BertScore":
        """Load the model.

        Raises:
          UserError: there is none, it has fewer layers, or it is no encoder.
        """
        try:
            tokenizer = load_tokenizer(config.ckpt)
            model: Any = load_weights(
                AutoModel,
                config.ckpt,
                may_lack=("pooler.",),  # it is not read
                config=load_config(config.ckpt),
                dtype=DTYPES[context.dtype],
            )
            check_vocabulary(tokenizer, model)
            model = model.get_encoder() if model.config.is_encoder_decoder else model
            layers = model.config.num_hidden_layers
            if config.layer > layers:
                raise ValueError(f"it has {counted(layers, 'layer')}, not {config.layer}.")
            if tokenizer.pad_token_id is None:
                raise ValueError("its tokenizer has no padding token.")
        except (OSError, ValueError) as error:
            raise UserError(
                f"no model for bertscore could be loaded from `{shorten(config.ckpt)}`: {error}"
                " Give a folder or hub name of an encoder, such as roberta-large with layer=17."
            ) from None
        placed = place(model, context.device, context.dtype).eval().requires_grad_(False)
        return cls(placed, tokenizer, config.layer)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """The score of each text. Raises `UserError` if a prompt has no references."""
        for prompt in prompts:
            if not prompt.references:
                raise UserError(
                    f"bertscore compares with references, and prompt {shorten(prompt.id, 60)} has"
                    " none: add `references` to its row"
                )
        every = [*texts, *(reference for prompt in prompts for reference in prompt.references)]
        embedded = self.embed(list(dict.fromkeys(every)))
        scores = []
        for prompt, text in zip(prompts, texts, strict=True):
            scores.append(max(f_score(embedded[text], embedded[one]) for one in prompt.references))
        return scores

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> dict[str, Embedded]:
        """The tokens of different texts. Texts of similar length share a batch."""
        embedded = {}
        ordered = sorted(texts, key=len)
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            encoded = self.tokenizer(
                [self.before + text.strip() for text in batch],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
            special_BT = encoded.pop("special_tokens_mask").bool()
            inputs = encoded.to(self.model.device)
            states = self.model(**inputs, output_hidden_states=True).hidden_states
            vectors_BTD = torch.nn.functional.normalize(states[self.layer].float(), dim=-1)
            mask_BT = encoded["attention_mask"].bool()
            for text, vectors_TD, mask_T, special_T in zip(
                batch, vectors_BTD, mask_BT, special_BT.to(mask_BT.device)
            ):
                embedded[text] = Embedded(vectors_TD[mask_T].cpu(), ~special_T[mask_T].cpu())
        return embedded
