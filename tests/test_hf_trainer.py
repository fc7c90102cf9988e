"""Shared parts of the Trainer stages: kept checkpoints, installing a model, refused launchers."""

import os

import pytest
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.data.checks import text_problem
from fgrlhf.runs.hf_checkpoints import checkpoints_to_keep, model_to_install
from fgrlhf.runs.hf_trainer import check_environment, without_repeated
from fgrlhf.runs.ties import tie_note


@pytest.mark.parametrize(
    "steps, last, best, kept",
    [
        ([2], 2, None, {2}),
        ([2, 4, 6], 6, None, {4, 6}),
        ([2, 4, 6], 6, 2, {2, 6}),
        ([2, 4, 6], 6, 6, {4, 6}),
        ([2, 4, 6], 6, 3, {4, 6}),  # the best checkpoint is gone
        ([], 2, None, {2}),
    ],
)
def test_the_last_and_the_best_checkpoint_are_kept(steps, last, best, kept):
    assert checkpoints_to_keep(steps, last, best) == kept


def test_a_model_is_placed_whole_or_not_at_all(tmp_path):
    (tmp_path / "config.json").write_text("old")
    (tmp_path / ".model-killed").mkdir()
    (tmp_path / ".model-killed" / "config.json").write_text("half")
    with pytest.raises(OSError), model_to_install(tmp_path) as temporary:
        (temporary / "config.json").write_text("hal")
        raise OSError("no space left")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "old"
    with model_to_install(tmp_path) as temporary:
        (temporary / "config.json").write_text("new")
        (temporary / "model.safetensors").write_text("weights")
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    assert (tmp_path / "config.json").read_text() == "new"


def test_a_folder_of_chat_templates_is_replaced(tmp_path):
    for names in (["tool", "rag"], ["tool"]):
        with model_to_install(tmp_path) as temporary:
            (temporary / "additional_chat_templates").mkdir()
            for name in names:
                (temporary / "additional_chat_templates" / name).write_text(str(names))
    (template,) = (tmp_path / "additional_chat_templates").iterdir()
    assert template.name == "tool" and template.read_text() == "['tool']"


@pytest.mark.parametrize(
    "bf16, environment, message",
    [
        (False, {}, None),
        (True, {"ACCELERATE_MIXED_PRECISION": "no"}, None),
        (True, {"ACCELERATE_MIXED_PRECISION": "bf16"}, None),
        (False, {"ACCELERATE_USE_FSDP": "false", "ACCELERATE_USE_CPU": "true"}, None),
        (
            False,
            {"ACCELERATE_MIXED_PRECISION": "bf16"},
            "mixed precision bf16, but train.bf16 is false",
        ),
        (
            True,
            {"ACCELERATE_MIXED_PRECISION": "fp16"},
            "mixed precision fp16, but train.bf16 is true",
        ),
        (
            False,
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "enables DeepSpeed .*`accelerate launch --multi_gpu`",
        ),
        (False, {"ACCELERATE_USE_FSDP": "True"}, "enables FSDP"),
        (False, {"ACCELERATE_USE_MEGATRON_LM": "true"}, "enables Megatron-LM"),
        (False, {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}, "enables a parallelism config"),
    ],
)
def test_launchers(bf16, environment, message):
    if message is None:
        check_environment(bf16, environment)
    else:
        with pytest.raises(UserError, match=message):
            check_environment(bf16, environment)


def test_the_place_of_half_a_character_is_named():
    assert (
        text_problem("a \ud83d")
        == "character 2 is half of a surrogate pair (\\ud83d), which is not a character"
    )
    assert (
        text_problem("") == "must be a text that is not empty"
        and text_problem("", may_be_blank=True) is None
    )
    assert text_problem("\U0001f642 é") is None


@pytest.mark.parametrize("n, kept", [(3, 2), (2, 2), (1, 1), (0, 0), (-2, 0)])
def test_rows_that_fill_up_the_last_batch_have_no_labels(n, kept):
    labels = torch.ones(2, 3, dtype=torch.long)
    assert (without_repeated(labels, n) == 1).all(1).tolist() == [i < kept for i in range(2)]
    assert (labels == 1).all()


def test_a_metric_that_ties_is_named():
    note = tie_note("rougeLsum", [0.0, 0.0, 0.0], "the first one")
    assert note is not None and "dev rougeLsum is 0 at all 3 evaluations" in note
    assert tie_note("rougeLsum", [0.0, 1.0, 0.0], "the first one") is None
    assert tie_note("rougeLsum", [0.0], "the first one") is None
