"""Token ids of conversations in many styles of chat templates, against the tokenizer's own.

The templates are short forms of public styles. For prompts (RL, evaluation), demonstrations,
comparisons and reward models, the ids must be those of `apply_chat_template`, up to the end of the
model's turn.
"""

import json
import random
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from fgrlhf.alignment import char_ends
from fgrlhf.base.errors import UserError
from fgrlhf.data.comparisons import Answer, Comparison
from fgrlhf.data.formats import Demonstration
from fgrlhf.data.token_comparisons import encode_comparisons
from fgrlhf.models.chat import DATE
from fgrlhf.models.dialogs import dialog_text
from fgrlhf.policy import CausalPolicy
from fgrlhf.reward_models.conversation import ConversationReader
from fgrlhf.text_types import ASSISTANT, SYSTEM, USER, Prompt
from fgrlhf.utils import IGNORED
from sft.data import encode


@dataclass(frozen=True)
class Style:
    """A style of templates.

    Attributes:
      template: in Jinja.
      specials: its special tokens.
      bos, eos: among them; the tokenizer puts `bos` before every text.
      end: what ends the model's turn, if it is not `eos`.
      ordinary: added tokens that are not special.
      note: what is special about the style.
    """

    template: str
    specials: tuple[str, ...] = ()
    bos: str | None = None
    eos: str = "</s>"
    end: str | None = None
    ordinary: tuple[str, ...] = ()
    note: str = ""


TEMPLATES = Path(__file__).parent / "fixtures" / "chat_templates.json"


STYLES = {}
for name, facts in json.loads(TEMPLATES.read_text(encoding="utf-8")).items():
    lists = {key: tuple(facts.pop(key, ())) for key in ("specials", "ordinary")}
    STYLES[name] = Style(**facts, **lists)
CHATML = STYLES["chatml"].template
IM = STYLES["chatml"].specials


# ---- tokenizers and policies ---------------------------------------------------------------------


@cache
def trained(kind: str) -> str:
    """The JSON of a tokenizer: of bytes (GPT-2, Llama 3, Qwen), or of pieces (Llama 2)."""
    texts = [*tiny.TEXT * 20, "a\n\nb\n\n\nc", "### Response:\n", " user\n", "assistant\n"] * 3
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *bytes_])
    tokenizer.train_from_iterator(texts, trainer)
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = tree["added_tokens"][:1]  # bytes are pieces, not special tokens
    return json.dumps(tree)


def tokenizer_of(style: Style, kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the style's tokens, which puts the BOS token before every text."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained(kind)),
        eos_token=style.eos,
        bos_token=style.bos,
        pad_token="<pad>",
        additional_special_tokens=list(style.specials),
        chat_template=style.template,
    )
    tokenizer.add_tokens([name for name in style.ordinary if name != style.eos])
    if style.bos is not None:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{style.bos} $A", special_tokens=[(style.bos, tokenizer.bos_token_id)]
        )
    return tokenizer


def policy_of(name: str, kind: str) -> CausalPolicy:
    tokenizer = tokenizer_of(STYLES[name], kind)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return CausalPolicy(GPT2LMHeadModel(config), tokenizer, max_input_len=4000)


# ---- conversations -------------------------------------------------------------------------------

PIECES = (
    *("the red cat", "a dog.", "sees", "x", "\n", "\n\n", " ", "  ", "\t", "1. ", "- ", "`if`"),
    *(
        "naïve ☕",
        "🙂",
        "東京",
        "👩‍👩‍👧",
        "é",
        "\u200b",
        "<b>",
        "{{ x }}",
        "### Response:",
        "ASSISTANT:",
    ),
)


def text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 6)))


def conversations(seed: int, n: int = 7):
    """Prompts with their answers: many turns, blanks at the edges, empty texts, system messages."""
    rng = random.Random(seed)
    for number in range(n):
        messages = [(SYSTEM, text(rng))] if rng.random() < 0.3 else []
        for turn in range(rng.choice((1, 1, 2, 4))):
            if turn:
                messages.append((ASSISTANT, text(rng)))
            messages.append((USER, text(rng)))
        prompt = Prompt(str(number), dialog_text(messages), messages=tuple(messages))
        yield prompt, rng.choice(("sees a dog.", text(rng), text(rng)))


