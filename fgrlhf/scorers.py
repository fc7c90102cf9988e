"""What a reward model's network reads, and a network that reads a text with a language model.

Three shapes, one interface. All of them see the same words: a prefix (question, passages) and the answer's segments.

    encoder   `prefix </s> segment 1 </s> segment 2 ...` in one bidirectional encoder (Longformer); segment j is judged
              at its `</s>`. A score of the whole answer is the sequence-classification head's, no `</s>` is put in.
    seq2seq   an encoder reads the prefix, a decoder the answer; segment j is judged at its last token
    causal    prefix and answer in one decoder-only sequence; the same

`RMInputs` turns words into ids, for training and for scoring alike. Encoders come from transformers as they are;
`LanguageModelScorer` is the network of the other two shapes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from fgrlhf.reward_utils import SEGMENT_MARK
from fgrlhf.utils import UserError

Shape = Literal["encoder", "seq2seq", "causal"]
Kind = Literal["segment", "sequence"]

ANSWER_MARK = "answer:"  # ends an encoder's prefix; a language model was trained on prompts without it
IGNORED = -100  # the label that transformers' losses leave out
LM_FEATURES = 2
_FEATURE_FLOOR = -10.0


@dataclass(frozen=True)
class RMText:
    """One answer with its prefix, in words. A sequence scorer's answer is one segment (with no words where empty)."""

    prefix: tuple[str, ...]
    segments: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RMInput:
    """What the network reads, and for every segment the position whose output judges it.

    A position is None where the segment has no words or its last token was cut off: it is not judged at all, rather
    than judged by a neighbour's token.
    """

    input_ids: list[int]
    decoder_input_ids: list[int] | None
    positions: tuple[int | None, ...]

    @property
    def length(self) -> int:
        return len(self.input_ids) + len(self.decoder_input_ids or ())

    @property
    def read_length(self) -> int:
        """Length of the sequence that `positions` count in."""
        return len(self.input_ids if self.decoder_input_ids is None else self.decoder_input_ids)


