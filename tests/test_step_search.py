"""Step search: which beams survive, and that the result depends on nothing but its inputs."""

from collections.abc import Sequence

import pytest
import tiny
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.evaluation import evaluate_rows
from fgrlhf.step_search import (
    Beam,
    OpenRow,
    SearchResponder,
    StepSearch,
    batches_that_fit,
    separator_ids,
)
from fgrlhf.text_types import Prompt

PROMPTS = [Prompt(str(i), text) for i, text in enumerate(["the cat", "a dog sees", "two birds"])]
SAMPLING = Sampling(max_new_tokens=12)


class CountWord:
    """The number of times that a word is in a text; records how many texts it scores."""

    def __init__(self, word: str):
        self.word = word
        self.calls: list[int] = []

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        self.calls.append(len(texts))
        return [float(text.split().count(self.word)) for text in texts]


def search(scorer=None, **settings) -> StepSearch:
    return StepSearch(scorer or CountWord("cat"), separator=",", **settings)


def texts_of(policy, response):
    rows = []
    for ids_T, mask_T in zip(response.ids_BT, response.mask_BT.bool()):
        rows.append(policy.tokenizer.decode(ids_T[mask_T], skip_special_tokens=True))
    return rows


def test_a_response_stops_at_the_given_tokens():
    policy = tiny.gpt2()
    stop_ids = separator_ids(policy, ",")
    assert policy.tokenizer.convert_ids_to_tokens(stop_ids) == ["▁,"]
    ids_GP, mask_GP = policy.encode(PROMPTS)
    seeds = list(range(3 * 20))
    response = policy.generate(ids_GP, mask_GP, SAMPLING, seeds, 20, stop_ids=stop_ids)
    ends = set()
    for ids_T, mask_T in zip(response.ids_BT, response.mask_BT.bool()):
        ids = ids_T[mask_T].tolist()
        assert not {*stop_ids, *policy.eos_ids} & set(ids[:-1])
        ends.add(ids[-1])
    assert set(stop_ids) <= ends


def test_the_best_of_many_steps_has_a_higher_score():
    policy = tiny.gpt2()
    plain = search(beams=1, samples=1).respond(policy, PROMPTS, SAMPLING, seed=0)
    wide = search(beams=4, samples=16).respond(policy, PROMPTS, SAMPLING, seed=0)
    scorer = CountWord("cat")
    plain_score = sum(scorer.score(PROMPTS, texts_of(policy, plain)))
    wide_score = sum(scorer.score(PROMPTS, texts_of(policy, wide)))
    assert wide_score >= plain_score + 3


def test_a_prompt_gets_the_same_response_alone_and_in_a_batch():
    policy = tiny.gpt2()
    together = search().respond(policy, PROMPTS, SAMPLING, seed=3)
    for number, prompt in enumerate(PROMPTS):
        alone = search().respond(policy, [prompt], SAMPLING, seed=3)
        assert texts_of(policy, alone) == texts_of(policy, together)[number : number + 1]
    other = search().respond(policy, PROMPTS, SAMPLING, seed=4)
    assert texts_of(policy, other) != texts_of(policy, together)


def test_log_probabilities_are_those_of_the_policy():
    policy = tiny.gpt2()
    response = search().respond(policy, PROMPTS, SAMPLING, seed=0, temperature=2.0)
    ids_GP, mask_GP = policy.encode(PROMPTS)
    with torch.no_grad():
        scored, _ = policy(ids_GP, mask_GP, response.ids_BT, response.mask_BT, temperature=2.0)
    torch.testing.assert_close(response.logprobs_BT, scored.logprobs_BT)
    assert response.ids_BT.shape[1] <= SAMPLING.max_new_tokens