def rendered(tokenizer, messages, **options) -> list[int]:
    """What transformers makes of a conversation."""
    turns_of = [{"role": role, "content": content} for role, content in messages]
    return tokenizer.apply_chat_template(turns_of, return_dict=True, **options)["input_ids"]


def up_to_end(ids: list[int], policy: CausalPolicy) -> list[int]:
    """The conversation up to the end of the model's turn, which the template may not write."""
    end = policy.end_id
    if end in ids[-3:]:  # line breaks and the end of the text may follow
        return ids[: len(ids) - ids[::-1].index(end)]
    return [*ids, end]


# ---- the property --------------------------------------------------------------------------------

MOVED = {"mistral v3"}  # an answered conversation has another prompt


class Clock:
    """Instead of the clock of the templates."""

    now = staticmethod(lambda: DATE)


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch):
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", STYLES)
def test_ids_are_those_of_the_template(name, kind):
    policy = policy_of(name, kind)
    tokenizer = policy.tokenizer
    reader = ConversationReader("rm", tokenizer, 4000)
    seen = 0
    for prompt, answer in conversations(seed=len(name)):
        try:
            opened = rendered(tokenizer, prompt.messages, add_generation_prompt=True)
            whole = rendered(tokenizer, [*prompt.messages, (ASSISTANT, answer)])
        except Exception as error:
            assert "role" in str(error)
            with pytest.raises(UserError, match="role"):
                policy.tokenize([prompt])
            continue
        seen += 1
        assert policy.tokenize([prompt])["input_ids"] == [opened]
        assert policy.prompt_lengths([prompt]) == [len(opened)]
        assert reader.ids(prompt, answer) == whole
        (row,) = encode(policy, [Demonstration(prompt, answer)], 4000)
        assert row["input_ids"][: len(opened)] == opened
        assert row["labels"] == [IGNORED] * len(opened) + row["input_ids"][len(opened) :]
        learned = row["input_ids"][len(opened) :]
        assert learned[-1] == policy.end_id and policy.end_id in policy.eos_ids
        check_whole(name, policy, opened, learned, whole)
        check_text(policy, learned, answer)
        check_comparison(policy, prompt, answer, opened, learned)
    assert seen >= 2


def check_whole(name, policy, opened, learned, whole):
    expected = up_to_end(whole, policy)
    if [*opened, *learned] == expected:
        return
    # a token of the whole conversation may join the prompt's end with the answer's beginning
    decode = policy.tokenizer.decode
    assert decode(learned) in decode(expected)
    assert name in MOVED or (
        whole[: len(opened)] != opened and decode([*opened, *learned]) == decode(expected)
    )


def check_text(policy, learned, answer):
    """The text of the learned tokens is the answer, without white space at its edges."""
    text, ends = char_ends(policy.tokenizer, learned, policy.lead)
    assert text.strip() == answer.strip()
    assert len(ends) == len(learned) and ends[-1] == len(text)


def check_comparison(policy, prompt, answer, opened, learned):
    comparison = Comparison(prompt, (Answer(answer), Answer("another one")), ((0, 1),))
    (encoded,) = encode_comparisons(policy, [comparison], 4000)
    assert (list(encoded.prompt_ids), encoded.answer_ids[0]) == (opened, learned)


# ---- special cases -------------------------------------------------------------------------------

QUESTION = Prompt("7", "the red cat", messages=((USER, "the red cat"),))


def learned(policy, answer, prompt=QUESTION) -> str:
    (row,) = encode(policy, [Demonstration(prompt, answer)], 4000)
    return policy.tokenizer.decode([label for label in row["labels"] if label != IGNORED])


R1 = Style(  # the prompt opens a block, and answered turns lose it
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% else %}{% set c = m.content.split('</think>')[-1] %}<|Assistant|>{{ c }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>{{ '\n' }}{% endif %}",
    ("<|begin|>", "<|User|>", "<|Assistant|>", "<|end|>"),
    "<|begin|>",
    "<|end|>",
    ordinary=("<think>", "</think>"),
)


def test_an_answer_that_does_not_continue_the_opened_turn_is_refused(monkeypatch):
    monkeypatch.setitem(STYLES, "r1", R1)
    policy = policy_of("r1", "bytes")
    with pytest.raises(UserError, match="the answer to the prompt 7 as a.*lacks '<think>"):
        learned(policy, "a dog")
    # thoughts that end the opened block are kept, although the template would drop them
    assert learned(policy, "x sees\n</think>\n\na dog") == "x sees\n</think>\n\na dog<|end|>"


