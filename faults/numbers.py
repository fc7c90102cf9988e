"""Kind `numbers`: runs that diverge or degenerate.

They must be refused or end with finite weights; no result may contain NaN.
"""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration

from faults.campaign import Kind, in_child
from faults.child import run
from faults.judging import Outcome
from fgrlhf.base.files import read_json
from tasks.qa_feedback.data import mini_model

RATES = ("1e3", "1e10", "1e30", "1e308")
SPLITS = ("train", "dev", "test")
TRAINED = ("sft", "fg_rm", "pref_rm", "oracle", "dpo", "grpo")
USERS = ("sft", "fg_rm", "pref_rm", "oracle", "dpo", "grpo", "generate", "evaluate")


@dataclass(frozen=True)
class Degenerate:
    """A stage with overrides; `model`: the change to its initial policy (or `reward` model)."""

    stage: str
    overrides: tuple[str, ...] = ()
    model: str = ""

    def __str__(self) -> str:
        return " ".join((self.stage, *self.overrides, self.model))


def _cases() -> tuple[Degenerate, ...]:
    cases = [Degenerate(stage, (f"train.lr={rate}",)) for rate in RATES for stage in TRAINED]
    cases += [
        Degenerate(stage, ("train.lr=1e308", "train.max_grad_norm=1e308")) for stage in TRAINED
    ]
    cases += [
        Degenerate("sft", ("train.lr=1e308", "evaluation.metric=loss")),
        Degenerate("sft", ("train.lr=1e308", "data.dev_file=null")),
    ]
    cases += [
        Degenerate(stage, (), model) for model in ("NaN", "infinite", "huge") for stage in USERS
    ]
    cases += [Degenerate(stage, (), "NaN reward") for stage in ("ppo", "evaluate")]
    ending = ("ppo", "oracle", "grpo", "generate", "evaluate", "sft")
    cases += [Degenerate(stage, (), "all EOS") for stage in ending]
    for name in ("ppo", "grpo", "rloo", "gpg", "reinforce", "a2c", "nlpo"):
        epochs = () if name in ("ppo", "nlpo", "grpo") else ("train.n_ppo_epoch_per_rollout=1",)
        cases.append(
            Degenerate("oracle", (f"algorithm.name={name}", "reward.gold.scale=1e-30", *epochs))
        )
        cases.append(
            Degenerate("oracle", (f"algorithm.name={name}", "model.max_generated_len=1", *epochs))
        )
    few = (
        "train.sampling_batch_size_per_card=1",
        "train.micro_batch_size=1",
        "env.train_num_samples_per_input=1",
    )
    cases += [
        Degenerate("oracle", few),
        Degenerate("oracle", ("reward.gold.scale=1e308",)),
        Degenerate("oracle", ("algorithm.kl.coef=1e308",)),
    ]
    cases += [
        Degenerate("dpo", ("dpo.beta=1e308",)),
        Degenerate("generate", ("temperature=1e-300",)),
        Degenerate("generate", ("temperature=1e308",)),
    ]
    return tuple(cases)


CASES = _cases()


class Numbers(Kind):
    """See the module's docstring."""

    name = "numbers"
    good = ("survived", "refused")
    bad = ("traceback", "NaN weights", "NaN in a file", "drew from NaN")
    cases = CASES

    def run(self, index: int, folder: Path) -> Outcome:
        case = self.case(index)
        ended = run(self._command(case, folder), folder, folder / "logs/0.txt")
        note = f"{case}: exit {ended.code}\n{ended.output[-3_000:]}"
        row = "NaN and degenerate runs"
        if ended.has_traceback:
            return Outcome("traceback", note, row)
        if ended.code != 0:
            return Outcome("refused", note, row)
        if case.model in ("NaN", "infinite") and case.stage in ("generate", "evaluate"):
            return Outcome("drew from NaN", note, row)
        wrong = in_child(not_finite, str(folder / "run"))
        if wrong:
            verdict = "NaN weights" if wrong[0].endswith(".safetensors") else "NaN in a file"
            return Outcome(verdict, f"{wrong[0]}: {note}", row)
        return Outcome("survived", note, row)

    def _command(self, case: Degenerate, folder: Path):
        world = self.bench.world
        overrides = list(case.overrides)
        if case.model == "NaN reward":
            in_child(spoil, str(world.folder / "rel_rm"), str(folder / "model"), "NaN")
            tree = yaml.safe_load(world.config("rl").read_text())
            tree["reward"]["relevance_model"]["ckpt"] = str(folder / "model")
            (folder / "rl.yml").write_text(yaml.safe_dump(tree))
            if case.stage == "evaluate":
                return world.stage("evaluate", f"config={folder / 'rl.yml'}").command
            overrides.append(f"reward.relevance_model.ckpt={folder / 'model'}")
        elif case.model:
            in_child(spoil, str(world.policy), str(folder / "model"), case.model)
            key = "policy" if case.stage in ("generate", "evaluate") else "model.ckpt"
            overrides.append(f"{key}={folder / 'model'}")
            if case.stage in ("ppo", "oracle"):
                overrides.append(f"model.value_model.ckpt={folder / 'model'}")
        return world.stage(case.stage, *overrides).command


def spoil(sound: str, target: str, how: str) -> None:
    """Copy a model with NaN, infinite or huge weights, or make one that ends at once."""
    if how == "all EOS":
        always_ends(Path(sound), Path(target))
        return
    shutil.copytree(sound, target)
    tensors = load_file(f"{target}/model.safetensors")
    if how == "huge":
        tensors = {name: tensor * 1e30 for name, tensor in tensors.items()}
    else:
        tensors[min(tensors)].view(-1)[0] = float(how.replace("infinite", "inf"))
    save_file(tensors, f"{target}/model.safetensors", {"format": "pt"})


def always_ends(sound: Path, folder: Path) -> None:
    """A BART whose bias allows only the end token."""
    rows = [row for name in SPLITS for row in read_json(sound.parent / "data" / f"{name}.json")]
    tokenizer = mini_model.word_tokenizer(mini_model.texts_of(rows))
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = BartForConditionalGeneration(config)
    assert isinstance(tokenizer.eos_token_id, int)
    model.final_logits_bias[:, tokenizer.eos_token_id] = 1e4
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def not_finite(folder: str) -> list[str]:
    """Names of files below a folder that contain NaN or infinity: weights first, then JSON."""
    wrong = []
    for path in sorted(Path(folder).rglob("*.safetensors")):
        if not all(torch.isfinite(tensor).all() for tensor in load_file(path).values()):
            wrong.append(str(path))
    for path in sorted([*Path(folder).rglob("*.json"), *Path(folder).rglob("*.jsonl")]):
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n") if path.suffix == ".jsonl" else [text]
        if not all(_is_finite(json.loads(line)) for line in lines if line.strip()):
            wrong.append(str(path))
    return wrong


def _is_finite(value) -> bool:
    if isinstance(value, dict):
        return all(_is_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)
