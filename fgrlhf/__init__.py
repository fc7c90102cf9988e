"""Reinforcement learning from fine-grained human feedback."""

import sys

from fgrlhf.base.interrupts import end_at_interrupts

if sys.argv[0] == "-m":  # `python -m` imports the packages of the program first
    end_at_interrupts()