def test_a_part_that_the_template_drops_is_refused(monkeypatch):
    shortened = CHATML.replace("{{ m.content }}", "{{ m.content[:12] }}")
    monkeypatch.setitem(STYLES, "cut", Style(shortened, IM, eos="<|im_end|>"))
    policy = policy_of("cut", "bytes")
    assert learned(policy, "a dog") == "a dog<|im_end|>"
    with pytest.raises(UserError, match="drops a part of the answer"):
        learned(policy, "a dog sees the red cat")


def test_thoughts_of_an_answer_are_learned_in_the_form_of_the_template():
    policy = policy_of("qwen3", "bytes")
    thoughts = "<think>\nx\n</think>\n\na dog<|im_end|>"
    assert learned(policy, "<think>x</think>a dog") == thoughts
    assert learned(policy, "a dog") == "<think>\n\n</think>\n\na dog<|im_end|>"


def test_what_the_template_writes_before_an_answer_is_no_part_of_its_text():
    policy = policy_of("harmony", "bytes")
    (row,) = encode(policy, [Demonstration(QUESTION, "a dog")], 4000)
    ids = [label for label in row["labels"] if label != IGNORED]
    assert policy.tokenizer.decode(ids) == "<|channel|>final<|message|>a dog<|return|>"
    text, ends = char_ends(policy.tokenizer, ids, policy.lead)
    assert text == "a dog" and ends[:2] == (0, 0) and ends[-2:] == (5, 5)
    other = policy.tokenizer("<|channel|>analysis<|message|>x")["input_ids"]
    assert char_ends(policy.tokenizer, other, policy.lead)[0] == "analysisx"


@pytest.mark.parametrize("name", ["qwen3", "llama2", "mistral v7"])
def test_marked_characters_of_an_answer_have_the_weight(name):
    """The template writes something before the answer, or removes its blanks."""
    policy = policy_of(name, "bytes")
    answer = " it sees a blue dog"
    start = answer.index("blue")
    comparison = Comparison(
        QUESTION, (Answer(answer, ((start, start + 4),)), Answer("one")), ((0, 1),)
    )
    (encoded,) = encode_comparisons(policy, [comparison], 4000, reads_marks=True)
    marked = [i for i, is_marked in zip(encoded.answer_ids[0], encoded.marked[0]) if is_marked]
    assert policy.tokenizer.decode(marked).strip() == "blue"
    assert len(encoded.marked[0]) == len(encoded.answer_ids[0]) and not encoded.marked[0][-1]


def test_a_prompt_does_not_depend_on_the_day(monkeypatch):
    expected = policy_of("smollm3", "bytes").tokenize([QUESTION])["input_ids"]
    monkeypatch.setattr(Clock, "now", staticmethod(lambda: datetime(2031, 3, 1)))
    policy = policy_of("smollm3", "bytes")
    assert policy.tokenize([QUESTION])["input_ids"] == expected
    assert "strftime_now" in policy.tokenizer.chat_template  # it is saved as it was


def test_the_date_of_one_of_several_templates_is_fixed(monkeypatch):
    style = STYLES["smollm3"]
    expected = policy_of("smollm3", "bytes").tokenize([QUESTION])["input_ids"]
    several = {"default": style.template, "tool_use": "x"}
    monkeypatch.setitem(STYLES, "several", replace(style, template=several))
    monkeypatch.setattr(Clock, "now", staticmethod(lambda: datetime(2031, 3, 1)))
    assert policy_of("several", "bytes").tokenize([QUESTION])["input_ids"] == expected


PARTS = "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}"
DIALOG = ((SYSTEM, "is red"), (USER, "the cat"), (ASSISTANT, "a dog"), (USER, "sees"))


