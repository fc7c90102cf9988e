"""A tiny world for all stages: rows, feedback, a policy, reward models, configs, commands."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from faults.child import Command, run
from fgrlhf.base.files import read_json, write_json, write_text
from fgrlhf.configs.yaml_files import read_config
from tasks.qa_feedback.data import mini_model, mini_world
from tasks.qa_feedback.data.annotator import annotate
from tasks.qa_feedback.data.language import TOY, ErrorRates
from tasks.qa_feedback.feedback import write_feedback
from tasks.qa_feedback.reward_modeling import create_rm_files

ROOT = Path(__file__).parents[1]
TRAIN_RL = "tasks.qa_feedback.training.train_finegrained"
MODULES = (
    "sft.run_sft",
    "reward_modeling.run_fg_rm",
    "reward_modeling.run_pref_rm",
    "fgrlhf.cli.generate",
    "fgrlhf.cli.evaluate",
    "tasks.qa_feedback.training.train_finegrained",
    "fgrlhf.cli.dpo",
    "fgrlhf.cli.reward_serve",
    "tasks.qa_feedback.training.corrected_examples",
    "tasks.qa_feedback.data.collect_feedback",
    "transformers.models.t5.modeling_t5",
    "transformers.models.bart.modeling_bart",
    "transformers.models.gpt2.modeling_gpt2",
    "faults.fake_sampler",
)
ROWS = {"train": 20, "dev": 4, "test": 4, "pretrain": 1, "sft": 12}


@dataclass(frozen=True)
class Stage:
    """A stage's command. It writes below `run/` in its working directory."""

    name: str
    command: Command


