"""`fgrlhf data convert-config`: write a config of this library from one of RL4LMs.

RL4LMs (Ramamurthy et al. 2023, arXiv 2210.01241) counts tokens where this library counts responses;
docs/text_tasks.md has the translation, here with T = `max_new_tokens`, the longest response:

    responses of an iteration   n_steps * n_envs / T
    responses of a minibatch    batch_size / T, rounded to a divisor of those
    total episodes              n_iters * responses
    kl.target                   T * target_kl of a token
    kl.horizon                  10 * responses
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import write_text
from fgrlhf.cli.new_run import config_class
from fgrlhf.configs.overrides import by_dotted_key
from fgrlhf.configs.strict import FilePath, StrictModel, validate
from fgrlhf.configs.yaml_files import dump_yaml, read_yaml
from fgrlhf.load import load_task
from fgrlhf.task import NO_TASK

TASKS = {  # datapool -> the task with its rows
    "cnn_daily_mail": "cnn_dailymail",
    "commongen": "common_gen",
    "daily_dialog": "daily_dialog",
    "imdb": "imdb",
    "imdb_seq2seq": "imdb",
    "iwslt2017en_de": "iwslt2017",
    "narrative_qa": "narrative_qa",
    "totto": "totto",
}
METRICS = {  # metric -> those of this library
    "bleu": ("bleu",),
    "bleu_totto": ("bleu",),
    "chrf": ("chrf",),
    "diversity": ("distinct1", "distinct2"),
    "meteor": ("meteor",),
    "parent_totto": ("parent",),
    "rouge": ("rouge1", "rouge2", "rougeL"),
    "rouge_l_max": ("rougeL",),
    "sacre_bleu": ("bleu",),
    "ter": ("ter",),
}
# keys that are translated, or that say how RL4LMs computes and not what
READ = {
    *(f"alg.{key}" for key in ("id", "model_name", "model_type")),
    *(f"alg.args.{key}" for key in ("batch_size", "clip_range", "ent_coef", "gae_lambda")),
    *(f"alg.args.{key}" for key in ("learning_rate", "n_epochs", "n_steps", "verbose")),
    *(f"alg.generation_kwargs.{key}" for key in ("do_sample", "max_new_tokens", "num_beams")),
    *(f"alg.generation_kwargs.{key}" for key in ("temperature", "top_k")),
    *(f"alg.kl_div.{key}" for key in ("coeff", "target_kl")),
    *(f"alg.policy.{key}" for key in ("id", "args.model_name", "args.apply_model_parallel")),
    *(f"alg.policy.args.{key}" for key in ("mask_type", "target_update_iterations", "top_mask")),
    *(f"alg.policy.args.generation_kwargs.{key}" for key in ("do_sample", "max_new_tokens")),
    *(f"alg.policy.args.generation_kwargs.{key}" for key in ("num_beams", "top_k")),
    *(f"alg.training_args.{key}" for key in ("learning_rate", "lr_scheduler_type")),
    *(f"alg.training_args.{key}" for key in ("logging_steps", "num_train_epochs")),
    *(f"alg.training_args.{key}" for key in ("per_device_train_batch_size", "save_total_limit")),
    "alg.training_args.weight_decay",
    *(f"env.{key}" for key in ("n_envs", "args.max_prompt_length", "args.max_episode_length")),
    "env.args.terminate_on_eos",
    *(f"train_evaluation.{key}" for key in ("eval_batch_size", "eval_every", "n_iters")),
    *(f"train_evaluation.generation_kwargs.{key}" for key in ("do_sample", "max_new_tokens")),
    *(f"train_evaluation.generation_kwargs.{key}" for key in ("num_beams", "temperature", "top_k")),
    "train_evaluation.save_every",
    *(f"tokenizer.{key}" for key in ("model_name", "max_length", "pad_token_as_eos_token")),
    "tokenizer.padding_side",
}
INTENT_MODEL = "rajkumarrrk/roberta-daily-dialog-intent-classifier"  # the only one of RL4LMs
MICRO_BATCH = 16  # responses in a pass: of memory only, so RL4LMs has no such key
NO_LIMIT = 1000  # of the KL: RL4LMs does not stop early


class ConvertConfigSettings(StrictModel):
    """What the file of RL4LMs does not say."""

    out: FilePath | None = Field(
        default=None, description="the config to write; null: NAME_fgrlhf.yml in this folder"
    )
    train_file: FilePath | None = Field(
        default=None,
        description=(
            "rows to train on; null: those that `bash tasks/TASK/run.sh prepare` writes for the"
            " file's datapool"
        ),
    )
    dev_file: FilePath | None = Field(default=None, description="rows of dev; null: likewise")
    reward: str | None = Field(
        default=None,
        description=(
            "package.module.function of a response, for a reward_fn that this library does not have"
        ),
    )


def convert_config(file: str, settings: ConvertConfigSettings) -> None:
    """Write the config, and print the command that runs it and what is left out.

    Raises:
      UserError: the file is no config of RL4LMs, its reward or its datapool is not known, or the
        config exists.
    """
    out = Path(settings.out or f"{Path(file).stem}_fgrlhf.yml")
    if out.suffix not in (".yml", ".yaml"):
        raise UserError(f"{shorten(out)} is no name of a config: give one that ends in .yml")
    if out.exists():
        raise UserError(f"{out} exists: choose another name with out=..., or remove it")
    theirs = read_yaml(file)
    if not all(isinstance(theirs.get(key), dict) for key in ("alg", "datapool", "tokenizer")):
        raise UserError(
            f"{shorten(file)} is no config of RL4LMs, which has the sections tokenizer, datapool"
            " and alg: give a file of its scripts/training/task_configs"
        )
    given = _Given(theirs)
    task = TASKS.get(str(given("datapool.id")))
    is_sft = given("alg.id") == "supervised"
    ours = _sft(given) if is_sft else _rl(given, settings.reward)
    ours["data"] = _data(given, task, settings)
    name = out.stem
    ours["logging"] = {"run_name": name, "save_dir": f"outputs/{name}"}
    stage = "sft" if is_sft else "rl"
    used = NO_TASK if task is None else load_task(f"tasks.{task}")
    validate(config_class(stage, used), ours, f"{out} was not written")
    left_out = given.unread()
    notes = [f"# Left out: {', '.join(left_out)}."] if left_out else []
    head = [f"# From {Path(file).name} of RL4LMs; docs/text_tasks.md has the translation.", *notes]
    write_text(out, "\n".join(head) + "\n" + dump_yaml(ours))
    command = " ".join(word for word in (f"fgrlhf {stage}", task, str(out)) if word)
    print("\n".join([f"{out} is written. Run it:", f"    {command}", *(n[2:] for n in notes)]))


class _Given:
    """The values of a config of RL4LMs by dotted key."""

    def __init__(self, tree: Mapping[str, Any]):
        self.tree = tree

    def __call__(self, path: str, default: Any = None) -> Any:
        value: Any = self.tree
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return default if value is None else value

    def number(self, path: str, default: float) -> float:
        """Raises `UserError` if the value is no number."""
        value = self(path, default)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UserError(f"{path}: {shorten(repr(value), 60)} is not a number") from None

    def unread(self) -> list[str]:
        """Keys with a value that are not translated, and metrics that are not."""
        given = [key for key, value in by_dotted_key(self.tree).items() if value not in (None, {})]
        keys = [key for key in given if key not in READ]
        kept = ("reward_fn.", "datapool.", "train_evaluation.metrics")
        found = [key for key in keys if not key.startswith(kept)]
        names = [str(metric.get("id")) for metric in self("train_evaluation.metrics", [])]
        return found + [f"the metric {name}" for name in names if name not in METRICS]


# ---- sections ------------------------------------------------------------------------------------


def _rl(given: _Given, reward: str | None) -> dict[str, Any]:
    policy = "alg.policy.args"
    length = int(
        given.number(f"{policy}.generation_kwargs.max_new_tokens", 0)
        or given.number("env.args.max_episode_length", 128)
    )
    tokens = given.number("alg.args.n_steps", 2048) * given.number("env.n_envs", 1)
    responses = max(round(tokens / length), 1)
    wanted = given.number("alg.args.batch_size", 64) / length  # responses of a minibatch
    sizes = [size for size in range(1, responses + 1) if responses % size == 0]
    minibatches = responses // min(sizes, key=lambda size: abs(size - wanted))
    iterations = int(given.number("train_evaluation.n_iters", 100))
    algorithm: dict[str, Any] = {
        "name": given("alg.id"),
        "gamma": given.number("alg.args.gamma", 0.99),
        "gae": {"lam": given.number("alg.args.gae_lambda", 0.95)},
        "kl": {
            "coef": given.number("alg.kl_div.coeff", 0.001),
            "target": length * given.number("alg.kl_div.target_kl", 0.2),
            "horizon": 10 * responses,
        },
    }
    if given("alg.args.ent_coef"):
        algorithm["entropy"] = {"coef": given.number("alg.args.ent_coef", 0)}
    if given("alg.id") in ("ppo", "nlpo"):
        algorithm |= {
            "loss": {"cliprange": given.number("alg.args.clip_range", 0.2)},
            "cliprange_value": None,
        }
    if given("alg.id") == "nlpo":
        algorithm["top_p"] = given.number(f"{policy}.top_mask", 0.9)
        algorithm["sync_every"] = int(given.number(f"{policy}.target_update_iterations", 5))
    model = str(given(f"{policy}.model_name"))
    return {
        "model": {
            "ckpt": model,
            "value_model": {"ckpt": model},
            "max_input_len": int(given.number("env.args.max_prompt_length", 512)),
            "max_generated_len": length,
            "train_generation_kwargs": _sampling(given, f"{policy}.generation_kwargs"),
            "eval_generation_kwargs": _sampling(given, "train_evaluation.generation_kwargs"),
        },
        "env": {"train_num_samples_per_input": 1},
        "reward": _reward(given, reward),
        "algorithm": algorithm,
        "train": {
            "total_episodes": iterations * responses,
            "sampling_batch_size_per_card": responses,
            "micro_batch_size": min(MICRO_BATCH, responses),
            "n_minibatches": minibatches,
            "n_ppo_epoch_per_rollout": int(given.number("alg.args.n_epochs", 1)),
            "lr": given.number("alg.args.learning_rate", 1e-6),
            "lr_schedule": "constant",
            "warmup_steps": 0,
            "adam_eps": 1e-8,
            "kl_threshold": NO_LIMIT,
            "seed": 0,
        },
        "evaluation": {
            "every_steps": int(given.number("train_evaluation.eval_every", 10)),
            "examples": 500,
        },
        "evaluation_metrics": _metrics(given("train_evaluation.metrics", [])),
    }


def _sft(given: _Given) -> dict[str, Any]:
    schedule = str(given("alg.training_args.lr_scheduler_type", "linear"))
    return {
        "model": {
            "ckpt": given("alg.model_name"),
            "max_input_len": int(given.number("tokenizer.max_length", 512)),
            "max_generated_len": int(given.number("alg.generation_kwargs.max_new_tokens", 128)),
        },
        "train": {
            "epochs": given.number("alg.training_args.num_train_epochs", 3),
            "batch_size": int(given.number("alg.training_args.per_device_train_batch_size", 8)),
            "lr": given.number("alg.training_args.learning_rate", 5e-5),
            "lr_schedule": schedule.removesuffix("_with_warmup"),
            "weight_decay": given.number("alg.training_args.weight_decay", 0),
            "seed": 0,
        },
    }


def _sampling(given: _Given, path: str) -> dict[str, Any]:
    """The settings of sampling. In the transformers of that time, `top_k` was 50 unless given."""
    beams = int(given.number(f"{path}.num_beams", 1))
    if beams > 1:
        return {"num_beams": beams}
    if not given(f"{path}.do_sample", False):
        return {}
    top_k = int(given.number(f"{path}.top_k", 50))
    values: dict[str, Any] = {"do_sample": True, "top_k": top_k or None}
    if given(f"{path}.temperature") is not None:
        values["temperature"] = given.number(f"{path}.temperature", 1)
    return values


def _metrics(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of metrics, each once."""
    names = (name for metric in given for name in METRICS.get(str(metric.get("id")), ()))
    return list(dict.fromkeys(names))


