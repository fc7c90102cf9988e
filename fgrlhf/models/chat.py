"""Chat templates: a prompt as the user's turn of a conversation, and the tokens that end the
model's turn.

A template is part of a tokenizer. It writes a conversation out as the model was taught to read it,
e.g.

    <s><|user|>a prompt<|end|><|assistant|>        then the response, then        <|end|>

It writes the beginning of a sequence itself, so what it wrote is tokenised without adding special
tokens again.
"""

from fgrlhf.errors import UserError, shorten

ANSWER = "answer"  # stands for any response where only what follows it is of interest


class ChatTemplate:
    """The chat template of a tokenizer, for prompts of at most `max_input_len` tokens, the
    template's own included.

    Raises:
      UserError: the template alone needs more than that, or it cannot be used.
    """

    def __init__(self, tokenizer, max_input_len: int):
        self.tokenizer, self.max_input_len = tokenizer, max_input_len
        around = self._length(self.write(""))
        if around >= max_input_len:
            raise UserError(
                f"env.max_input_len is {max_input_len}, but the tokenizer's chat template alone"
                f" takes {around} tokens, which leaves none for the prompt: raise it, or set"
                " model.policy_model.chat_template=false"
            )

    def turn(self, prompt: str) -> str:
        """The prompt as the user's turn, followed by what begins the model's. A long prompt loses
        its end, never the template.
        """
        written = self.write(prompt)
        while prompt and (excess := self._length(written) - self.max_input_len) > 0:
            starts = [
                start
                for start, _ in self.tokenizer(
                    prompt, add_special_tokens=False, return_offsets_mapping=True
                )["offset_mapping"]
            ]
            kept = len(starts) - excess
            prompt = prompt[: min(starts[kept], len(prompt) - 1)] if kept > 0 else ""
            written = self.write(prompt)
        return written

    def end_ids(self) -> list[int]:
        """The special token with which the template ends the model's turn, where there is one."""
        said = [{"role": "user", "content": ANSWER}, {"role": "assistant", "content": ANSWER}]
        after = self._apply(said).rpartition(ANSWER)[2]
        special = [
            i
            for i in self.tokenizer(after, add_special_tokens=False)["input_ids"]
            if i in self.tokenizer.all_special_ids
        ]
        return special[:1]

    def write(self, prompt: str) -> str:
        """The whole prompt as the user's turn, however long, followed by what begins the
        model's.
        """
        return self._apply([{"role": "user", "content": prompt}], add_generation_prompt=True)

    def _apply(self, conversation: list[dict[str, str]], **how) -> str:
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False, **how)
        except (
            Exception
        ) as error:  # a template is a program of the checkpoint's author and can raise anything
            raise UserError(
                f"the chat template of the policy's tokenizer fails ({type(error).__name__}:"
                f" {shorten(error)}), so prompts cannot be written as a user's turn: correct the"
                " template, or set model.policy_model.chat_template=false"
            ) from None

    def _length(self, written: str) -> int:
        return len(self.tokenizer(written, add_special_tokens=False)["input_ids"])


def chat_of(tokenizer, wanted: bool | None, max_input_len: int) -> ChatTemplate | None:
    """The tokenizer's template: where it has one (`wanted=None`), by all means (True), or not at
    all (False).

    What is not used is removed, so that a saved tokenizer tells later stages what the policy was
    trained with.

    Raises:
      UserError: a template is wanted and the tokenizer has none.
    """
    if wanted is False:
        tokenizer.chat_template = None
    if wanted and not tokenizer.chat_template:
        raise UserError(
            "model.policy_model.chat_template is true, but the policy's tokenizer has no chat"
            " template, so nothing says how a user's turn is written: leave the setting out, or"
            " take a checkpoint whose tokenizer has one"
        )
    return ChatTemplate(tokenizer, max_input_len) if tokenizer.chat_template else None
