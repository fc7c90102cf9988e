"""Token classifiers of other programs as reward models: taggers of spans, and TRL's step judges.

Such a folder has no `reward_model.json`, and its network was trained without marks:

- `tokens`: a tagger labels every token, as error detectors of spans do (`O`, `B-WRONG`, `I-WRONG`;
  the Trainer of transformers). A segment has an error if one of its tokens has:

      p(segment) = max over its tokens t of sum over error labels l of softmax(z_t)[l]

- `steps`: TRL's `PRMTrainer` lets the network read

      beginning-of-sequence token, prompt, step 1, separator, step 2, separator, ...

  each part tokenised by itself, without other special tokens and without an end token, and labels
  every step at the last token of its separator: 1 (`LABEL_1`) for a right step, 0 (`LABEL_0`) for
  a wrong one. The separator is a line break by default, and is not saved with the model. Read in
  TRL 0.13 to 1.13, the last release with it; texts are cut there to 1,024 tokens by default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import AutoModelForTokenClassification, PretrainedConfig

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models import loading
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.network_config import shape_of_config
from fgrlhf.reward_models.prefix import PrefixFn
from fgrlhf.reward_models.rm_input import Cuts
from fgrlhf.reward_models.scoring import SegmentLabels, SegmentScorer
from fgrlhf.reward_models.shapes import check_padding
from fgrlhf.reward_models.spec import RewardModelSpec, described_segmenter
from fgrlhf.reward_utils import Span
from fgrlhf.text_types import Prompt

Reading = Literal["marks", "tokens", "steps"]
OUTSIDE = "O"
UNNAMED = ("LABEL_0", "LABEL_1")  # the outputs of TRL's `PRMTrainer`: wrong, right
STEP = "step"  # the level; `step:X` has the separator X


class TaggedInput(NamedTuple):
    """What the network reads of a response, and the tokens that judge each segment."""

    ids: list[int]
    tokens: list[list[int]]


class TaggerScorer(SegmentScorer):
    """Judges segments by the labels of their tokens; see the module's docstring."""

    reading: Reading
    error_columns: list[int]

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[SegmentLabels]:
        """Judge each text's segments. One whose tokens are cut off is not judged."""
        rows: list[TaggedInput] = []
        spans_of_texts: list[list[Span]] = []
        for prompt, text in zip(prompts, texts, strict=True):
            spans = self.segmenter.segments(text, self.spec.level)
            spans_of_texts.append(spans)
            of_steps = self.reading == "steps"
            rows.append((self._steps if of_steps else self._tokens)(prompt, text, spans))
        self.inputs.cuts += Cuts(inputs=len(rows))
        errors = self._error_probabilities([row.ids for row in rows])
        results = []
        for row, spans, p_error_T in zip(rows, spans_of_texts, errors):
            judged = [bool(tokens) for tokens in row.tokens]
            p_S = torch.tensor([float(p_error_T[t].max()) if t else 0.0 for t in row.tokens])
            table_SC = torch.stack([p_S, 1 - p_S], 1) * torch.tensor(judged).float()[:, None]
            results.append(SegmentLabels(tuple(spans), table_SC, self.labels, tuple(judged)))
        return results

    def _tokens(self, prompt: Prompt, text: str, spans: Sequence[Span]) -> TaggedInput:
        with_prompt = self.spec.with_context
        texts = (prompt.text, text) if with_prompt else (text,)
        encoded = self.inputs.tokenizer(
            *texts,
            truncation=True,
            max_length=self.spec.max_length,
            return_offsets_mapping=True,
            verbose=False,
        )
        parts = encoded.sequence_ids()
        tokens = []
        for start, end in spans:
            inside = []
            for i, (first, last) in enumerate(encoded["offset_mapping"]):
                if parts[i] == int(with_prompt) and first < end and start < last:
                    inside.append(i)
            tokens.append(inside)
        return TaggedInput(encoded["input_ids"], tokens)

    def _steps(self, prompt: Prompt, text: str, spans: Sequence[Span]) -> TaggedInput:
        tokenizer = self.inputs.tokenizer

        def ids_of(part: str) -> list[int]:
            return tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]

        separator = ids_of(self.spec.level.partition(":")[2] or "\n")
        bos = tokenizer.bos_token_id
        ids = ([] if bos is None else [bos]) + ids_of(prompt.text)
        tokens = []
        for start, end in spans:
            ids += [*ids_of(text[start:end]), *separator]
            tokens.append([len(ids) - 1] if len(ids) <= self.spec.max_length else [])
        return TaggedInput(ids[: self.spec.max_length], tokens)

    @torch.no_grad()
    def _error_probabilities(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        """p_error_T of every row. Rows of similar length are read together."""
        device = next(self.model.parameters()).device
        pad = self.inputs.tokenizer.pad_token_id
        results: dict[int, torch.Tensor] = {}
        order = sorted((i for i, ids in enumerate(rows) if ids), key=lambda i: len(rows[i]))
        while order:
            width = len(rows[order[-1]])
            size = max(1, self.batch_tokens // width)
            order, batch = order[:-size], order[-size:]
            ids_BT = torch.full((len(batch), width), pad)
            mask_BT = torch.zeros(len(batch), width, dtype=torch.long)
            for b, i in enumerate(batch):
                ids_BT[b, : len(rows[i])] = torch.tensor(rows[i])
                mask_BT[b, : len(rows[i])] = 1
            output = self.model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device))
            p_BT = output.logits.float().softmax(-1)[..., self.error_columns].sum(-1).cpu()
            for b, i in enumerate(batch):
                results[i] = p_BT[b, : len(rows[i])]
        return [results.get(i, torch.zeros(0)) for i in range(len(rows))]