@dataclass(frozen=True)
class World:
    """The folder of a tiny world, which is `$OUTPUT_DIR` of the stages."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def policy(self) -> Path:
        return self.folder / "sft"

    @property
    def causal(self) -> Path:
        """A decoder-only policy."""
        return self.folder / "causal"

    @property
    def other_causal(self) -> Path:
        """The same network with other weights."""
        return self.folder / "other_causal"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OUTPUT_DIR": str(self.folder),
            "DATA_DIR": str(self.data),
            "FGRLHF_SMALL_MODEL": str(self.folder / "small_model"),  # named in configs; not read
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }

    def config(self, name: str) -> Path:
        return self.folder / "configs" / f"{name}.yml"

    def stage(self, name: str, *overrides: str) -> Stage:
        """The stage with that name (see `stages`), with additional arguments."""
        return Stage(name, stages(self)[name].command.with_arguments(*overrides))


def stages(world: World) -> dict[str, Stage]:
    """Every stage as a tiny run."""

    def trained(name: str, module: str, config: str, *overrides: str) -> Stage:
        task = ("tasks.qa_feedback",) if module.startswith("reward_modeling.") else ()
        arguments = (*task, str(world.config(config)), f"logging.save_dir=run/{name}", *overrides)
        return Stage(name, Command(module, arguments, world.environment))

    def on_task(name: str, module: str, config: str) -> Stage:
        arguments = ("tasks.qa_feedback", str(world.config(config)), f"logging.save_dir=run/{name}")
        return Stage(name, Command(module, arguments, world.environment))

    def used(name: str, *arguments: str) -> Stage:
        common = (f"policy={world.policy}", f"data_dir={world.data}", "output_dir=run", "split=dev")
        module = f"fgrlhf.cli.{name}"
        arguments = ("tasks.qa_feedback", *common, *arguments)
        return Stage(name, Command(module, arguments, world.environment))

    grpo = ("algorithm.name=grpo", "train.n_ppo_epoch_per_rollout=1")
    stages = (
        trained("sft", "sft.run_sft", "sft"),
        trained("fg_rm", "reward_modeling.run_fg_rm", "fg_rm"),
        trained("pref_rm", "reward_modeling.run_pref_rm", "pref_rm"),
        trained("ppo", TRAIN_RL, "rl"),
        trained("grpo", TRAIN_RL, "oracle", *grpo),
        trained("oracle", TRAIN_RL, "oracle"),
        trained("served", TRAIN_RL, "served"),
        trained("sampled", TRAIN_RL, "sampled"),
        on_task("dpo", "fgrlhf.cli.dpo", "dpo"),
        used(
            "generate",
            "max_input_len=192",
            "max_generated_len=8",
            "num_samples=4",
            "batch_size=1",
            "split=train",
        ),
        used("evaluate", f"config={world.config('rl')}", "do_sample=true", "num_samples=2"),
    )
    return {stage.name: stage for stage in stages}


def make(folder: Path) -> World:
    """Write rows, feedback, models and configs. Call it in a forked child: it runs models."""
    world = World(folder)
    _write_data(world)
    write_policy(world.policy, world.data)
    write_causal_policy(world.causal, world.data, seed=0)
    write_causal_policy(world.other_causal, world.data, seed=1)
    _write_configs(world)
    for name, stage in (("rel_rm", "fg_rm"), ("comp_rm", "pref_rm")):
        command = world.stage(stage, f"logging.save_dir={folder / name}").command
        ended = run(command, folder, folder / "logs" / f"{name}.log", below=name)
        if ended.code != 0:
            raise RuntimeError(f"the world's {name} could not be trained:\n{ended.output}")
    return world


def _write_data(world: World) -> None:
    settings = {"data_dir": str(world.data), **ROWS}
    mini_world.write_world(mini_world.MiniWorldSettings.model_validate(settings))
    for split in ("train", "dev"):
        path = world.data / f"{split}.json"
        write_json(path, [with_odd_spaces(row) for row in read_json(path)])
    for split, count in (("train", 12), ("dev", 6)):
        write_feedback(
            world.data / f"{split}_feedback.json", [feedback_row(split, i) for i in range(count)]
        )
    settings = create_rm_files.RMFileSettings(
        data_dir=str(world.data),
        output_dir=str(world.folder / "derived"),
        segmenter="blank_en_sentencizer",
    )
    create_rm_files.create_rm_files(settings)


def with_odd_spaces(row: dict) -> dict:
    """The row with a line separator and a next-line character in its passage."""
    passage = row["passages"][0]
    odd = passage["content"].replace(" ", "\u2028", 1).replace(". ", ".\u0085", 1)
    text = row["text"].replace(passage["content"], odd)
    return {**row, "text": text, "passages": [{**passage, "content": odd}, *row["passages"][1:]]}


def feedback_row(split: str, index: int):
    """A row of feedback on four imperfect answers to a question of the mini world."""
    rng = random.Random(f"faults/{split}/{index}")
    item = mini_world.make_item(0, split, index % ROWS[split])
    row = mini_world.make_row(0, split, index % ROWS[split])
    rates = ErrorRates(wrong_value=0.5)
    answers = [TOY.compose(mini_world.demonstration(rng, item, rates)) for _ in range(4)]
    return annotate(rng, row["question"], row["passages"], row["answer"][0], answers)


def write_policy(folder: Path, data: Path, seed: int = 0, **changes: Any) -> None:
    """Write a T5 of one layer and 16 columns with the rows' words."""
    tokenizer = _word_tokenizer(data, add_eos=True)
    torch.manual_seed(seed)
    settings = {
        "vocab_size": len(tokenizer),
        "d_model": 16,
        "d_kv": 8,
        "num_heads": 2,
        "d_ff": 16,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "dropout_rate": 0.1,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    model = T5ForConditionalGeneration(T5Config(**{**settings, **changes}))
    # otherwise a random T5 with tied embeddings echoes its input
    model.get_input_embeddings().weight.data.mul_(0.05)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _word_tokenizer(data: Path, add_eos: bool):
    """A tokenizer of the rows' words."""
    rows = [row for name in ("train", "dev", "test") for row in read_json(data / f"{name}.json")]
    return mini_model.word_tokenizer(mini_model.texts_of(rows), add_eos)


def write_causal_policy(folder: Path, data: Path, seed: int) -> None:
    """Write a GPT-2 of one layer and 16 columns."""
    tokenizer = _word_tokenizer(data, add_eos=False)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=1,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# ---- configs -------------------------------------------------------------------------------------


def shrunk(shipped: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """A shipped mini config with changes by dotted key; None removes a key."""
    tree = read_config(shipped)
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(leaf, None)
        else:
            node[leaf] = value
    return tree


def _write_configs(world: World) -> None:
    listed = yaml.safe_load((ROOT / "faults/configs.yml").read_text(encoding="utf-8"))
    for name, config in listed.items():
        tree = shrunk(ROOT / "tasks/qa_feedback" / config["shipped"], config["changes"])
        write_text(world.config(name), yaml.safe_dump(tree, sort_keys=False))
