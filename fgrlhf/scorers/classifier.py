"""Any Hugging Face text classifier as a scorer of texts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSequenceClassification

from fgrlhf.base.errors import UserError, shorten, suggestion
from fgrlhf.models.loading import check_vocabulary, load_config, load_tokenizer, load_weights
from fgrlhf.reward_models.conversation import ConversationReader
from fgrlhf.reward_models.inputs import longest_input
from fgrlhf.reward_models.loading import agree_on_padding, check_score, refuse_reading
from fgrlhf.reward_models.network_config import shape_of_config
from fgrlhf.reward_models.precision import DTYPES, place, with_exact_heads
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.scorers.kinds import ClassifierScorer


class LabelScorer:
    """The probability p of one label of a classifier, or its log-odds log(p / (1 - p)).

    softmax over labels:   p = exp(z_label) / sum_k exp(z_k)
                           log-odds = z_label - logsumexp of the others
    a single output or a multi-label model (sigmoid):   p = sigmoid(z), log-odds = z
    """

    def __init__(self, model: Any, tokenizer, config: "ClassifierScorer"):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.label_index = _label_index(model.config, config)
        # a token for empty texts and for padding: the first of these that the tokenizer has
        ids = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        self.end_id = next((token for token in ids if token is not None), 0)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = self.end_id
        agree_on_padding(model, tokenizer)
        tokenizer.padding_side = "right"  # a decoder-only classifier looks for its last token
        self.max_length = min(longest_input(model) or 2**20, tokenizer.model_max_length)
        self.seen = 0  # inputs so far
        self.cut_inputs = 0  # those of them that were longer than the classifier can read
        self.reader = self._conversation_reader()

    def _conversation_reader(self) -> ConversationReader | None:
        """How a decoder-only classifier reads prompt and response; None: it reads them otherwise.

        Raises:
          UserError: settings of this reading are given for another classifier.
        """
        is_decoder = shape_of_config(self.model.config) == "causal"
        reads = self.config.reads
        if not is_decoder:
            refuse_reading(self.config.ckpt, reads)
            return None
        if reads == "response" or (reads is None and not self.tokenizer.chat_template):
            return None
        form = None if reads == "pair" else reads
        return ConversationReader(shorten(self.config.ckpt), self.tokenizer, self.max_length, form)

    @classmethod
    def load(cls, config: "ClassifierScorer", device: str, dtype: str) -> "LabelScorer":
        """Load the classifier.

        Raises:
          UserError: there is none, it lacks the label, or padding changes its scores.
        """
        try:
            network_config = load_config(config.ckpt)
            tokenizer = load_tokenizer(config.ckpt)
            model: Any = load_weights(
                AutoModelForSequenceClassification,
                config.ckpt,
                config=network_config,
                dtype=DTYPES[dtype],
            )
            check_vocabulary(tokenizer, model)
        except (OSError, ValueError) as error:
            raise UserError(
                f"no text classifier could be loaded from `{config.ckpt}`: {error} Give a folder or"
                " hub name of a sequence classifier."
            ) from None
        placed = place(with_exact_heads(model), device, dtype)
        scorer = cls(placed.eval().requires_grad_(False), tokenizer, config)
        with torch.no_grad():
            check_score(model, tokenizer)
        return scorer

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """The score of every text, after its prompt if the classifier reads prompts."""
        if self.reader is not None:
            return self._scores_of_conversations(self.reader, prompts, texts)
        if self.config.reads == "pair":
            return self._scores([(prompt.text, text) for prompt, text in zip(prompts, texts)])
        return self._scores(texts)

    @torch.no_grad()
    def _scores(self, inputs: Sequence[str | tuple[str, str]]) -> list[float]:
        """The score of every input. Inputs of similar length share a batch."""
        order = sorted(range(len(inputs)), key=lambda i: sum(map(len, inputs[i])))
        scores = [0.0] * len(inputs)
        for start in range(0, len(order), self.config.batch_size):
            places = order[start : start + self.config.batch_size]
            batch = self._batch([inputs[i] for i in places]).to(self.model.device)
            logits = self.model(**batch).logits.float()
            for i, value in zip(places, self._score_of_logits(logits).tolist()):
                scores[i] = value
        return scores

    @torch.no_grad()
    def _scores_of_conversations(
        self, reader: ConversationReader, prompts: Sequence[Prompt], texts: Sequence[str]
    ) -> list[float]:
        """The score of every text after its prompt, as the trainers of such models write them."""
        rows = [reader.ids(prompt, text) or [self.end_id] for prompt, text in zip(prompts, texts)]
        self.seen, self.cut_inputs = reader.seen, reader.cut
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        scores = [0.0] * len(rows)
        for start in range(0, len(order), self.config.batch_size):
            places = order[start : start + self.config.batch_size]
            padded = self.tokenizer.pad(
                {"input_ids": [rows[i] for i in places]}, return_tensors="pt"
            ).to(self.model.device)
            logits = self.model(**padded).logits.float()
            for i, value in zip(places, self._score_of_logits(logits).tolist()):
                scores[i] = value
        return scores

    def _batch(self, inputs: Sequence[str | tuple[str, str]]):
        """Padded token ids. An empty text without special tokens becomes one end token."""
        rows = []
        for text in inputs:
            texts = text if isinstance(text, tuple) else (text,)
            row = self.tokenizer(*texts, truncation=True, max_length=self.max_length)
            rows.append(row)
            self.seen += 1
            if len(row["input_ids"]) == self.max_length:
                whole = self.tokenizer(*texts, verbose=False)
                if len(whole["input_ids"]) > self.max_length:
                    self.cut_inputs += 1
        for row in rows:
            if not row["input_ids"]:
                row["input_ids"] = [self.end_id]
                row["attention_mask"] = [1]
                if "token_type_ids" in row:
                    row["token_type_ids"] = [0]
        return self.tokenizer.pad(rows, return_tensors="pt")

    def _score_of_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """(batch, labels) -> (batch,)."""
        chosen = logits[:, self.label_index]
        is_multi_label = self.model.config.problem_type == "multi_label_classification"
        if is_multi_label or logits.shape[1] == 1:  # a sigmoid per label
            log_odds = chosen
        else:  # a softmax over labels
            others = [k for k in range(logits.shape[1]) if k != self.label_index]
            log_odds = chosen - logits[:, others].logsumexp(1)
        return log_odds if self.config.score == "log_odds" else log_odds.sigmoid()


def _label_index(network_config, config: "ClassifierScorer") -> int:
    names = {str(name): int(index) for index, name in network_config.id2label.items()}
    assert config.label is not None  # its config says so
    if config.label not in names:
        raise UserError(
            f"the classifier `{config.ckpt}` has no label `{shorten(config.label, 60)}`;"
            f" {suggestion(config.label, list(names))}"
        )
    return names[config.label]
