"""How the decoder-only reward models of other programs read a prompt and its answer.

Their trainers (TRL's `RewardTrainer` and those of most published models) let the network read

    the tokenizer's chat template of the whole conversation, the answer included, or, without one,
    prompt + answer + end-of-sequence token

and take the output at the last token as the score. Another text has another score, and the order of
two answers may turn round.
"""

from collections.abc import Sequence
from typing import get_args

from fgrlhf.base.errors import shorten
from fgrlhf.base.shared_messages import print_once
from fgrlhf.models.chat import ChatTemplate, messages_of, without_last_tokens
from fgrlhf.models.dialogs import fit_dialog
from fgrlhf.reward_models.rm_input import Cuts, RMInput
from fgrlhf.reward_models.scoring import SequenceScorer
from fgrlhf.text_types import ASSISTANT, ConversationForm, Message, Prompt

CONVERSATION_FORMS = get_args(ConversationForm)


class ConversationReader:
    """Prompt and answer as token ids, in the form of the trainers above.

    Args:
      name: of the model, for messages.
      tokenizer: of the model; it may have a chat template.
      max_length: most tokens of an input. A conversation loses its oldest turns, then the answer's
        end; without a template the prompt loses its end.
      form: chat: by the template; text_eos: prompt, answer and the end-of-sequence token that the
        tokenizer may have; text: prompt and answer; None: chat if there is a template, else
        text_eos.

    Attributes:
      seen, cut: numbers of inputs, and of those that were too long.

    Raises:
      UserError: a template is asked for, and there is none or it fails.
    """

    def __init__(
        self,
        name: str,
        tokenizer,
        max_length: int,
        form: ConversationForm | None = None,
    ):
        self.name = name
        self.tokenizer = tokenizer
        self.max_length = max_length
        if form is None:
            form = "chat" if tokenizer.chat_template else "text_eos"
        self.chat = ChatTemplate(tokenizer, max_length) if form == "chat" else None
        self.end = (tokenizer.eos_token or "") if form == "text_eos" else ""
        self.seen = self.cut = 0

    def ids(self, prompt: Prompt, answer: str) -> list[int]:
        """The tokens of a prompt and its answer, at most `max_length`."""
        text = self._written(prompt, answer)
        if self.seen == 0:
            print_once(f"note: the first text that {self.name} reads is {shorten(repr(text), 400)}")
        self.seen += 1
        ids = self._ids(text)
        if len(ids) > self.max_length:
            self.cut += 1
            ids = self._ids(self._shortened(prompt, answer))
        return ids[-self.max_length :]

    def _ids(self, text: str) -> list[int]:
        options = {"add_special_tokens": self.chat is None, "verbose": False}
        return self.tokenizer(text, **options)["input_ids"]

    def _written(self, prompt: Prompt, answer: str) -> str:
        if self.chat is None:
            return prompt.text + answer + self.end
        return self.chat.conversation([*messages_of(prompt), (ASSISTANT, answer)])

    def _shortened(self, prompt: Prompt, answer: str) -> str:
        if self.chat is not None:
            messages: Sequence[Message] = (*messages_of(prompt), (ASSISTANT, answer))
            return fit_dialog(
                messages,
                self.chat.conversation,
                lambda text: len(self._ids(text)),
                lambda text, excess: without_last_tokens(self.tokenizer, text, excess),
                self.max_length,
            )
        before = prompt.text
        text = before + answer + self.end
        while before and len(self._ids(text)) > self.max_length:
            excess = len(self._ids(text)) - self.max_length
            before = without_last_tokens(self.tokenizer, before, excess)
            text = before + answer + self.end
        return text


class ConversationScorer(SequenceScorer):
    """A sequence scorer of another program: it reads conversations instead of words."""

    reader: ConversationReader

    def encode(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[RMInput]:
        """The network's input for each text; see the module's docstring."""
        before = self.reader.cut
        inputs = []
        for prompt, text in zip(prompts, texts, strict=True):
            inputs.append(RMInput(self.reader.ids(prompt, text) or [self._end_id], None, ()))
        self.inputs.cuts += Cuts(inputs=len(inputs), prefixes=self.reader.cut - before)
        return inputs

    @property
    def _end_id(self) -> int:
        """What is read of an empty text."""
        tokenizer = self.reader.tokenizer
        return tokenizer.pad_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