class RMInputs:
    """Words to ids and read positions, and batches of them.

    Args:
      tokenizer: a fast one (character offsets and word numbers are needed).
      max_length: tokens. An encoder's input is cut on the right. A decoder-only input loses the prefix's beginning
        first. An encoder-decoder's prefix and answer are each cut to it on the right.
      decoder_start_id: what an encoder-decoder's decoder starts with.
    """

    def __init__(self, tokenizer, shape: Shape, kind: Kind, max_length: int, decoder_start_id: int | None = None):
        if not tokenizer.is_fast:
            raise UserError("the reward model's tokenizer gives no character offsets; save it as a fast tokenizer (tokenizer.json)")
        self.tokenizer, self.shape, self.kind, self.max_length = tokenizer, shape, kind, max_length
        self.decoder_start_id = decoder_start_id
        self.mark = segment_mark(tokenizer) if shape == "encoder" and kind == "segment" else SEGMENT_MARK

    def encode(self, texts: Sequence[RMText]) -> list[RMInput]:
        """One input per text, each tokenised once."""
        if not texts:
            return []
        return self._marked(texts) if self.shape == "encoder" else self._read_at_ends(texts)

    def _marked(self, texts: Sequence[RMText]) -> list[RMInput]:
        all_words, all_marks = [], []
        for text in texts:
            words, marks = list(text.prefix), []
            for segment in text.segments:
                marks.append(len(words))
                words += [self.mark, *segment] if self.kind == "segment" else segment
            all_words.append(words)
            all_marks.append([*marks, len(words)])
        batch = self.tokenizer(all_words, is_split_into_words=True, verbose=False)
        return [self._cut_marked(batch["input_ids"][i], batch.word_ids(i), all_marks[i]) for i in range(len(texts))]

    def _cut_marked(self, ids: list[int], word_ids: Sequence[int | None], bounds: Sequence[int]) -> RMInput:
        """Cut to `max_length` before the special tokens that end the input. `bounds`: words that begin segments, and the end."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, word in enumerate(word_ids):
            if word is not None:
                first.setdefault(word, position)
                last[word] = position
        content = max(last.values(), default=-1) + 1
        kept = min(content, self.max_length - (len(ids) - content))
        ids = ids[:kept] + ids[content:]
        if self.kind == "sequence":
            return RMInput(ids, None, (0,))  # the classification head reads the first token
        positions = []
        for mark, following in zip(bounds, bounds[1:]):
            whole = mark + 1 < following and max(last.get(word, -1) for word in range(mark, following)) < kept
            positions.append(first[mark] if whole else None)
        return RMInput(ids, None, tuple(positions))

    def _read_at_ends(self, texts: Sequence[RMText]) -> list[RMInput]:
        prefixes = [" ".join(t.prefix[:-1] if t.prefix[-1:] == (ANSWER_MARK,) else t.prefix) for t in texts]
        unique = list(dict.fromkeys(prefixes))  # samples of one prompt share its prefix
        seq2seq = self.shape == "seq2seq"
        cut = {"truncation": True, "max_length": self.max_length} if seq2seq else {}
        prefix_ids = dict(zip(unique, self.tokenizer(unique, verbose=False, **cut)["input_ids"]))
        lead = "" if seq2seq else " "
        joined = [join_segments(text.segments) for text in texts]
        answers = self.tokenizer(
            [lead + answer for answer, _ in joined], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        inputs = []
        for prefix, (answer, spans), ids, offsets in zip(prefixes, joined, answers["input_ids"], answers["offset_mapping"]):
            spans = [(start + len(lead), end + len(lead)) for start, end in spans]
            before = [self.decoder_start_id] if seq2seq else prefix_ids[prefix]
            ids = ids[: self.max_length - (1 if seq2seq else 0)] if answer else []
            before = before if seq2seq else before[max(0, len(before) + len(ids) - self.max_length) :]
            read = before + ids
            ends = [None if token is None or token >= len(ids) else len(before) + token for token in last_tokens(offsets, spans)]
            positions = tuple(ends) if self.kind == "segment" else (len(read) - 1,)
            inputs.append(RMInput(prefix_ids[prefix], read, positions) if seq2seq else RMInput(read, None, positions))
        return inputs

    def collate(self, inputs: Sequence[RMInput]) -> dict[str, Tensor]:
        """Arguments of the network's forward, padded on the right.

        Equal prefixes of an encoder-decoder are kept once: `prompt_rows` says which of them each answer belongs to.
        """
        if self.shape != "seq2seq":
            return self._padded([x.input_ids for x in inputs], "")
        prefixes: dict[tuple[int, ...], int] = {}
        rows = [prefixes.setdefault(tuple(x.input_ids), len(prefixes)) for x in inputs]
        return {
            **self._padded([list(ids) for ids in prefixes], ""),
            **self._padded([x.decoder_input_ids for x in inputs], "decoder_"),
            "prompt_rows": torch.tensor(rows),
        }

    def _padded(self, rows: Sequence[list[int]], name: str) -> dict[str, Tensor]:
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        return {
            f"{name}input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids in rows]),
            f"{name}attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in rows]),
        }


def segment_mark(tokenizer) -> str:
    """The single token put before every segment: `</s>` where the vocabulary has it, else the tokenizer's own separator."""
    vocabulary = tokenizer.get_vocab()
    for mark in (SEGMENT_MARK, tokenizer.sep_token, tokenizer.eos_token):
        if mark is not None and mark in vocabulary:
            return mark
    raise UserError(f"the encoder's tokenizer has no token to mark segments with: add `{SEGMENT_MARK}` to it as a special token")


def longest_input(config: PretrainedConfig, shape: Shape) -> int | None:
    """Tokens a network with position embeddings can read; None where positions are relative."""
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa and Longformer count positions from two
    return positions - 2 if positions is not None and shape == "encoder" else positions


