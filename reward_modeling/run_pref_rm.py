"""Train a reward model that scores whole responses, from pairs of responses to the same prompt.

    python -m reward_modeling.run_pref_rm [TASK] config.yml key=value ...

Data: rows with K >= 2 responses and any pairs of them, see reward_modeling/data.py. The loss is
-log sigmoid(s_w - s_l), averaged over all pairs of a batch of prompts (`PairLoss`).
The best checkpoint has the highest accuracy on the dev pairs. Finally, the mean and standard
deviation of the scores of all training responses are measured and written to `reward_model.json`.
`errors.json` analyses the mistakes on dev (pair_errors.py).
The output folder, resuming and reuse are as in run_fg_rm.py.

Axes here: Q prompts of a batch, N pairs of a prompt (in `PairLoss`, of the batch).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate.utils import gather_object
from pydantic import Field
from scipy.special import expit
from torch import Tensor
from transformers import PreTrainedModel

from fgrlhf.base.errors import UserError
from fgrlhf.base.program import run_main
from fgrlhf.cli.training_program import run_program
from fgrlhf.configs.sections import names_of
from fgrlhf.configs.strict import Coefficient
from fgrlhf.data.comparisons import Comparison
from fgrlhf.data.mixture import of_each, read_files
from fgrlhf.data.stream import KEPT, Lazy, chosen, mapped, spread
from fgrlhf.metrics.clusters import cluster_of
from fgrlhf.reward_models.inputs import RMInputs, refuse_without_tokens
from fgrlhf.reward_models.prefix import Prefix, PrefixFn, RMText
from fgrlhf.reward_models.rm_input import RMInput
from fgrlhf.reward_models.scoring import SequenceScorer, inputs_of, shape_of
from fgrlhf.reward_models.spec import RewardModelSpec
from fgrlhf.runs.distributed import share_of
from fgrlhf.runs.stage import hold
from fgrlhf.stats import Figure
from fgrlhf.supervised_trainer import reuse
from fgrlhf.task import NO_TASK, Task
from fgrlhf.utils import IGNORED, seeded
from reward_modeling import training
from reward_modeling.baselines import LINEAR_ROWS, Baselines, pair_baselines
from reward_modeling.calibration import calibration, expected_calibration_error
from reward_modeling.config import RMConfig, RMDataConfig, RMTrainConfig
from reward_modeling.data import Pair, PairCollator, first_position_share, read_pair_rows
from reward_modeling.error_groups import Errors
from reward_modeling.judged import Predictions, prompts_of
from reward_modeling.linear_start import start_with_pairs
from reward_modeling.metrics import pair_accuracy
from reward_modeling.network import load_network, reads_line_breaks
from reward_modeling.pair_errors import pair_errors
from reward_modeling.precompute import precompute
from reward_modeling.training import RewardTrainer, place, start

Item = TypeVar("Item")

FIRST_BETTER, SECOND_BETTER = 0, 1  # labels of a pair in evaluation

# inputs of a prompt's responses, and the pairs of them
Example = tuple[list[RMInput], tuple[Pair, ...]]


class PairDataConfig(RMDataConfig):
    """The section `data` of reward models of preferences."""

    with_context: bool = Field(
        default=True, description="whether the model reads the context of the prompt"
    )


class PairTrainConfig(RMTrainConfig):
    """The section `train` of reward models of preferences."""

    margin: Coefficient = Field(
        default=0.0,
        description="times the margin of a pair: by how much its scores should differ at least",
    )
    centring: Coefficient = Field(
        default=0.0, description="weight of (s_w + s_l)^2, which keeps the mean score near 0"
    )


class PreferenceRMConfig(RMConfig):
    """The config of a whole run. `train.batch_size` counts prompts, each with all its pairs."""

    data: PairDataConfig
    train: PairTrainConfig = PairTrainConfig()


def decided(rows: Sequence[Comparison]) -> Sequence[Comparison]:
    """The rows that have pairs."""
    return chosen(rows, lambda row: bool(row.pairs))


def encode(
    inputs: RMInputs, rows: Sequence[Comparison], prefix_fn: PrefixFn, with_context: bool
) -> Sequence[Example]:
    """Encode the rows that have pairs. A pair without a margin has the margin 0.

    Rows in a file are encoded once, so that `inputs` counts what is cut, and later when needed.

    Raises:
      UserError: the model would read no token of a response.
    """
    examples = mapped(decided(rows), lambda part: _encode(inputs, part, prefix_fn, with_context))
    if isinstance(examples, Lazy):
        for _ in examples:
            pass
    return examples


def _encode(
    inputs: RMInputs, rows: Sequence[Comparison], prefix_fn: PrefixFn, with_context: bool
) -> list[Example]:
    """Encode rows that have pairs."""
    responses = texts_of(rows, prefix_fn, with_context)
    encoded = iter(inputs.encode([text for texts, _ in responses for text in texts]))
    examples = []
    for (texts, pairs), row in zip(responses, rows, strict=True):
        margins = row.margins or [0.0] * len(pairs)
        with_margins = tuple((*pair, margin) for pair, margin in zip(pairs, margins))
        answers = list(islice(encoded, len(texts)))
        refuse_without_tokens(answers, [row.prompt] * len(answers))
        examples.append((answers, with_margins))
    return examples


def texts_of(
    rows: Sequence[Comparison], prefix_fn: PrefixFn, with_context: bool
) -> list[tuple[list[RMText], tuple[tuple[int, int], ...]]]:
    """What the model reads of the responses of rows that have pairs, and the pairs."""
    result = []
    for row in rows:
        prefix = Prefix.of(prefix_fn(row.prompt, with_context))
        texts = []
        for answer in row.answers:
            texts.append(RMText.of(prefix, answer.text, [(0, len(answer.text))]))
        result.append((texts, row.pairs))
    return result


def with_features(
    network: PreTrainedModel, inputs: RMInputs, examples: Sequence[Example]
) -> Sequence[Example]:
    """The examples with what frozen layers compute of them (precompute.py).

    For rows in a file, every forward pass computes it.
    """
    if isinstance(examples, Lazy):
        return examples
    all_responses = [rm_input for responses, _ in examples for rm_input in responses]
    computed = iter(precompute(network, inputs, all_responses))
    result = []
    for responses, pairs in examples:
        result.append((list(islice(computed, len(responses))), pairs))
    return result


def pair_margins(scores_B: Tensor, labels_QN3: Tensor) -> tuple[Tensor, Tensor]:
    """For every pair, the score of the first response minus that of the second, and a label.

    Args:
      scores_B: of all responses of a batch.
      labels_QN3: indices of the better and the worse response and the pair's margin, which is not
        used here, padded with IGNORED.
    Returns:
      margins_QN, 0 on padding, and labels_QN: FIRST_BETTER, SECOND_BETTER, or IGNORED on padding.
    """
    better_QN, worse_QN = labels_QN3[..., :2].long().unbind(-1)
    is_pair_QN = better_QN != IGNORED
    first_QN = torch.minimum(better_QN, worse_QN).clamp(min=0)
    second_QN = torch.maximum(better_QN, worse_QN).clamp(min=0)
    margins_QN = scores_B[first_QN] - scores_B[second_QN]  # 0 on padding: the same response twice
    labels_QN = torch.where(better_QN < worse_QN, FIRST_BETTER, SECOND_BETTER)
    return margins_QN, labels_QN.masked_fill(~is_pair_QN, IGNORED)


@dataclass(frozen=True)
class PairLoss:
    """The loss of a batch of n pairs.

    A pair has the scores s_w and s_l and the margin m. The loss is

        sum (-log sigmoid(s_w - s_l - margin m) + centring (s_w + s_l)^2) / n

    Ouyang et al. (2022), equation 1; the margin is that of Touvron et al. (2023), equation 2, the
    centring term that of Eisenstein et al. (2023). Of M members it is their mean, where a
    pair counts as often for a member as its prompt.
    """

    margin: float = 0.0
    centring: float = 0.0

    def __call__(self, outputs, labels_QN3: Tensor, counts_QM: Tensor | None = None) -> Tensor:
        """The loss.

        Args:
          outputs: the scores of all responses of the batch: `logits` (B, 1) or, of members,
            `member_logits` (B, M).
          labels_QN3: as in `pair_margins`.
          counts_QM: how often each prompt counts for each member; None: once.
        """
        scores_BM = getattr(outputs, "member_logits", None)
        scores_BM = (outputs.logits if scores_BM is None else scores_BM).float()
        is_pair_QN = labels_QN3[..., 0] != IGNORED
        better_places_N, worse_places_N, margins_N = labels_QN3[is_pair_QN].unbind(-1)
        better_NM = scores_BM[better_places_N.long()]
        worse_NM = scores_BM[worse_places_N.long()]
        wanted_N1 = self.margin * margins_N.float()[:, None]
        losses_NM = -torch.nn.functional.logsigmoid(better_NM - worse_NM - wanted_N1)
        losses_NM = losses_NM + self.centring * (better_NM + worse_NM).square()
        if counts_QM is not None:
            losses_NM = losses_NM * counts_QM[is_pair_QN.nonzero()[:, 0]]
        return losses_NM.sum() / max(1, losses_NM.numel())


def decided_pairs(margins_QN: np.ndarray, labels_QN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(margin, whether the first is better) of every pair, without padding."""
    is_pair_QN = labels_QN != IGNORED
    return margins_QN[is_pair_QN].astype(np.float64), labels_QN[is_pair_QN] == FIRST_BETTER