def _reward(given: _Given, function: str | None) -> dict[str, Any]:
    """The section of the reward.

    Raises:
      UserError: it has no counterpart.
    """
    if function is not None:
        return {"mine": {"kind": "python", "of": function, "level": "whole"}}
    kind = given("reward_fn.id")
    args = "reward_fn.args"
    match kind:
        case "meteor" if not given(f"{args}.shaping_fn"):
            return {"meteor": {"kind": "metric", "metric": "meteor", "scale": 0.01}}
        case "rouge" if not given(f"{args}.shaping_fn"):
            name = str(given(f"{args}.rouge_type", "rouge1"))
            return {name: {"kind": "metric", "metric": name, "scale": 0.01}}
        case "rouge_l_max":
            return {"rougeL": {"kind": "metric", "metric": "rougeL", "scale": 0.01}}
        case "ter":  # 1 - TER
            ter = {"kind": "metric", "metric": "ter", "scale": -0.01, "threshold": 100}
            return {"ter": ter}
        case "learned_reward" if given("datapool.id") in ("imdb", "imdb_seq2seq"):
            scorer = {
                "kind": "classifier",
                "ckpt": given(f"{args}.model_name"),
                "label": "POSITIVE" if given(f"{args}.label_ix") == 1 else "NEGATIVE",
            }
            return {"sentiment": {"kind": "review_sentiment", "scorer": scorer}}
        case "intent_accuracy" if given("datapool.id") == "daily_dialog":
            intents = ("inform", "question", "directive", "commissive")  # a task's word
            scorers = {
                intent: {"kind": "classifier", "ckpt": INTENT_MODEL, "label": f"LABEL_{i}"}
                for i, intent in enumerate(intents)
            }
            weights = [given.number(f"{args}.{name}_coeff", 1) for name in ("intent", "auto")]
            meteor = {"kind": "metric", "metric": "meteor", "scale": 0.01, "weight": weights[1]}
            intent = {"kind": "intent_match", "weight": weights[0], "scorers": scorers}
            return {"intent": intent, "meteor": meteor}
    shaped = " with a shaping_fn" if given(f"{args}.shaping_fn") else ""
    raise UserError(
        f"reward_fn.id: {shorten(repr(kind), 60)}{shaped} has no counterpart here. Write it as a"
        " function of (response, earlier, prompt) and name it with reward=package.module.function"
        " (docs/rewards.md)"
    )


def _data(given: _Given, task: str | None, settings: ConvertConfigSettings) -> dict[str, Any]:
    """The files of the data. Raises `UserError` if they are not known."""
    if settings.train_file is not None:
        return {"train_file": settings.train_file, "dev_file": settings.dev_file}
    if task is None:
        raise UserError(
            f"datapool.id: {shorten(repr(given('datapool.id')), 60)} has no rows here: write its"
            " prompts as rows {prompt} and name the file with train_file=... (dev_file=...)"
        )
    folder = f"outputs/{task}/paper/data"
    return {"train_file": f"{folder}/train.json", "dev_file": f"{folder}/dev.json"}
