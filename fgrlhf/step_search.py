"""Step search: a beam search over the steps of a response, guided by a scorer of partial responses.

Every round samples the next step of each beam several times, scores the responses so far, and keeps
the best ones (Snell et al. 2024; the scorers are those of Lightman et al. 2023). With one beam, it
chooses the best sample of every step; with one beam and one sample, it is ordinary sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fgrlhf.alignment import texts_of
from fgrlhf.base.errors import UserError
from fgrlhf.base.seeds import derive_seed
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.scorers.base import TextScorer, score_texts
from fgrlhf.text_types import Prompt
from fgrlhf.types import Response


@dataclass(frozen=True)
class Beam:
    """A response, or its beginning.

    Args:
      finished: whether it has ended, or reached the length limit.
    """

    ids: tuple[int, ...] = ()
    score: float = 0.0
    finished: bool = False


@dataclass(frozen=True)
class OpenRow:
    """A beam to continue.

    Args:
      group: the index of its prompt.
      tokens: of the prompt and the beam.
      seeds: one for each continuation.
    """

    group: int
    beam: Beam
    tokens: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True)
class StepSearch:
    """Settings of a step search.

    Args:
      scorer: gives the beginning of a response a number; higher is better.
      beams: responses that are kept after each step.
      samples: continuations of each of them.
      separator: the text between two steps.
    """

    scorer: TextScorer
    beams: int = 4
    samples: int = 4
    separator: str = "\n"

    @torch.no_grad()
    def respond(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        seed: int,
        temperature: float = 1.0,
    ) -> Response:
        """The best response that the search finds for each prompt.

        Args:
          seed: the result is a pure function of it, of the prompts' ids and of the models.
          temperature: of the response's log-probabilities, not of the sampling.
        Raises:
          UserError: the policy is not decoder-only, or no token contains the separator.
        """
        if not isinstance(policy, CausalPolicy):
            raise UserError(
                "step search continues partial responses, which only decoder-only policies do"
                " here: sample several responses and choose with best_of_n instead"
            )
        stop_ids = separator_ids(policy, self.separator)
        prompt_ids_GP, prompt_mask_GP = policy.encode(prompts)
        prompt_tokens = []
        for ids_P, mask_P in zip(prompt_ids_GP.tolist(), prompt_mask_GP.tolist()):
            prompt_tokens.append([token for token, real in zip(ids_P, mask_P) if real])
        beams: list[list[Beam]] = [[Beam()] for _ in prompts]
        step = 0
        while any(not beam.finished for group in beams for beam in group):
            candidates = self._extend(
                policy, prompts, prompt_tokens, beams, sampling, seed, step, stop_ids
            )
            beams = self._best(policy, prompts, candidates)
            step += 1
        best = [group[0] for group in beams]
        return _response(policy, prompt_ids_GP, prompt_mask_GP, best, temperature, sampling)

    def _extend(
        self,
        policy: CausalPolicy,
        prompts: Sequence[Prompt],
        prompt_tokens: Sequence[Sequence[int]],
        beams: Sequence[Sequence[Beam]],
        sampling: Sampling,
        seed: int,
        step: int,
        stop_ids: Sequence[int],
    ) -> list[list[Beam]]:
        """Finished beams, and several continuations by one step of the others."""
        rows = []
        for g, group in enumerate(beams):
            for b, beam in enumerate(group):
                if beam.finished:
                    continue
                seeds = []
                for k in range(self.samples):
                    seeds.append(derive_seed(seed, "step search", prompts[g].id, step, b, k))
                rows.append(OpenRow(g, beam, [*prompt_tokens[g], *beam.ids], seeds))
        limit = sampling.max_new_tokens
        continuations: dict[int, list[Beam]] = {}  # of the row with this index
        for batch in batches_that_fit(rows, limit, policy.positions):
            batch_rows = [rows[i] for i in batch]
            responses = self._responses(policy, batch_rows, sampling, stop_ids)
            for i, new in zip(batch, responses):
                continuations[i] = [_extended(rows[i].beam, ids, limit, policy) for ids in new]
        candidates = [[beam for beam in group if beam.finished] for group in beams]
        for i, row in enumerate(rows):  # in the order of the beams, whatever the batches
            candidates[row.group] += continuations[i]
        return candidates

    def _responses(
        self,
        policy: CausalPolicy,
        rows: Sequence[OpenRow],
        sampling: Sampling,
        stop_ids: Sequence[int],
    ) -> list[list[list[int]]]:
        """The tokens of each row's continuations, which may exceed the length limit."""
        pad_id = policy.tokenizer.pad_token_id
        ids_GP, mask_GP = _padded([row.tokens for row in rows], pad_id, policy.device, left=True)
        shortest = min(len(row.beam.ids) for row in rows)
        limited = replace(sampling, max_new_tokens=sampling.max_new_tokens - shortest)
        seeds = [seed for row in rows for seed in row.seeds]
        response = policy.generate(ids_GP, mask_GP, limited, seeds, self.samples, stop_ids=stop_ids)
        lengths = response.mask_BT.sum(1).tolist()
        tokens = [ids_T[:length] for ids_T, length in zip(response.ids_BT.tolist(), lengths)]
        return [tokens[i : i + self.samples] for i in range(0, len(tokens), self.samples)]

    def _best(
        self, policy: Policy, prompts: Sequence[Prompt], candidates: Sequence[Sequence[Beam]]
    ) -> list[list[Beam]]:
        """The best different beams of each prompt, in descending order of their scores.

        Of equal scores, the first candidate is the best.
        """
        different = []
        for group in candidates:
            # a dict keeps the place of a key's first occurrence
            different.append(list({beam.ids: beam for beam in group}.values()))
        prompt_of_beam = []
        ids_of_beam = []
        for prompt, group in zip(prompts, different):
            for beam in group:
                prompt_of_beam.append(prompt)
                ids_of_beam.append(list(beam.ids))
        texts = texts_of(policy.tokenizer, ids_of_beam, policy.lead)
        scores = iter(score_texts(self.scorer, prompt_of_beam, texts))
        best = []
        for group in different:
            scored = [replace(beam, score=next(scores)) for beam in group]
            scored.sort(key=lambda beam: -beam.score)  # stable
            best.append(scored[: self.beams])
        return best


