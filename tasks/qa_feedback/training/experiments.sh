#!/usr/bin/env bash
# One row of the paper's tables: train it, then evaluate it on dev and test.
#   experiments.sh NAME [key=value ...]      NAME is one of ROWS in experiments.py. SCALE=mini runs the row in minutes;
#                                            VARIANT=published runs the RL rows with all published switches
#   experiments.sh plan [key=value ...]      steps, samples and GPU hours of every row, of what is there; nothing is trained
# Requires the SFT policy and the reward models (tasks/qa_feedback/README.md has the order).
source "$(dirname "$0")/../../../scripts/call.sh" python -m tasks.qa_feedback.training.experiments "$@"
