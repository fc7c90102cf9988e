#!/usr/bin/env bash
# Expected: A weight that an optimiser changes between a forward pass and its backward pass is
#           noticed: backward raises, as after any change in place.
# Happens:  With fused=True the weight's version stays, so nothing is noticed. The gradient is that
#           of the changed weight, without a message. All copies keyed by the version are stale too.
# Seen:     torch 2.13.0 on a CPU, 2026-11-29.
# Here:     Copies of weights in bf16 are forgotten after each step of any optimiser, whatever the
#           version says (`_watch_optimizers`, fgrlhf/kernels/copies.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" "numpy"

venv/bin/python <<'PYTHON'
import sys
from importlib.metadata import version

import torch

print(f"torch {version('torch')}")


def backward_after_a_step(fused: bool) -> float | None:
    """The gradient of w^2 at w = 3 if the optimiser steps before backward; None: it raises."""
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    loss = (weight * weight).sum()
    weight.grad = torch.tensor([2.0])
    optimizer.step()  # w = 1
    weight.grad = None
    try:
        loss.backward()
    except RuntimeError:
        return None
    return weight.grad.item()


ordinary, fused = backward_after_a_step(False), backward_after_a_step(True)
print(f"ordinary optimiser: {'backward raises' if ordinary is None else ordinary}")
print(f"fused optimiser: the gradient at w = 3 is {fused}, right is 6")
if ordinary is not None or fused != 2.0:
    sys.exit("changed: a step of a fused optimiser is noticed, or one of an ordinary one is not")
PYTHON