def reading_of(
    path: str | Path, config: PretrainedConfig, reads: Reading | None, level: str | None
) -> Reading:
    """How a token classifier without `reward_model.json` was trained; `reads` if it is given.

    A network that reads from left to right cannot judge a segment at the mark before it: it is a
    judge of steps.

    Raises:
      UserError: `reads` does not suit the network or the level.
    """
    is_decoder = shape_of_config(config) == "causal"
    of_steps = str(level).partition(":")[0] == STEP
    if reads is None and is_decoder and not of_steps:
        raise UserError(
            f"`{path}` is a token classifier that reads from left to right: set reads=steps with"
            " level=step for a model that TRL's PRMTrainer trained, or reads=tokens for a tagger"
        )
    if reads == "steps" and not of_steps:
        raise UserError(f"`{path}` is read with reads=steps, so the level must be step or step:X")
    return reads or ("steps" if is_decoder else "marks")


def load_tagger(
    path: str | Path,
    config: PretrainedConfig,
    prefix_fn: PrefixFn,
    reading: Reading,
    facts: Mapping[str, Any],
) -> TaggerScorer:
    """Load a token classifier of another program.

    Args:
      facts: level, segmenter, error_label (of its tokens, without `B-` and `I-`), with_context:
        whether it reads the prompt as a first text (`tokens` only).

    Raises:
      UserError: its labels do not say what an error is, or padding changes what it computes.
      ValueError: it cannot be loaded.
    """
    error, columns = _errors(path, config, reading, facts.get("error_label"))
    model: Any = loading.load_weights(AutoModelForTokenClassification, path, dtype=torch.float32)
    tokenizer = loading.load_tokenizer(path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    loading.check_vocabulary(tokenizer, model)
    check_padding(model)
    spec = RewardModelSpec(
        kind="segment",
        shape="encoder",
        level=facts["level"],
        with_context=bool(facts.get("with_context", False)),
        max_length=min(longest_input(model) or 2**20, tokenizer.model_max_length, 2**20),
        labels=(error, OUTSIDE),
        error_label=error,
        ok_label=OUTSIDE,
        segmenter=described_segmenter(facts),
    )
    scorer = TaggerScorer(model, tokenizer, spec, prefix_fn)
    scorer.reading = reading
    scorer.error_columns = columns
    return scorer


def _errors(
    path: str | Path, config: PretrainedConfig, reading: Reading, given: str | None
) -> tuple[str, list[int]]:
    """The name of the errors, and the outputs for them."""
    labels: Any = config.id2label or {}
    names = [str(labels.get(i)) for i in range(config.num_labels or 0)]
    kinds = [name.partition("-")[2] if name[:2] in ("B-", "I-") else name for name in names]
    if given is None and reading == "steps" and tuple(names) == UNNAMED:
        given = UNNAMED[0]
    if given is None and OUTSIDE in names:
        different = sorted(set(kinds) - {OUTSIDE})
        error = different[0] if len(different) == 1 else "ERROR"
        return error, [i for i, name in enumerate(names) if name != OUTSIDE]
    columns = [i for i, pair in enumerate(zip(names, kinds)) if given in pair]
    if given is None or not columns:
        raise UserError(
            f"`{path}` has the labels {shorten(', '.join(names))}: name the one that marks an error"
            " with error_label=..."
        )
    return given, columns
