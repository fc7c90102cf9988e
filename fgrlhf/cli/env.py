"""`fgrlhf env`: versions, devices and settings of this machine, for bug reports.

Usage:

    fgrlhf env            # plain lines
    fgrlhf env json=true
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from fgrlhf.cli.command_line import settings_from
from fgrlhf.configs.strict import StrictModel
from fgrlhf.kernels import choice
from fgrlhf.runs.runlog import commit_of_code, versions


class EnvSettings(StrictModel):
    json_output: bool = Field(
        default=False, alias="json", description="one JSON object instead of lines"
    )


def facts() -> dict[str, Any]:
    """The facts about this machine that affect results or their speed."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": versions(),
        "git_commit": commit_of_code(),
        "processor": choice.processor_name(),
        "cpu_threads": torch.get_num_threads(),
        "gpus": gpus,
        "bf16_on_gpu": bool(gpus) and torch.cuda.is_bf16_supported(),
        "kernels": choice.choices(),
        "python": sys.executable,
        "working_directory": str(Path.cwd()),
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "not set"),
    }


def main(argv: Sequence[str] | None = None) -> None:
    settings = settings_from(EnvSettings, argv, "usage: fgrlhf env [json=true]")
    machine_facts = facts()
    if settings.json_output:
        print(json.dumps(machine_facts, indent=2))
        return
    for name, value in machine_facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items()) or "none yet"
        elif isinstance(value, list):
            value = ", ".join(value) or "none"
        print(f"{name.replace('_', ' ') + ':':<20} {value}")