@dataclass(frozen=True)
class SearchResponder:
    """The `Responder` (fgrlhf/evaluation.py) of a search: one response to every prompt.

    Args:
      seed, temperature: as in `StepSearch.respond`.
    """

    policy: Policy
    search: StepSearch
    sampling: Sampling
    seed: int = 0
    temperature: float = 1.0
    num_samples = 1
    phase = "searching"

    def respond(self, prompts: Sequence[Prompt]) -> Response:
        return self.search.respond(self.policy, prompts, self.sampling, self.seed, self.temperature)

    def kls(self, reference: nn.Module, prompts: Sequence[Prompt], response: Response) -> None:
        """None: the responses are not samples of the policy."""


def batches_that_fit(
    rows: Sequence[OpenRow], max_new_tokens: int, positions: int | None
) -> list[list[int]]:
    """The indices of rows to continue together.

    A batch is as wide as its longest row and grows by as many tokens as its shortest beam may still
    get. With beams of different lengths that can be more than any row needs, and more than the
    model has positions. Then the rows are divided by the length of their beams. Rows whose beams
    have one length fit whenever their prompts do, and stay together.
    """
    by_length: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        by_length.setdefault(len(row.beam.ids), []).append(i)
    batches: list[list[int]] = []
    width = shortest = 0
    for length, same in sorted(by_length.items()):
        width_of_same = max(len(rows[i].tokens) for i in same)
        width = max(width, width_of_same)
        if batches and (positions is None or width + max_new_tokens - shortest <= positions):
            batches[-1] += same
        else:
            batches.append(same)
            width, shortest = width_of_same, length
    return [sorted(batch) for batch in batches]


def _extended(beam: Beam, new_ids: Sequence[int], limit: int, policy: Policy) -> Beam:
    ids = (*beam.ids, *new_ids)[:limit]
    return Beam(ids, finished=ids[-1] in policy.eos_ids or len(ids) == limit)


def separator_ids(policy: Policy, separator: str) -> list[int]:
    """The tokens whose text contains the separator.

    Raises:
      UserError: there is none.
    """
    tokens = range(policy.num_embeddings)
    texts = policy.tokenizer.batch_decode([[token] for token in tokens])
    ids = [token for token, text in zip(tokens, texts) if separator in text]
    if not ids:
        raise UserError(
            f"no token of the policy contains the separator {separator!r}, so its responses have no"
            " steps: set another separator"
        )
    return ids


def _padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, left: bool = False
) -> tuple[Tensor, Tensor]:
    """The ids of rows of tokens, padded to the longest one, and their mask."""
    longest = max(map(len, rows))
    ids = []
    mask = []
    for row in rows:
        padding = [pad_id] * (longest - len(row))
        no_tokens = [0] * len(padding)
        tokens = [1] * len(row)
        ids.append([*padding, *row] if left else [*row, *padding])
        mask.append(no_tokens + tokens if left else tokens + no_tokens)
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _response(
    policy: Policy,
    prompt_ids_GP: Tensor,
    prompt_mask_GP: Tensor,
    beams: Sequence[Beam],
    temperature: float,
    sampling: Sampling,
) -> Response:
    """The beams' tokens with their log-probabilities."""
    pad_id = policy.tokenizer.pad_token_id
    ids_BT, mask_BT = _padded([beam.ids for beam in beams], pad_id, prompt_ids_GP.device)
    scored, _ = policy(
        prompt_ids_GP,
        prompt_mask_GP,
        ids_BT,
        mask_BT,
        temperature=temperature,
        repetition_penalty=sampling.repetition_penalty,
    )
    return Response(ids_BT, mask_BT, scored.logprobs_BT)
