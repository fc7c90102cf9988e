"""Holistic RLHF: `python -m tasks.qa_feedback.training.train_baseline baseline_config.yml
[key=value ...]`.

Holistic and fine-grained runs differ by their YAML alone; both are this one line.
"""

from fgrlhf.errors import run_main
from tasks.qa_feedback.training.train_rl import main

if __name__ == "__main__":
    run_main(main)