@pytest.mark.parametrize("roles", [SYSTEM, USER, ASSISTANT, f"{SYSTEM} {USER} {ASSISTANT}"])
@pytest.mark.parametrize("reading", [PARTS, "{{ '' + m.content[0].text }}"], ids=["loop", "first"])
def test_a_template_that_reads_parts_of_messages_gets_them(roles, reading, monkeypatch):
    """In some roles or all. Templates of models with images make nothing of a text, or fail."""
    of_parts = (
        f"{{% if m.role in '{roles}' %}}{reading}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    )
    of_parts = CHATML.replace("{{ m.content }}", of_parts)
    monkeypatch.setitem(STYLES, "parts", Style(of_parts, IM, eos="<|im_end|>"))
    policy, plain = policy_of("parts", "bytes"), policy_of("chatml", "bytes")
    for messages in (DIALOG[1:2], DIALOG[:2], DIALOG[1:], DIALOG):
        prompt = Prompt("7", "x", messages=messages)
        assert policy.tokenize([prompt])["input_ids"] == plain.tokenize([prompt])["input_ids"]
        assert learned(policy, "a dog", prompt) == learned(plain, "a dog", prompt)
        ids = [
            ConversationReader("rm", p.tokenizer, 4000).ids(prompt, "x") for p in (policy, plain)
        ]
        assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "kept, lost, messages",
    [
        ("m.role != 'user'", "user's", DIALOG[1:2]),
        ("m.role != 'system'", "system", DIALOG),
        ("m.role != 'assistant'", "assistant's", DIALOG),
        ("loop.last", "user's", DIALOG[1:]),
        ("m.role != 'system' or loop.first", "system", (DIALOG[1], *DIALOG)),
    ],
)
def test_a_message_that_the_template_drops_is_named(kept, lost, messages, monkeypatch):
    template = CHATML.replace("{{ m.content }}", f"{{{{ m.content if {kept} }}}}")
    monkeypatch.setitem(STYLES, "drops", Style(template, IM, eos="<|im_end|>"))
    with pytest.raises(UserError, match=f"does not write the {lost} message.*would be lost"):
        policy_of("drops", "bytes").tokenize([Prompt("7", "x", messages=messages)])


def test_messages_that_the_template_changes_are_written_as_it_does(monkeypatch):
    """It is upper case, without blanks, with the system message in the user's turn."""
    merged = (
        "{% set s = messages[0].content | upper ~ '!' if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{{ s if loop.first }}"
        "{{ m.content.strip() if m.role == 'assistant' else m.content | upper }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    monkeypatch.setitem(STYLES, "merged", Style(merged, IM, eos="<|im_end|>"))
    policy = policy_of("merged", "bytes")
    for messages in (DIALOG[1:2], DIALOG[:2], DIALOG):
        expected = rendered(policy.tokenizer, messages, add_generation_prompt=True)
        prompt = Prompt("7", "x", messages=messages)
        assert policy.tokenize([prompt])["input_ids"] == [expected]
        assert policy.end_id == policy.tokenizer.eos_token_id
        assert learned(policy, " a dog", prompt) == "a dog<|im_end|>"


def test_a_template_may_demand_a_system_message(monkeypatch):
    demands = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    monkeypatch.setitem(STYLES, "demands", Style(demands + CHATML, IM, eos="<|im_end|>"))
    policy, plain = policy_of("demands", "bytes"), policy_of("chatml", "bytes")
    prompt = Prompt("7", "x", messages=DIALOG)
    assert policy.tokenize([prompt])["input_ids"] == plain.tokenize([prompt])["input_ids"]
    assert learned(policy, "a dog", prompt) == "a dog<|im_end|>"
    assert policy.end_id == policy.tokenizer.eos_token_id
    with pytest.raises(UserError, match="fails for the prompt 7 .*no system"):
        policy.tokenize([QUESTION])


def test_prompts_with_equal_texts_and_other_turns_are_different():
    policy = policy_of("chatml", "bytes")
    one = Prompt("0", "x", messages=((USER, "a dog"),))
    two = Prompt("1", "x", messages=((USER, "the red cat"),))
    answers = (Answer("one"), Answer("two"))
    encoded = encode_comparisons(
        policy, [Comparison(prompt, answers, ((0, 1),)) for prompt in (one, two)], 100
    )
    assert encoded[0].prompt_ids != encoded[1].prompt_ids


def test_an_end_token_that_is_not_marked_as_special_is_no_text():
    policy = policy_of("yi", "bytes")
    ids = policy.tokenizer("a dog<|im_end|>")["input_ids"]
    assert policy.end_id == ids[-1]
    assert char_ends(policy.tokenizer, ids)[0] == "a dog"
