"""Chat templates: a prompt as the user's turn of a conversation, and the end of the model's turn.

A template is part of a tokenizer. It writes a conversation in the form in which the model was
trained to read it, for example

    <s><|user|>a prompt<|end|><|assistant|>        then the response, then        <|end|>

It writes all special tokens itself, so its output is tokenised without adding them again.
"""

from fgrlhf.errors import UserError, shorten

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
        template_length = self._length(self.write(""))
        if template_length >= max_input_len:
            raise UserError(
                f"env.max_input_len is {max_input_len}, but the tokenizer's chat template alone"
                f" takes {template_length} tokens, which leaves none for the prompt: raise it, or"
                " set model.policy_model.chat_template=false"
            )

    def turn(self, prompt: str) -> str:
        """The prompt as the user's turn, followed by the beginning of the model's turn.

        A long prompt is cut at its end; the template is never cut.
        """
        written = self.write(prompt)
        while prompt:
            excess = self._length(written) - self.max_input_len
            if excess <= 0:
                break
            prompt = self._without_last_tokens(prompt, excess)
            # a shorter prompt may be split into other tokens, so the length is checked again
            written = self.write(prompt)
        return written

    def _without_last_tokens(self, prompt: str, excess: int) -> str:
        """The prompt without its last `excess` tokens, shorter by at least one character."""
        tokens = self.tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in tokens["offset_mapping"]]
        remaining = len(starts) - excess
        if remaining <= 0:
            return ""
        return prompt[: min(starts[remaining], len(prompt) - 1)]

    def end_ids(self) -> list[int]:
        """The special token with which the template ends the model's turn, or nothing."""
        conversation = [
            {"role": "user", "content": PLACEHOLDER},
            {"role": "assistant", "content": PLACEHOLDER},
        ]
        after_response = self._apply(conversation).rpartition(PLACEHOLDER)[2]
        ids = self.tokenizer(after_response, add_special_tokens=False)["input_ids"]
        special = special_ids(self.tokenizer)
        return [i for i in ids if i in special][:1]

    def write(self, prompt: str) -> str:
        """As `turn`, but without a limit on the length."""
        return self._apply([{"role": "user", "content": prompt}], add_generation_prompt=True)

    def _apply(self, conversation: list[dict[str, str]], **options: bool) -> str:
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False, **options)
        except Exception as error:  # a template is a program, so it can raise anything
            raise UserError(
                f"the chat template of the policy's tokenizer fails ({type(error).__name__}:"
                f" {shorten(error)}), so prompts cannot be written as a user's turn: correct the"
                " template, or set model.policy_model.chat_template=false"
            ) from None

    def _length(self, written: str) -> int:
        return len(self.tokenizer(written, add_special_tokens=False)["input_ids"])


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
