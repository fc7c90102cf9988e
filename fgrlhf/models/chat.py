"""Chat templates: a prompt as the turns of a conversation, and the end of the model's turn.

A template is part of a tokenizer. It writes a conversation in the form in which the model was
trained to read it, for example

    <s><|user|>a prompt<|end|><|assistant|>        then the response, then        <|end|>

It writes all special tokens itself, so its output is tokenised without adding them again.
"""

from bisect import bisect_right
from collections.abc import Sequence

from fgrlhf.errors import UserError, shorten
from fgrlhf.models.dialogs import fit_dialog
from fgrlhf.text_types import ASSISTANT, USER, Message, Prompt

PLACEHOLDER = "answer"  # a dummy response, used to find the text that follows it


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
      tokenizer: a tokenizer with a chat template.
      max_input_len: limit for prompt and template together, in tokens.

    Raises:
      UserError: the template leaves no tokens for the prompt, or it cannot be used.
    """

    def __init__(self, tokenizer, max_input_len: int):
        self.tokenizer = tokenizer
        self.max_input_len = max_input_len
        template_length = self._length(self.write(Prompt("", "")))
        if template_length >= max_input_len:
            raise UserError(
                f"max_input_len is {max_input_len}, but the tokenizer's chat template alone takes"
                f" {template_length} tokens, which leaves none for the prompt: raise it, or remove"
                " the template from the tokenizer (in RL: model.policy_model.chat_template=false)"
            )

    def turns(self, prompt: Prompt) -> str:
        """The prompt as the user's turn, followed by the beginning of the model's turn.

        A dialog is several turns. A prompt that is too long loses its oldest turns, then the end of
        its last message; the template is never cut.
        """
        return fit_dialog(
            messages_of(prompt),
            self._open_conversation,
            self._length,
            lambda text, excess: without_last_tokens(self.tokenizer, text, excess),
            self.max_input_len,
        )

    def end_ids(self) -> list[int]:
        """The special token with which the template ends the model's turn, or nothing."""
        conversation = self._apply([(USER, PLACEHOLDER), (ASSISTANT, PLACEHOLDER)])
        after_response = conversation.rpartition(PLACEHOLDER)[2]
        ids = self.tokenizer(after_response, add_special_tokens=False)["input_ids"]
        special = special_ids(self.tokenizer)
        return [i for i in ids if i in special][:1]

    def write(self, prompt: Prompt) -> str:
        """As `turns`, but without a limit on the length."""
        return self._open_conversation(messages_of(prompt))

    def conversation(self, messages: Sequence[Message]) -> str:
        """A whole conversation, which ends with a turn of the model."""
        return self._apply(messages)

    def _open_conversation(self, messages: Sequence[Message]) -> str:
        return self._apply(messages, add_generation_prompt=True)

    def _apply(self, messages: Sequence[Message], **options: bool) -> str:
        conversation = [{"role": role, "content": text} for role, text in messages]
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False, **options)
        except Exception as error:  # a template is a program, so it can raise anything
            raise UserError(
                f"the chat template of the policy's tokenizer fails ({type(error).__name__}:"
                f" {shorten(error)}), so prompts cannot be written as a user's turn: correct the"
                " template, or remove it from the tokenizer (in RL:"
                " model.policy_model.chat_template=false)"
            ) from None

    def _length(self, written: str) -> int:
        return len(self.tokenizer(written, add_special_tokens=False)["input_ids"])


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """The messages of a dialog; a prompt without messages is a single one of the user."""
    return prompt.messages or ((USER, prompt.text),)


def without_last_tokens(tokenizer, text: str, excess: int) -> str:
    """The text without its last `excess` tokens, shorter by at least one character."""
    if not tokenizer.is_fast:
        return _without_offsets(tokenizer, text, excess)
    tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    starts = [start for start, _ in tokens["offset_mapping"]]
    remaining = len(starts) - excess
    if remaining <= 0:
        return ""
    return text[: min(starts[remaining], len(text) - 1)]


def _without_offsets(tokenizer, text: str, excess: int) -> str:
    """`without_last_tokens` for a tokenizer that gives no character offsets (ByT5)."""

    def count_tokens(length: int) -> int:
        beginning = text[:length]
        return len(tokenizer(beginning, add_special_tokens=False, verbose=False)["input_ids"])

    remaining = count_tokens(len(text)) - excess
    if remaining <= 0:
        return ""
    first_too_long = bisect_right(range(len(text)), remaining, key=count_tokens)
    return text[: first_too_long - 1]


def special_ids(tokenizer) -> set[int]:
    """The special tokens, those without a role included.

    The end of a turn may be marked as special in the vocabulary without being the tokenizer's
    end-of-sequence token.
    """
    vocabulary = tokenizer.added_tokens_decoder.items()
    marked = {i for i, token in vocabulary if token.special}
    return marked | set(tokenizer.all_special_ids)


def load_chat_template(tokenizer, setting: bool | None, max_input_len: int) -> ChatTemplate | None:
    """The tokenizer's chat template, or None if prompts are plain text.

    With False the template is removed from the tokenizer, so that a saved policy carries the
    template it was trained with and no other.

    Args:
      tokenizer: may have a chat template.
      setting: `model.policy_model.chat_template`. None: use it if present; True: require it;
        False: ignore it.
      max_input_len: limit for prompt and template together, in tokens.

    Raises:
      UserError: a template is required and the tokenizer has none, or it cannot be used.
    """
    if setting is False:
        tokenizer.chat_template = None
    if setting and not tokenizer.chat_template:
        raise UserError(
            "model.policy_model.chat_template is true, but the policy's tokenizer has no chat"
            " template, so the form of a user's turn is unknown: leave the setting out, or use a"
            " checkpoint whose tokenizer has one"
        )
    return ChatTemplate(tokenizer, max_input_len) if tokenizer.chat_template else None
