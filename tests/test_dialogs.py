"""Dialogs: plain text, chat templates, and what is cut from long ones."""

from dataclasses import replace

import pytest
import rm_helpers
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.base.files import write_json
from fgrlhf.configs.strict import validate
from fgrlhf.data.formats import COMPARISONS, DEMONSTRATIONS, PROMPTS, Demonstration
from fgrlhf.data.rows import Row
from fgrlhf.models.dialogs import dialog_text, fit_dialog, messages_in
from fgrlhf.policy import check_prompts_fit
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import Prefix, RMText, text_prefix
from fgrlhf.task import whole_text
from fgrlhf.text_types import Prompt
from fgrlhf.utils import IGNORED
from sft.config import SFTConfig
from sft.data import encode, every_turn
from sft.run_sft import train

HH = "\n\nHuman: a dog\n\nAssistant: the cat\n\nHuman: a bird\n\nAssistant:"
MESSAGES = (("user", "a dog"), ("assistant", "the cat"), ("user", "a bird"))
DIALOG = Prompt("0", HH, messages=MESSAGES)


def tokens(policy, prompt):
    (ids,) = policy.tokenize([prompt])["input_ids"]
    return " ".join(policy.tokenizer.convert_ids_to_tokens(ids)).replace("▁", "")


# ---- plain text ----------------------------------------------------------------------------------


def test_messages_and_text_by_hand():
    assert messages_in(HH) == MESSAGES
    assert dialog_text(MESSAGES) == HH


@pytest.mark.parametrize(
    "text, messages",
    [
        ("a dog", ()),
        ("", ()),
        ("\n\nHuman: a dog", ()),  # the assistant's turn is not open
        ("before\n\nHuman: a dog\n\nAssistant:", ()),
        ("\n\nAssistant: hello\n\nHuman: a dog\n\nAssistant:", ()),  # the assistant begins
        ("\n\nHuman: a dog\n\nAssistant: ", (("user", "a dog"),)),
        ("\n\nHuman:  a dog \n\nAssistant:", (("user", "a dog"),)),
        ("\n\nHuman: a\n\nHuman: b\n\nAssistant:", (("user", "a\n\nb"),)),
        (
            "\n\nSystem: Be brief.\n\nHuman: a\n\nAssistant:",
            (("system", "Be brief."), ("user", "a")),
        ),
        ("\n\nHuman: Human: a\n\nAssistant:", (("user", "Human: a"),)),
    ],
)
def test_messages_in_a_text(text, messages):
    assert messages_in(text) == messages


def test_a_row_is_written_as_it_is_read():
    rows = [
        {"id": "0", "prompt": HH},
        {"id": "1", "prompt": [{"role": role, "content": text} for role, text in MESSAGES]},
        {"id": "2", "prompt": "no dialog"},
        {"id": "3", "prompt": [{"role": "user", "content": " spaces "}] * 2},
    ]
    for number, row in enumerate(rows):
        prompt = PROMPTS.parse(Row(row, {}), number)
        again = PROMPTS.parse(Row(PROMPTS.to_row(prompt), {}), number)
        assert again == prompt


def test_pairs_of_whole_dialogs_have_messages():
    row = {"chosen": f"{HH} it sees", "rejected": f"{HH} it likes"}
    comparison = COMPARISONS.parse(Row(row, {}), 0)
    assert comparison.prompt == DIALOG
    assert [answer.text for answer in comparison.answers] == ["it sees", "it likes"]


# ---- chat templates ------------------------------------------------------------------------------


def test_a_chat_model_reads_every_turn():
    expected = (
        "<s> <|user|> a dog <|end|> <|assistant|> the cat <|end|> <|user|> a bird <|end|>"
        " <|assistant|>"
    )
    policy = tiny.chat()
    assert tokens(policy, DIALOG) == expected
    assert policy.prompt_lengths([DIALOG]) == [len(expected.split())]
    ids_BP, mask_BP = policy.encode([DIALOG, Prompt("1", "dog")])
    assert mask_BP.sum(1).tolist() == [len(expected.split()), 5] and ids_BP.shape == mask_BP.shape


def test_without_a_template_the_text_is_read():
    plain = tiny.chat(chat_template=False)
    assert plain.tokenize([DIALOG])["input_ids"] == plain.tokenize([HH])["input_ids"]


def test_a_long_dialog_loses_its_oldest_turns():
    last_turn = "<s> <|user|> a bird <|end|> <|assistant|>"
    assert tokens(tiny.chat(max_input_len=12), DIALOG) == last_turn
    # the last turn alone is too long
    assert tokens(tiny.chat(max_input_len=5), DIALOG) == "<s> <|user|> a <|end|> <|assistant|>"


def test_a_long_dialog_keeps_its_system_message():
    system = ("system", "S")
    count = len  # a token is a character
    written = fit_dialog([system, *MESSAGES], dialog_text, count, without_last, limit=60)
    assert written == dialog_text([system, MESSAGES[-1]]) and len(written) <= 60
    written = fit_dialog([system, *MESSAGES], dialog_text, count, without_last, limit=35)
    assert written == dialog_text([system, ("user", "a b")])
    # no part of the last message would be left beside the system message
    written = fit_dialog([system, *MESSAGES], dialog_text, count, without_last, limit=32)
    assert written == dialog_text([("user", "a bird")]) and len(written) <= 32
    # a limit below the speakers' names cannot be kept
    written = fit_dialog(MESSAGES, dialog_text, count, without_last, limit=3)
    assert written == dialog_text([("user", "")])


def without_last(text, excess):
    return text[: max(0, len(text) - excess)]