def join_segments(segments: Sequence[Sequence[str]]) -> tuple[str, list[tuple[int, int]]]:
    """All words joined by one space, and each segment's half-open characters in it (an empty span: no words)."""
    parts, spans, length = [], [], 0
    for segment in segments:
        text = " ".join(segment)
        start = length + (1 if length and text else 0)
        spans.append((start, start + len(text)))
        if text:
            parts.append(text)
            length = start + len(text)
    return " ".join(parts), spans


def last_tokens(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each character span the token that completes it: the last one that begins before the span's end.

    None for an empty span, or where no token holds any of its characters (a tokenizer may drop some). Tokens that share
    a character (the bytes of one emoji) begin at the same offset, so the last of them is found.
    """
    starts = list(accumulate((start for start, _ in offsets), max))
    found = []
    for start, end in spans:
        token = bisect_left(starts, end) - 1
        while token >= 0 and offsets[token][0] == offsets[token][1]:  # tokens of no characters
            token -= 1
        found.append(token if start < end and token >= 0 and offsets[token][1] > start else None)
    return found


class LanguageModelScorerConfig(PretrainedConfig):
    """`trunk`: the language model's own config as a dict; `kind`: labels at every position, or one score at the last."""

    model_type = "fgrlhf_language_model_scorer"

    def __init__(self, trunk: dict | None = None, kind: Kind = "segment", lm_logprob_feature: bool = False, **kwargs):
        self.trunk, self.kind, self.lm_logprob_feature = trunk, kind, lm_logprob_feature
        super().__init__(**kwargs)

    def trunk_config(self) -> PretrainedConfig:
        return AutoConfig.for_model(**self.trunk)


AutoConfig.register(LanguageModelScorerConfig.model_type, LanguageModelScorerConfig)  # else AutoTokenizer warns of an unknown type


def lm_features(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """features_BTF of every token under a language model: log p(a_t), and how far that is below the best token's.

    `logits[:, t]` predict token t + 1. The first token, which nothing predicts, gets zeros. Values are cut at -10 and
    divided by 10, so that they lie in [-1, 0].
    """
    logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float(), -1)
    chosen_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    features_BTF = torch.stack([chosen_BT, chosen_BT - logprobs_BTV.amax(-1)], -1)
    features_BTF = features_BTF.clamp(min=_FEATURE_FLOOR) / -_FEATURE_FLOOR
    return nn.functional.pad(features_BTF, (0, 0, 1, 0))


class LanguageModelScorer(PreTrainedModel):
    """A language model's trunk with a linear head on its last hidden states.

    With `lm_logprob_feature` a frozen copy of the language model says how likely each token of the answer is, and that
    is added to the token's embedding: a small model learns from it which facts are wrong.
    """

    config_class = LanguageModelScorerConfig
    base_model_prefix = "trunk"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: LanguageModelScorerConfig):
        super().__init__(config)
        trunk_config = config.trunk_config()
        self.is_encoder_decoder = trunk_config.is_encoder_decoder
        self.trunk = AutoModel.from_config(trunk_config)
        self.lm = self.feature_in = None
        if config.lm_logprob_feature:
            self.lm = _lm_class(trunk_config).from_config(trunk_config)
            self.feature_in = nn.Linear(LM_FEATURES, trunk_config.hidden_size, bias=False)
        segments = config.kind == "segment"  # a score of whole answers is compared only, so it has no bias to learn
        self.head = nn.Linear(trunk_config.hidden_size, config.num_labels if segments else 1, bias=segments)
        self.post_init()

    @classmethod
    def start_from(
        cls, ckpt: str, shape: Shape, kind: Kind, id2label: dict[int, str] | None = None, lm_logprob_feature: bool = False
    ) -> "LanguageModelScorer":
        """A scorer whose trunk (and frozen language model) have the weights of `ckpt`, its head random ones.

        Raises:
          ValueError: the checkpoint is not of that shape. OSError: it cannot be read.
        """
        trunk_config = AutoConfig.from_pretrained(ckpt)
        if trunk_config.is_encoder_decoder != (shape == "seq2seq"):
            found = "an encoder-decoder (shape seq2seq)" if trunk_config.is_encoder_decoder else "a single stack (shape encoder or causal)"
            raise ValueError(f"the checkpoint is {found}")
        labels = {} if id2label is None else {"id2label": id2label, "label2id": {name: i for i, name in id2label.items()}}
        config = LanguageModelScorerConfig(trunk_config.to_dict(), kind, lm_logprob_feature, **labels)
        model = cls(config)
        model.trunk = AutoModel.from_pretrained(ckpt, dtype=torch.float32)
        if lm_logprob_feature:
            model.lm = _lm_class(trunk_config).from_pretrained(ckpt, dtype=torch.float32)
            # as loud as a token's embedding, so that the first layers do not overhear it
            nn.init.normal_(model.feature_in.weight, std=float(model.trunk.get_input_embeddings().weight.std()))
        model.freeze_lm()
        return model

    def freeze_lm(self) -> None:
        """Only the trunk, the head and the feature's way in are trained."""
        if self.lm is not None:
            self.lm.requires_grad_(False).eval()

    def train(self, mode: bool = True):
        super().train(mode)
        if self.lm is not None:
            self.lm.eval()  # its features must not change from step to step
        return self

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None, prompt_rows: Tensor | None = None,
    ) -> TokenClassifierOutput:
        """logits (B, T, labels) at every position of the answer's sequence; (B, 1) of a sequence scorer.

        Shapes: seq2seq reads input_ids (prompts, P), decoder_input_ids (B, T) and prompt_rows (B,), the prompt of each
        answer; causal reads input_ids (B, T), prompt and answer in one.
        """
        if self.is_encoder_decoder:
            read_BT, mask_BT, prompt_mask_BP = decoder_input_ids, decoder_attention_mask, attention_mask[prompt_rows]
        else:
            read_BT, mask_BT, prompt_mask_BP = input_ids, attention_mask, None

        def hidden(trunk: nn.Module, embeddings_BTD: Tensor) -> Tensor:
            if not self.is_encoder_decoder:
                return trunk(inputs_embeds=embeddings_BTD, attention_mask=mask_BT, use_cache=False).last_hidden_state
            encoded = trunk.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[prompt_rows]
            return trunk.get_decoder()(
                inputs_embeds=embeddings_BTD, attention_mask=mask_BT, encoder_hidden_states=encoded,
                encoder_attention_mask=prompt_mask_BP, use_cache=False).last_hidden_state

        embeddings_BTD = self.trunk.get_input_embeddings()(read_BT)
        if self.lm is not None:
            features_BTF = self._features(input_ids, attention_mask, read_BT, mask_BT, prompt_rows)
            embeddings_BTD = embeddings_BTD + self.feature_in(features_BTF.to(embeddings_BTD.dtype))
        logits = self.head(hidden(self.trunk, embeddings_BTD))
        if self.config.kind == "sequence":
            logits = logits[torch.arange(len(logits), device=logits.device), mask_BT.sum(1) - 1]
        return TokenClassifierOutput(logits=logits)

    @torch.no_grad()
    def _features(self, input_ids: Tensor, attention_mask: Tensor, read_BT: Tensor, mask_BT: Tensor, prompt_rows: Tensor | None) -> Tensor:
        if not self.is_encoder_decoder:
            return lm_features(self.lm(input_ids=read_BT, attention_mask=mask_BT, use_cache=False).logits, read_BT)
        encoded = self.lm.get_encoder()(input_ids=input_ids, attention_mask=attention_mask)
        encoded.last_hidden_state = encoded.last_hidden_state[prompt_rows]
        output = self.lm(
            encoder_outputs=encoded, attention_mask=attention_mask[prompt_rows], decoder_input_ids=read_BT,
            decoder_attention_mask=mask_BT, use_cache=False)
        return lm_features(output.logits, read_BT)


def _lm_class(config: PretrainedConfig):
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