def test_which_candidates_survive():
    """Equal beams count once, and of equal scores the first is better."""
    policy = tiny.gpt2()
    cat, dog, red = policy.tokenizer.convert_tokens_to_ids(["▁cat", "▁dog", "▁red"])
    candidates = [
        Beam((dog,), finished=True),
        Beam((cat,)),
        Beam((cat,)),
        Beam((red, cat)),
        Beam((cat, cat)),
    ]
    scorer = CountWord("cat")
    (best,) = search(scorer, beams=3)._best(policy, PROMPTS[:1], [candidates])
    assert [beam.ids for beam in best] == [(cat, cat), (cat,), (red, cat)]
    assert [beam.score for beam in best] == [2.0, 1.0, 1.0]
    assert scorer.calls == [4]
    # a duplicate has the place of its first occurrence
    again = [Beam((cat,)), Beam((red, cat)), Beam((cat,))]
    (best,) = search(scorer, beams=2)._best(policy, PROMPTS[:1], [again])
    assert [beam.ids for beam in best] == [(cat,), (red, cat)]


def test_finished_beams_compete_with_unfinished_ones():
    policy = tiny.gpt2()
    cat, eos = policy.tokenizer.convert_tokens_to_ids(["▁cat", "</s>"])
    finished = Beam((cat, cat, eos), finished=True)
    (best,) = search(beams=2)._best(policy, PROMPTS[:1], [[finished, Beam((cat,))]])
    assert best[0].ids == finished.ids
    assert best[0].finished


def test_prompts_that_fit_alone_fit_together():
    """A short prompt with a long beam and a long prompt with a short one need separate batches."""
    prompts = [Prompt("long", "the cat sees two birds and a red dog"), Prompt("short", "a")]
    sampling = Sampling(max_new_tokens=24)
    policy = tiny.gpt2()
    roomy = search().respond(policy, prompts, sampling, seed=3)
    needed = policy.encode(prompts)[0].shape[1] + sampling.max_new_tokens
    policy.model.config.n_positions = needed
    tight = search().respond(policy, prompts, sampling, seed=3)
    assert torch.equal(tight.ids_BT, roomy.ids_BT)
    policy.model.config.n_positions = needed - 1
    with pytest.raises(UserError, match=f"need {needed} positions, the model has {needed - 1}"):
        search().respond(policy, prompts, sampling, seed=3)


def open_row(prompt: int, beam: int) -> OpenRow:
    return OpenRow(0, Beam((5,) * beam), (5,) * (prompt + beam), ())


def test_rows_share_a_batch_if_it_fits():
    rows = [open_row(10, 6), open_row(4, 0), open_row(10, 2), open_row(3, 6)]
    assert batches_that_fit(rows, 12, None) == [[0, 1, 2, 3]]
    assert batches_that_fit(rows, 12, 16 + 12) == [[0, 1, 2, 3]]  # 16 wide, and 12 more tokens
    assert batches_that_fit(rows, 12, 16 + 12 - 1) == [[1, 2], [0, 3]]
    assert batches_that_fit(rows, 12, 10 + 12) == [[1], [2], [0, 3]]
    # prompts that do not fit: `generate` says so
    assert batches_that_fit([open_row(10, 0), open_row(4, 0)], 12, 5) == [[0, 1]]


def test_errors():
    with pytest.raises(UserError, match="which only decoder-only policies do"):
        search().respond(tiny.t5(), PROMPTS, SAMPLING, seed=0)
    with pytest.raises(UserError, match="no token of the policy contains the separator '§'"):
        separator_ids(tiny.gpt2(), "§")


def test_evaluation_with_a_search():
    responder = SearchResponder(tiny.gpt2(), search(beams=2), SAMPLING)
    evaluated = evaluate_rows(responder, PROMPTS, reference=tiny.gpt2(), progress=False)
    rows = [row.as_json() for row in evaluated]
    expected = search(beams=2).respond(tiny.gpt2(), PROMPTS, SAMPLING, seed=0)
    assert [row["response"] for row in rows] == texts_of(tiny.gpt2(), expected)
    assert not any("kl" in row for row in rows)  # the responses are no samples of the policy
