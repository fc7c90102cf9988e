"""Step search: a beam search over the steps of a response, guided by a scorer of partial responses.

Every round samples the next step of each beam several times, scores the responses so far, and keeps
the best ones (Snell et al. 2024; the scorers are those of Lightman et al. 2023). With one beam, it
chooses the best sample of every step; with one beam and one sample, it is ordinary sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fgrlhf.errors import UserError
from fgrlhf.models.causal import CausalPolicy
from fgrlhf.models.decoding import Sampling
from fgrlhf.policy import Policy
from fgrlhf.reward_models.text_scorers import TextScorer, score_texts
from fgrlhf.seeds import derive_seed
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
        return _response(
            policy, prompt_ids_GP, prompt_mask_GP, [group[0] for group in beams], temperature
        )

    def _extend(
        self,
        policy: Policy,
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
        seeds = []
        open_beams = []
        for g, group in enumerate(beams):
            for b, beam in enumerate(group):
                if beam.finished:
                    continue
                open_beams.append((g, beam))
                rows.append([*prompt_tokens[g], *beam.ids])
                for k in range(self.samples):
                    seeds.append(derive_seed(seed, "step search", prompts[g].id, step, b, k))
        ids_GP, mask_GP = _left_padded(rows, policy)
        shortest = min(len(beam.ids) for _, beam in open_beams)
        limited = replace(sampling, max_new_tokens=sampling.max_new_tokens - shortest)
        response = policy.generate(ids_GP, mask_GP, limited, seeds, self.samples, stop_ids=stop_ids)
        lengths = response.mask_BT.sum(1).tolist()
        candidates = [[beam for beam in group if beam.finished] for group in beams]
        eos_ids = set(policy.eos_ids)
        for n, ids_T in enumerate(response.ids_BT.tolist()):
            g, beam = open_beams[n // self.samples]
            new_ids = ids_T[: int(lengths[n])]
            ids = (*beam.ids, *new_ids)[: sampling.max_new_tokens]
            ended = ids[-1] in eos_ids or len(ids) == sampling.max_new_tokens
            candidates[g].append(Beam(ids, finished=ended))
        return candidates

    def _best(
        self, policy: Policy, prompts: Sequence[Prompt], candidates: Sequence[Sequence[Beam]]
    ) -> list[list[Beam]]:
        """The best different beams of each prompt, in descending order of their scores.

        Of equal scores, the first candidate is the best.
        """
        different = []
        for group in candidates:
            different.append(list({beam.ids: beam for beam in reversed(group)}.values())[::-1])
        flat = [(prompt, beam) for prompt, group in zip(prompts, different) for beam in group]
        texts = policy.tokenizer.batch_decode(
            [list(beam.ids) for _, beam in flat], skip_special_tokens=True
        )
        scores = iter(score_texts(self.scorer, [prompt for prompt, _ in flat], texts))
        best = []
        for group in different:
            scored = [replace(beam, score=next(scores)) for beam in group]
            scored.sort(key=lambda beam: -beam.score)  # stable
            best.append(scored[: self.beams])
        return best


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


def _left_padded(rows: Sequence[Sequence[int]], policy: Policy) -> tuple[Tensor, Tensor]:
    """ids_GP and mask_GP of rows of tokens."""
    longest = max(map(len, rows))
    pad = policy.tokenizer.pad_token_id
    ids_GP = [[*[pad] * (longest - len(row)), *row] for row in rows]
    mask_GP = [[*[0] * (longest - len(row)), *[1] * len(row)] for row in rows]
    device = policy.device
    return torch.tensor(ids_GP, device=device), torch.tensor(mask_GP, device=device)


def _response(
    policy: Policy,
    prompt_ids_GP: Tensor,
    prompt_mask_GP: Tensor,
    beams: Sequence[Beam],
    temperature: float,
) -> Response:
    """The beams' tokens with their log-probabilities."""
    longest = max(len(beam.ids) for beam in beams)
    pad = policy.tokenizer.pad_token_id
    device = prompt_ids_GP.device
    ids_BT = torch.tensor(
        [[*beam.ids, *[pad] * (longest - len(beam.ids))] for beam in beams], device=device
    )
    mask_BT = torch.tensor(
        [[1] * len(beam.ids) + [0] * (longest - len(beam.ids)) for beam in beams], device=device
    )
    scored, _ = policy(prompt_ids_GP, prompt_mask_GP, ids_BT, mask_BT, temperature)
    return Response(ids_BT, mask_BT, scored.logprobs_BT)
