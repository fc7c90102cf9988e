"""Chat templates: a prompt as the turns of a conversation, and the end of the model's turn.

A template is part of a tokenizer. It writes a conversation in the form in which the model was
trained to read it, for example

    <s><|user|>a prompt<|end|><|assistant|>        then the response, then        <|end|>

It writes all special tokens itself, so its output is tokenised without adding them again. An answer
is what the template writes after the opened turn:

    opened turn             template(prompt, add_generation_prompt=True)
    opened turn + answer    template(prompt and answer)

Templates remove white space at an answer's edges, or write something before it (an empty `<think>`
block) or after it. The policy learns all of this, up to the token that ends its turn.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import cached_property
from itertools import chain, combinations
from os.path import commonprefix
from typing import NamedTuple

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.shared_messages import print_once
from fgrlhf.models.dialogs import fit_dialog
from fgrlhf.text_types import ASSISTANT, SYSTEM, USER, Message, Prompt

PLACEHOLDER = "x0y"  # a dummy text, used to find what the template writes around it
# Templates that write the current date (Llama 3, Granite, SmolLM3, gpt-oss) get this one, because
# results must not depend on the day. It is the date that Llama 3's writes without a clock.
DATE = datetime(2024, 7, 26)
CLOCK = re.compile(r"""strftime_now\(\s*(["'])([^"']*)\1\s*\)""")  # how such templates ask for it
OPEN_BLOCK = re.compile(
    r"<([A-Za-z_]\w*)>\s*$"
)  # such as the `<think>` with which a turn is opened
PART = re.compile(r"""type["']: ["']text""")  # in the text of a list of parts
WAY_OUT = "correct the template, or set model.chat_template=false"


class AnswerTokens(NamedTuple):
    """An answer as the policy writes it.

    Attributes:
      ids: its tokens, with the one that ends the turn, if the template writes it.
      offsets: the characters [start, end) of each token in the answer's text. They are outside of
        it for what the template adds. None: not asked for, or the template changes the text.
    """

    ids: list[int]
    offsets: list[tuple[int, int]] | None


class Frame(NamedTuple):
    """What the template writes around an answer, after the opened turn."""

    lead: str
    tail: str


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
        self.template = self._without_clock()
        self._parts: dict[tuple[str, ...], tuple[str, ...]] = {}  # see `_roles_with_parts`
        self._first = self._first_messages()
        template_length = self._length(self._opened([*self._first, (USER, "")]))
        if template_length >= max_input_len:
            raise UserError(
                f"max_input_len is {max_input_len}, but the tokenizer's chat template alone takes"
                f" {template_length} tokens, which leaves none for the prompt: raise it, or remove"
                " the template from the tokenizer (model.chat_template=false)"
            )

    # ---- prompts ---------------------------------------------------------------------------------

    def turns(self, prompt: Prompt) -> str:
        """The prompt as the user's turn, followed by the beginning of the model's turn.

        A dialog is several turns. A prompt that is too long loses its oldest turns, then the end of
        its last message; the template is never cut.
        """
        return fit_dialog(
            messages_of(prompt),
            lambda messages: self._opened(messages, prompt.id),
            self._length,
            lambda text, excess: without_last_tokens(self.tokenizer, text, excess),
            self.max_input_len,
        )

    def write(self, prompt: Prompt) -> str:
        """As `turns`, but without a limit on the length."""
        return self._opened(messages_of(prompt), prompt.id)

    def conversation(self, messages: Sequence[Message], name: str = "") -> str:
        """A whole conversation, which ends with a turn of the model.

        Args:
          name: the id of its prompt, for messages.
        """
        return self._apply(messages, name)

    # ---- answers ---------------------------------------------------------------------------------

    def answers(
        self, prompts: Sequence[Prompt], texts: Sequence[str], offsets: bool = False
    ) -> list[AnswerTokens]:
        """The tokens of each answer, as they follow its prompt in the whole conversation.

        If a token would join the end of the prompt with the beginning of the answer, the answer is
        tokenised by itself, as the policy writes it after a prompt.

        Raises:
          UserError: the template cannot write an answer in the form that follows the opened turn.
        """
        contexts = []
        written = []
        for prompt, text in zip(prompts, texts, strict=True):
            opened = self.write(prompt)
            contexts.append(self._context(opened))
            written.append(self.answer(prompt, text, opened))
        results = []
        tokens = self._tokens_after(contexts, written, offsets)
        for answer, text, (ids, characters) in zip(written, texts, tokens):
            if self.end_ids and self.end_ids[0] in ids:
                ids = ids[: len(ids) - ids[::-1].index(self.end_ids[0])]
            place = self._place(answer, text)
            if not offsets or place is None:
                results.append(AnswerTokens(ids, None))
                continue
            moved = [(start - place, end - place) for start, end in characters[: len(ids)]]
            results.append(AnswerTokens(ids, moved))
        return results

    def answer(self, prompt: Prompt, text: str, opened: str | None = None) -> str:
        """What the template writes of an answer after the opened turn, its end included.

        Three kinds of templates write an answered conversation that does not continue the prompt:

        - They move something (Mistral moves the system message to the last user's message). The
          answer is then that of a short conversation, if the whole ends with it.
        - They drop thoughts (DeepSeek R1, whose prompt may open a `<think>` block). An answer with
          such a block is then written as it is.
        - Others are refused.

        Args:
          opened: `write(prompt)`, if it is known.
        """
        opened = self.write(prompt) if opened is None else opened
        whole = self.conversation([*messages_of(prompt), (ASSISTANT, text)], prompt.id)
        if whole.startswith(opened):
            answer = whole[len(opened) :]
            if _without_space(text) in _without_space(answer):
                return answer
        else:
            short_opened, short_whole = self._short(text)
            answer = short_whole[len(short_opened) :]
            continues = short_whole.startswith(short_opened) and whole.endswith(answer)
            if continues and _without_space(text) in _without_space(answer):
                return answer
        if _ends_thoughts(opened, text):
            return text + self.frame.tail
        name = f" to the prompt {shorten(prompt.id, 80)}" if prompt.id else ""
        opening = opened[len(commonprefix([opened, whole])) :]
        without = f" (an answered turn lacks {shorten(repr(opening), 60)})" if opening else ""
        raise UserError(
            f"the chat template of the policy's tokenizer does not write the answer{name} as a"
            " continuation of the turn that it opens for the model: it changes the turn's beginning"
            f" or drops a part of the answer{without}. Training would differ from sampling."
            f" {WAY_OUT[0].upper()}{WAY_OUT[1:]}"
        )

    def reply_ids(self, role: str, text: str) -> list[int]:
        """The tokens between two turns of the model: another's turn, and the opened next one.

        They begin after the token that ends the model's turn, which it has written itself.

        Raises:
          UserError: the template has no turn of this role after one of the model.
        """
        answer = PLACEHOLDER.replace("0", "1")
        asked = [*self._first, (USER, PLACEHOLDER), (ASSISTANT, answer)]
        opened = self._opened([*asked, (role, text)])
        ids = self._ids(opened[opened.lower().index(answer) + len(answer) :])
        end = self.end_ids[0] if self.end_ids else None
        return ids[ids.index(end) + 1 :] if end in ids else ids

    @cached_property
    def frame(self) -> Frame:
        """What the template writes around an answer; no lead if it opens turns otherwise."""
        opened, whole = self._short(PLACEHOLDER)
        *_, (start, end) = (m.span() for m in re.finditer(PLACEHOLDER, whole, re.IGNORECASE))
        lead = whole[len(opened) : start] if whole.startswith(opened) else ""
        return Frame(lead, whole[end:])

    @cached_property
    def end_ids(self) -> list[int]:
        """The token with which the template ends the model's turn, or nothing.

        It is the first token after the answer that the tokenizer never divides. If the vocabulary
        does not mark it as special, it is marked now: it is no part of a text.
        """
        ids = self.tokenizer(self.frame.tail, add_special_tokens=False)["input_ids"]
        special = special_ids(self.tokenizer)
        added = self.tokenizer.added_tokens_decoder
        end = [i for i in ids if i in special or i in added][:1]
        if end and end[0] not in special:
            token = copy(added[end[0]])
            token.special = True
            self.tokenizer.add_tokens([token], special_tokens=True)
        return end

    @property
    def lead(self) -> str:
        """What the template writes between the opened turn and an answer, if it is not blank.

        The policy learns to write it (gpt-oss's header, the empty `<think>` block of Qwen 3), but
        it is no part of the answer's text. White space alone counts as text.
        """
        return self.frame.lead if self.frame.lead.strip() else ""

    # ---- parts -----------------------------------------------------------------------------------

    def _short(self, text: str) -> tuple[str, str]:
        """A conversation of one prompt: with the turn opened, and with an answer."""
        asked = [*self._first, (USER, PLACEHOLDER)]
        return self._opened(asked), self.conversation([*asked, (ASSISTANT, text)])

    def _first_messages(self) -> list[Message]:
        """What must be before the user's message: nothing, or a system message.

        Raises:
          UserError: the template fails, or drops the user's message, with both.
        """
        try:
            self._opened([(USER, PLACEHOLDER)])
        except UserError as error:
            system = [(SYSTEM, PLACEHOLDER)]
            with suppress(UserError):
                self._opened([*system, (USER, PLACEHOLDER)])
                return system
            raise error from None
        return []

    def _context(self, opened: str) -> str:
        """The end of a text, from its last special token: what is before it changes no token."""
        names = self.tokenizer.all_special_tokens
        return opened[max((opened.rfind(name) for name in names if name), default=0) :] or opened

    def _tokens_after(
        self, contexts: Sequence[str], texts: Sequence[str], offsets: bool
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text after its context, and their characters in the text if wanted."""
        options = {"add_special_tokens": False, "verbose": False}
        joint = self.tokenizer(
            [context + text for context, text in zip(contexts, texts)],
            return_offsets_mapping=offsets,
            **options,
        )
        ids_of = {context: self._ids(context) for context in set(contexts)}
        results = []
        for i, (context, text) in enumerate(zip(contexts, texts)):
            before = ids_of[context]
            n = len(before)
            if joint["input_ids"][i][:n] == before:
                ids = joint["input_ids"][i][n:]
                spans = joint["offset_mapping"][i][n:] if offsets else []
                results.append((ids, [(a - len(context), b - len(context)) for a, b in spans]))
                continue
            results.append(self._tokens_alone(context, text, offsets))
        return results

    def _tokens_alone(
        self, context: str, text: str, offsets: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """`_tokens_after` of a text that does not share a token with its context.

        Tokenizers may put a space before a text, but not before one that follows a special token.

        Raises:
          UserError: the tokens are not those of the text.
        """
        before = self._ids(context)
        for mark in ("", *self.tokenizer.all_special_tokens[:1]):
            tokens = self.tokenizer(
                mark + text,
                add_special_tokens=False,
                return_offsets_mapping=offsets,
                verbose=False,
            )
            n = len(self._ids(mark))
            ids = tokens["input_ids"][n:]
            if self._decoded([*before, *ids]) == self._decoded(self._ids(context + text)):
                spans = tokens["offset_mapping"][n:] if offsets else []
                return ids, [(start - len(mark), end - len(mark)) for start, end in spans]
        raise UserError(
            "the tokenizer joins the beginning of an answer with the chat template's text before"
            f" it, and cannot write it apart: {shorten(repr(text), 80)}. Remove this answer, or"
            " white space at its beginning"
        )

    def _decoded(self, ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return self.tokenizer.decode(ids, **options)

    def _place(self, answer: str, text: str) -> int | None:
        """Where an answer's text begins in what the template writes of it; None: nowhere."""
        stripped = text.strip()
        after = len(self.frame.lead) if answer.startswith(self.frame.lead) else 0
        place = answer.find(stripped, after)
        return None if place < 0 else place - (len(text) - len(text.lstrip()))

    def _without_clock(self) -> str | None:
        """The template with `DATE` instead of the current date; None: the tokenizer's own."""
        template = self.tokenizer.chat_template
        if isinstance(template, dict):  # several templates by name; this one is for conversations
            template = template.get("default")
        if template is None or not CLOCK.search(template):
            return None
        print_once(
            "note: the chat template writes the current date. Prompts have"
            f" {DATE:%d %b %Y} instead, so that results do not depend on the day"
        )
        return CLOCK.sub(lambda call: repr(DATE.strftime(call[2])), template)

    def _opened(self, messages: Sequence[Message], name: str = "") -> str:
        return self._apply(messages, name, add_generation_prompt=True)

    def _apply(self, messages: Sequence[Message], name: str, **options: bool) -> str:
        where = f" for the prompt {shorten(name, 80)}" if name else ""
        roles = tuple(role for role, _ in messages)
        with_parts = self._roles_with_parts(roles, where, **options)
        try:
            return self._rendered(messages, with_parts, **options)
        except Exception as error:  # a template is a program, so it can raise anything
            raise UserError(
                f"the chat template of the policy's tokenizer fails{where} ({type(error).__name__}:"
                f" {shorten(error)}), so prompts cannot be written as a user's turn: {WAY_OUT}"
            ) from None

    def _roles_with_parts(
        self, roles: tuple[str, ...], where: str, **options: bool
    ) -> tuple[str, ...]:
        """The roles in a conversation whose texts the template reads only as a list of parts.

        A template drops what it does not read, without an error. So a conversation of these roles
        is written first with texts of which each must be found in the result. The exception is the
        system message of an answered conversation: Mistral 7B v0.3 writes it before the last
        user's message only if no answer follows, and its reward models are trained so.

        Raises:
          UserError: a role's text is dropped in both forms.
        """
        key = (*roles, *options)
        if key in self._parts:
            return self._parts[key]
        messages = [(role, PLACEHOLDER.replace("0", str(i))) for i, role in enumerate(roles)]
        used = sorted(set(roles))
        forms = []
        for with_parts in chain.from_iterable(combinations(used, n) for n in range(len(used) + 1)):
            with suppress(Exception):  # another form may do, or the real texts fail too
                written = self._rendered(messages, with_parts, **options).lower()
                if with_parts and PART.search(written):
                    continue  # the list itself, as a text
                forms.append(([r for r, text in messages if text not in written], with_parts))
                if not forms[-1][0]:
                    break
        lost, with_parts = min(forms, key=lambda form: len(form[0]), default=([], ()))
        for role in lost:
            if role != SYSTEM or options:
                kind = SYSTEM if role == SYSTEM else f"{role}'s"
                raise UserError(
                    "the chat template of the policy's tokenizer does not write the"
                    f" {kind} message{where}, so it would be lost: {WAY_OUT}, or use rows without"
                    " such messages"
                )
        self._parts[key] = with_parts
        return with_parts

    def _rendered(
        self, messages: Sequence[Message], with_parts: Collection[str], **options: bool
    ) -> str:
        """What the template writes.

        Args:
          with_parts: roles whose texts are given as lists of parts.
        """
        conversation = []
        for role, text in messages:
            content = [{"type": "text", "text": text}] if role in with_parts else text
            conversation.append({"role": role, "content": content})
        return self.tokenizer.apply_chat_template(
            conversation, chat_template=self.template, tokenize=False, **options
        )

    def _ids(self, written: str) -> list[int]:
        return self.tokenizer(written, add_special_tokens=False, verbose=False)["input_ids"]

    def _length(self, written: str) -> int:
        return len(self._ids(written))


def _without_space(text: str) -> str:
    return "".join(text.split())


def _ends_thoughts(opened: str, text: str) -> bool:
    """Whether an answer ends a block, such as `<think>`, that it or the prompt begins."""
    block = OPEN_BLOCK.search(opened)
    begun = [block[1]] if block else re.findall(r"^\s*<([A-Za-z_]\w*)>", text)
    return any(f"</{name}>" in text for name in begun)


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
      setting: `model.chat_template`. None: use it if present; True: require it;
        False: ignore it.
      max_input_len: limit for prompt and template together, in tokens.

    Raises:
      UserError: a template is required and the tokenizer has none, or it cannot be used.
    """
    if setting is False:
        tokenizer.chat_template = None
    if setting and not tokenizer.chat_template:
        raise UserError(
            "model.chat_template is true, but the policy's tokenizer has no chat"
            " template, so the form of a user's turn is unknown: leave the setting out, or use a"
            " checkpoint whose tokenizer has one"
        )
    template = tokenizer.chat_template
    if not template:
        return None
    if not isinstance(template, str | dict):
        raise UserError(
            f"the tokenizer's chat template is {shorten(repr(template), 60)}, not a text: correct"
            " `chat_template` in tokenizer_config.json, or set model.chat_template=false"
        )
    return ChatTemplate(tokenizer, max_input_len)
