"""Long prompts of long-form QA: the end is cut, counted and reported; the question stays."""

import pytest
import tiny

from fgrlhf.base.errors import UserError
from fgrlhf.policy import check_prompts_fit
from fgrlhf.text_types import Prompt
from tasks.qa_feedback.feedback import load_examples
from tasks.qa_feedback.task import up_to_question

QUESTION = "the red cat"


def prompt(name: str, passage: str, question: str = QUESTION) -> Prompt:
    return Prompt(name, f"question: {question} context: {passage}", meta={"question": question})


def policy_of(kind: str, limit: int):
    policy = tiny.chat() if kind == "chat" else tiny.policy(kind)
    policy.max_input_len = limit
    if policy.chat:
        policy.chat.max_input_len = limit
    return policy


@pytest.mark.parametrize("kind", ["t5", "gpt2", "chat"])
def test_a_question_is_never_cut(kind, capsys):
    template = 4 if kind == "chat" else 0
    short, long = prompt("0", "a dog"), prompt("1", "a dog sees the bird")
    policy = policy_of(kind, 7 + template)
    assert check_prompts_fit(policy, [short, long], up_to_question, "train.json") == 1
    assert (
        capsys.readouterr().out
        == f"1 of 2 prompts of train.json are longer than max_input_len={7 + template} tokens:"
        " their ends were cut\n"
    )
    ids_BP, mask_BP = policy.encode([long.text])
    read = policy.tokenizer.convert_ids_to_tokens(ids_BP[0][mask_BP[0].bool()].tolist())
    start = 2 if kind == "chat" else 0
    assert read[start : start + 4] == ["▁question:", "▁the", "▁red", "▁cat"]
    assert len(read) == 7 + template
    assert check_prompts_fit(policy, [short], up_to_question, "train.json") == 0
    assert check_prompts_fit(policy, [long], up_to_question, "x", quiet=True) == 1
    assert capsys.readouterr().out == ""
    with pytest.raises(
        UserError,
        match=(
            f"dev.json, row 1: the part that must not be cut has {4 + template} tokens,"
            f" but max_input_len is {3 + template}"
        ),
    ):
        check_prompts_fit(policy_of(kind, 3 + template), [long], up_to_question, "dev.json")
    assert (
        check_prompts_fit(
            policy_of(kind, 4 + template), [long], up_to_question, "dev.json", quiet=True
        )
        == 1
    )


def test_the_limit_that_is_enough_for_all_rows_is_named():
    prompts = [Prompt(str(i), "the red cat " * n) for i, n in enumerate((1, 3, 2))]
    lengths = policy_of("t5", 99).prompt_lengths(prompts)
    with pytest.raises(
        UserError,
        match=f"row 0: .* has {lengths[0]} tokens, but max_input_len is 2:"
        f" set max_input_len={max(lengths)} or more, or remove the 3 rows that are too long",
    ):
        check_prompts_fit(policy_of("t5", 2), prompts, lambda prompt: prompt.text, "train.json")


@pytest.mark.parametrize("kind, positions", [("gpt2", 256), ("bart", 64)])
def test_responses_that_need_more_positions_than_the_model_has_are_refused(kind, positions):
    policy = policy_of(kind, 8)
    prompts = [prompt("0", "a dog"), prompt("1", "a dog sees the bird")]  # the second one is cut
    limit = positions - (8 if kind == "gpt2" else 0)  # BART's decoder does not read the prompt
    assert check_prompts_fit(policy, prompts, up_to_question, "x", response_tokens=limit) == 1
    message = f"prompts of 8 tokens .* up to {limit + 1} need {positions + 1} positions"
    with pytest.raises(UserError, match=message):
        check_prompts_fit(policy, prompts, up_to_question, "x", response_tokens=limit + 1)


def test_a_question_that_the_text_words_differently_counts_by_itself():
    strange = Prompt("5", "a dog sees the bird", meta={"question": "the red cat , a dog"})
    assert check_prompts_fit(policy_of("t5", 6), [strange], up_to_question, "x") == 0
    with pytest.raises(UserError, match="row 5: the part that must not be cut has 6 tokens"):
        check_prompts_fit(policy_of("t5", 4), [strange], up_to_question, "x")
    # no question to keep
    assert (
        check_prompts_fit(
            policy_of("t5", 3), [Prompt("6", "a dog sees the bird")], up_to_question, "x"
        )
        == 1
    )


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_no_question_of_a_file_is_cut(qa_feedback, kind):
    prompts = load_examples(qa_feedback / "dev.json")
    policy = tiny.policy(kind)
    policy = type(policy)(policy.model, tiny.fresh(tiny.tokenizer("bpe")))
    lengths = sorted(policy.prompt_lengths([prompt.text for prompt in prompts]))
    limit = policy.max_input_len = lengths[len(lengths) // 2] - 1  # half of the prompts are longer
    assert (
        check_prompts_fit(policy, prompts, up_to_question, "dev.json", quiet=True)
        >= len(prompts) // 2
    )
    read = policy.tokenize([prompt.text for prompt in prompts], return_offsets_mapping=True)[
        "offset_mapping"
    ]
    for one, offsets in zip(prompts, read):
        assert len(offsets) <= limit and offsets[0][0] == 0
        assert offsets[-1][1] >= one.text.index(one.meta["question"]) + len(one.meta["question"])