def test_a_long_plain_dialog_loses_its_oldest_turns():
    policy = tiny.chat(max_input_len=7, chat_template=False)
    assert policy.prompt_lengths([DIALOG]) == [8]
    last = dialog_text(MESSAGES[-1:])
    assert policy.tokenize([DIALOG])["input_ids"] == policy.tokenize([last])["input_ids"]


@pytest.mark.parametrize("template, limit", [(None, 12), (False, 7)])
def test_the_last_message_is_never_cut(template, limit, capsys):
    policy = tiny.chat(max_input_len=limit, chat_template=template)
    assert check_prompts_fit(policy, [DIALOG], whole_text, "train.json") == 1
    assert f"max_input_len={limit} tokens: their oldest turns were cut" in capsys.readouterr().out
    long = Prompt("1", HH, messages=(*MESSAGES[:2], ("user", "a dog likes the bird " * 3)))
    with pytest.raises(UserError, match="row 1: the part that must not be cut has"):
        check_prompts_fit(policy, [long], whole_text, "train.json")


def test_a_system_message_counts_with_the_last_message(capsys):
    """Together they exceed the limit, although each of them is within it."""
    policy = tiny.chat(max_input_len=10)
    messages = (("system", "red " * 5), *MESSAGES)
    dialog = Prompt("2", dialog_text(messages), messages=messages)
    with pytest.raises(UserError, match="row 2: the part that must not be cut has 1[0-9] tokens"):
        check_prompts_fit(policy, [dialog], whole_text, "train.json")


def test_the_loss_of_a_dialog_is_on_the_answer_only():
    policy = tiny.chat()
    row = {"prompt": HH, "response": "the red cat"}
    (example,) = encode(policy, [DEMONSTRATIONS.parse(Row(row, {}), 0)], 20)
    learned = [label for label in example["labels"] if label != IGNORED]
    words = policy.tokenizer.convert_ids_to_tokens(learned)
    assert words == ["▁the", "▁red", "▁cat", "<|end|>"]
    assert len(example["input_ids"]) == len(example["labels"]) == 18


def test_every_turn_of_the_assistant():
    row = {"prompt": HH, "response": "the red cat"}
    demonstration = DEMONSTRATIONS.parse(Row(row, {}), 0)
    first, last = every_turn(demonstration)
    assert last == demonstration
    asked = Prompt("0/1", "\n\nHuman: a dog\n\nAssistant:", ("the cat",), messages=MESSAGES[:1])
    assert first == Demonstration(asked, "the cat")
    plain = DEMONSTRATIONS.parse(Row({"prompt": "a", "response": "b"}, {}), 0)
    assert every_turn(plain) == [plain]
    # nobody has asked for a greeting
    greeted = Prompt("0", "", messages=(("assistant", "two"), *MESSAGES))
    first, _ = every_turn(Demonstration(greeted, "the red cat"))
    assert first.prompt.messages == greeted.messages[:2] and first.response == "the cat"
    assert every_turn(replace(demonstration, untrained=(1,))) == [
        replace(demonstration, untrained=(1,))
    ]


def test_sft_counts_the_turns_of_the_training_dialogs(tmp_path, capsys):
    tiny.chat().save(tmp_path / "model")
    rows = [{"prompt": HH, "response": "the red cat"}] * 3
    write_json(tmp_path / "train.json", rows)
    tree = {
        "model": {"ckpt": str(tmp_path / "model"), "max_input_len": 64},
        "data": {"train_file": str(tmp_path / "train.json"), "turns": "all"},
        "train": {"max_steps": 1, "batch_size": 2},
        "logging": {"run_name": "sft", "save_dir": str(tmp_path / "sft")},
    }
    train(validate(SFTConfig, tree, "test config"))
    assert "6 training examples" in capsys.readouterr().out


# ---- reward models -------------------------------------------------------------------------------


def test_the_context_of_a_dialog_are_its_earlier_turns():
    prefix = text_prefix(DIALOG, True)
    assert prefix.words == tuple(HH.split()) and prefix.keeps_end
    assert [prefix.words[i] for part in prefix.context for i in part] == [
        *("Human:", "a", "dog", "Assistant:", "the", "cat")
    ]
    assert text_prefix(DIALOG, False).words == ("Human:", "a", "bird", "Assistant:")
    one_turn = Prompt("1", "\n\nHuman: a\n\nAssistant:", messages=(("user", "a"),))
    words = ("Human:", "a", "Assistant:")
    assert text_prefix(one_turn, True) == Prefix(words, spaces=("", " ", "\n\n"))
    assert text_prefix(Prompt("2", "no dialog"), False) == Prefix(("no", "dialog"))


@pytest.mark.parametrize("shape", rm_helpers.SHAPES)
def test_a_long_dialog_loses_its_oldest_words_before_a_reward_model(shape):
    tokenizer = tiny.tokenizer("word")
    words = ("red", "blue", "green", "one", "two", "three")
    text = RMText(Prefix(words, (range(4),), keeps_end=True), (("cat", "dog"),))
    inputs = RMInputs(tokenizer, shape, "sequence", 64, decoder_start_id=0)
    (whole,) = inputs.encode([text])
    longest = len(whole.input_ids)
    for removed in range(1, 4):
        inputs = RMInputs(tokenizer, shape, "sequence", longest - removed, decoder_start_id=0)
        (cut,) = inputs.encode([text])
        kept = tokenizer.decode(cut.input_ids, skip_special_tokens=True).split()
        expected = tokenizer.decode(whole.input_ids, skip_special_tokens=True).split()
        assert kept == expected[removed:] and cut.cut_context == removed