def margins_of_better(margins_QN: np.ndarray, labels_QN: np.ndarray) -> list[list[float]]:
    """The margins of `pair_margins`, without padding, as better minus worse response's score."""
    signs_QN = np.where(labels_QN == FIRST_BETTER, 1.0, -1.0)
    is_pair_QN = labels_QN != IGNORED
    rows = zip(signs_QN * margins_QN, is_pair_QN, strict=True)
    return [margins_N[is_pair_N].tolist() for margins_N, is_pair_N in rows]


class PairDev:
    """The dev rows for `training.run_training`.

    Args:
      rows: those that have pairs.
      prompts: the number of each one's prompt.
    """

    def __init__(
        self,
        rows: Sequence[Comparison],
        prompts: Sequence[int],
        baselines: Baselines,
    ):
        self.comparisons = rows
        self.prompts = np.array(prompts)
        self.rows = len(rows)
        self.baselines = baselines

    def judge(self, margins_QN: np.ndarray, labels_QN: np.ndarray) -> Predictions:
        margins, first_better = decided_pairs(margins_QN, labels_QN)
        rows, _ = np.nonzero(labels_QN != IGNORED)
        return Predictions("pairs", margins, first_better, self.prompts[rows])

    def figures(self, margins_QN: np.ndarray, labels_QN: np.ndarray) -> dict[str, Figure]:
        # the order of two responses may be that of chosen and rejected, so there is no AUC
        return {"accuracy": self.judge(margins_QN, labels_QN).figures()["accuracy"]}

    def calibration(self, margins_QN: np.ndarray, labels_QN: np.ndarray) -> dict[str, Any]:
        curve = pair_calibration(margins_QN, labels_QN)
        return {"calibration": curve, "ece": expected_calibration_error(curve)}

    def find_errors(self, margins_QN: np.ndarray, labels_QN: np.ndarray) -> Errors:
        margins = margins_of_better(margins_QN, labels_QN)
        return pair_errors(self.comparisons, self.prompts.tolist(), margins)


