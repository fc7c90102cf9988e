"""Every config in the folders of the tasks is valid for its program."""

from pathlib import Path

import pytest

from fgrlhf.configs.strict import StrictModel, load_config
from fgrlhf.configs.yaml_files import read_config
from fgrlhf.load import load_task
from fgrlhf.runs.dpo_config import DPOConfig
from fgrlhf.task_config import rl_config
from reward_modeling.run_fg_rm import SegmentRMConfig
from reward_modeling.run_pref_rm import PreferenceRMConfig
from sft.config import SFTConfig

TASKS = Path(__file__).parents[1] / "tasks"
# `compare_config.yml` has the settings of several runs (fgrlhf compare)
PATHS = [path for path in sorted(TASKS.rglob("*_config.yml")) if "compare" not in path.name]


def config_class(path: Path) -> type[StrictModel]:
    if path.stem.endswith(("sft_config", "pretrain_config")):
        return SFTConfig
    if path.stem.endswith("dpo_config"):
        return DPOConfig
    if path.parent.name == "reward_modeling":
        return SegmentRMConfig if "labels" in read_config(path) else PreferenceRMConfig
    return rl_config(load_task(path.relative_to(TASKS).parts[0]))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(TASKS)))
def test_a_shipped_config_is_valid_and_writes_into_the_output_folder(path, monkeypatch):
    for name in ("OUTPUT_DIR", "DATA_DIR", "FGRLHF_SMALL_MODEL"):
        monkeypatch.setenv(name, f"my/{name.lower()}")
    config = load_config(config_class(path), path)
    assert config.logging.save_dir == f"my/output_dir/{Path(config.logging.save_dir).name}"