def pair_calibration(margins_QN: np.ndarray, labels_QN: np.ndarray) -> list[dict[str, float]]:
    """sigmoid(|s_1 - s_2|) against how often the response with the higher score is better.

    It does not depend on the order of the responses: equal scores count as half right. In files of
    chosen and rejected responses, the first one is always better, so a curve of the first one would
    be 1 everywhere.
    """
    margins, first_better = decided_pairs(margins_QN, labels_QN)
    is_right = np.where(margins == 0, 0.5, (margins > 0) == first_better.astype(bool))
    return calibration(expit(np.abs(margins)), is_right)


class PairTrainer(RewardTrainer):
    """Trains a network that scores whole responses."""

    config: PreferenceRMConfig

    @cached_property
    def pair_loss(self) -> PairLoss:
        return PairLoss(self.config.train.margin, self.config.train.centring)

    def metrics_of(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return pair_accuracy(*decided_pairs(predictions, labels))

    def inputs_in(self, row: Example) -> Sequence[RMInput]:
        return row[0]

    def labels_of(self, row: Example) -> int:
        return len(row[1])

    def loss(self, outputs: Any, labels: Tensor, counts_BM: Tensor | None = None) -> Tensor:
        return self.pair_loss(outputs, labels, counts_BM)

    def predictions(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A row of margins for each prompt."""
        return pair_margins(outputs.logits.float()[:, 0], labels)


def score_moments(
    scorer: SequenceScorer,
    examples: Sequence[Example],
    rows: Sequence[Comparison],
    rank: int,
    world: int,
) -> dict[str, Any]:
    """Mean and population standard deviation of the scores of all training responses.

    Of several members they are those of the mean score, and also those of each member's scores,
    which the loss leaves on a scale of its own. The processes share the work. Scores are computed
    as when the model is used.

    Args:
      examples: the rows that have pairs, with what frozen layers have computed before training.
      rows: all training rows.

    Raises:
      UserError: a score is NaN or infinite, or all scores are equal.
    """
    logits_of = scorer.member_logits if scorer.members > 1 else scorer.logits
    local_scores: list[list[float]] = []  # of each response, by member
    # apart, since a batch uses computed states only if all of its inputs have them
    for part in _parts(examples, rank, world):
        compared = [rm_input for responses, _ in part for rm_input in responses]
        local_scores += [scores_M.tolist() for scores_M in logits_of(compared)]
    undecided = chosen(rows, lambda row: not row.pairs)
    for some in _parts(undecided, rank, world):
        prompts = [row.prompt for row in some for _ in row.answers]
        texts = [answer.text for row in some for answer in row.answers]
        local_scores += [scores_M.tolist() for scores_M in logits_of(scorer.encode(prompts, texts))]
    scores_NM = np.array(gather_object(local_scores) if world > 1 else local_scores)
    scores_N = scores_NM.mean(1)
    not_finite = int((~np.isfinite(scores_N)).sum())
    if not_finite:
        raise UserError(
            f"the trained model gives {not_finite} of {len(scores_N)} training responses a score"
            " that is NaN or infinite: training diverged. Lower train.lr"
        )
    if not min(scores_N.std(), *scores_NM.std(0)) > 0:
        raise UserError(
            "the trained model gives every response the same score: it has learned nothing. Lower"
            " train.lr or train longer"
        )
    moments: dict[str, Any] = {"mean": float(scores_N.mean()), "std": float(scores_N.std())}
    if scorer.members > 1:
        moments["member_means"] = tuple(scores_NM.mean(0).tolist())
        moments["member_stds"] = tuple(scores_NM.std(0).tolist())
    return moments


def _parts(rows: Sequence[Item], rank: int, world: int) -> Iterator[Sequence[Item]]:
    """The share of the rows that belongs to a process: at once or, of rows in a file, in parts."""
    places = share_of(range(len(rows)), rank, world)
    size = KEPT if isinstance(rows, Lazy) else max(1, len(places))
    for begin in range(0, len(places), size):
        yield [rows[i] for i in places[begin : begin + size]]


def train(config: PreferenceRMConfig, task: Task = NO_TASK) -> Path:
    """Run the stage and return the model's folder. See the module's docstring."""
    with hold(config.logging.save_dir):
        return _train(config, task)


def _about_position(won: int, decided: int) -> str:
    """A message about how often the response listed first is the better one.

    Args:
      won: decided pairs that the response listed first has won.
    """
    if won == decided:
        return "the better response is listed first in every pair"
    return (
        f"the response listed first wins {won / decided:.1%} of the decided pairs (50% without"
        " position bias)"
    )


def _train(config: PreferenceRMConfig, task: Task) -> Path:
    rows = read_files(config.data.train_file, lambda file: read_pair_rows(file, task.rm_pairs))
    dev_rows = read_pair_rows(config.data.dev_file, task.rm_pairs)[: config.evaluation.examples]
    folder = reuse(config)
    if folder is not None:
        return folder
    accelerator = start(config)
    with seeded(config.train.seed, "head"):
        network, tokenizer = load_network(config.model, "sequence")
    spec = _untrained_spec(config, network, tokenizer)
    inputs = inputs_of(network, tokenizer, spec)
    with_context = config.data.with_context
    train_rows = of_each(rows, decided)
    dev_decided = decided(dev_rows)
    _require_pairs(names_of(config.data.train_file), train_rows)
    _require_pairs(config.data.dev_file, dev_decided)
    examples = of_each(train_rows, lambda part: encode(inputs, part, task.rm_prefix, with_context))
    dev_examples = encode(inputs, dev_decided, task.rm_prefix, with_context)
    cuts = inputs.cuts  # of each row once, however often those in a file are encoded

    won, pairs = first_position_share(train_rows)
    start_messages = [
        f"{len(examples)} training prompts with {pairs} decided pairs, {len(dev_examples)} dev"
        f" prompts, {network.num_parameters(only_trainable=True):,} trained parameters",
        _about_position(won, pairs),
        cuts.describe(spec.max_length),
    ]
    texts = texts_of(spread(train_rows, LINEAR_ROWS), task.rm_prefix, with_context)
    dev_texts = texts_of(dev_decided, task.rm_prefix, with_context)
    clusters = [cluster_of(row.prompt) for row in dev_decided]
    prompts = prompts_of([responses[0].prefix for responses, _ in dev_texts], clusters)
    dev = PairDev(dev_decided, prompts, pair_baselines(texts, dev_texts, prompts))
    spec = replace(spec, metrics={"cuts": asdict(cuts)})
    place(network, config, accelerator)
    examples = of_each(examples, lambda part: with_features(network, inputs, part))
    dev_examples = with_features(network, inputs, dev_examples)
    start_with_pairs(network, inputs, spread(examples, LINEAR_ROWS))
    trainer = PairTrainer(
        config,
        network,
        examples,
        dev_examples,
        PairCollator(inputs),
        tokenizer,
        dev,
        (answer.text for row in train_rows for answer in row.answers),
        accelerator,
    )

    def moments() -> dict[str, Any]:
        scorer = SequenceScorer(network, tokenizer, spec, task.rm_prefix)  # freezes the network
        rank, world = accelerator.process_index, accelerator.num_processes
        return score_moments(scorer, examples, rows, rank, world)

    return training.run_training(trainer, spec, start_messages, moments)


def _untrained_spec(
    config: PreferenceRMConfig, network: PreTrainedModel, tokenizer
) -> RewardModelSpec:
    """The spec with raw scores: their mean and standard deviation are measured after training."""
    return RewardModelSpec(
        "sequence",
        shape_of(network),
        "sequence",
        config.data.with_context,
        config.model.max_input_len,
        mean=0.0,
        std=1.0,
        line_breaks=reads_line_breaks(config.model, shape_of(network), tokenizer),
    )


def _require_pairs(path: str, rows: Sequence[Comparison]) -> None:
    if not rows:
        raise UserError(f"{path} has no decided pair, so there is nothing to learn from")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: an optional task, a YAML file and key=value overrides."""
    run_program("rm sequence", "reward model", PreferenceRMConfig, train, argv)


if __name__ == "__main__":
    run_main(main)
