import random

import numpy as np
import pytest
import torch

from fgrlhf import utils
from fgrlhf.utils import UserError, derive_seed, masked_mean, masked_sum, masked_var, run_main, seeded, whiten

X = torch.tensor([[1.0, 2.0, 100.0], [3.0, 4.0, 6.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])  # 1 2 3 4 6: mean 3.2, variance 2.96


def test_masked_moments_by_hand():
    assert masked_sum(X, MASK) == 16 and masked_mean(X, MASK) == pytest.approx(3.2)
    assert masked_var(X, MASK) == pytest.approx(2.96)
    assert masked_mean(X, torch.zeros_like(MASK)) == 0
    poisoned = torch.where(MASK.bool(), X, torch.nan)
    assert masked_mean(poisoned, MASK) == pytest.approx(3.2) and masked_var(poisoned, MASK) == pytest.approx(
        2.96
    )


def test_whitening_by_hand():
    std = 2.96**0.5
    white = whiten(X, MASK)
    assert white[0, 2] == 0 and white[0, 0] == pytest.approx(-2.2 / std, abs=1e-6)
    assert masked_mean(white, MASK) == pytest.approx(0, abs=1e-6) and masked_var(
        white, MASK
    ) == pytest.approx(1, abs=1e-5)
    kept = whiten(X, MASK, shift_mean=False)
    assert kept[0, 0] == pytest.approx(1 / std, abs=1e-6) and kept[0, 2] == 0
    assert masked_var(kept, MASK) == pytest.approx(1, abs=1e-5)
    published = whiten(X, MASK, divide_by="sqrt_std")
    assert published[0, 0] == pytest.approx(-2.2 / std**0.5, abs=1e-5)
    assert published[0, 2] == pytest.approx(96.8 / std**0.5, abs=1e-3)  # padding is not masked: deviation D2
    assert whiten(X, MASK, shift_mean=False, divide_by="sqrt_std")[0, 0] == pytest.approx(
        3.2 - 2.2 / std**0.5, abs=1e-5
    )


def test_whitened_rewards_pay_nothing_for_length():
    """Deviation D15: a token without reward stays one. As published every token gets mean (1 - 1/sqrt(std))."""
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]), torch.ones(2, 4)
    mask[1, 2:] = 0
    white = whiten(rewards, mask, shift_mean=False)
    assert white[0, 0] == white[0, 3] == white[1, 0] == 0 and white[0, 2] == white[1, 1] > 0
    mean, std = 1 / 3, (2 / 9) ** 0.5
    published = whiten(rewards, mask, shift_mean=False, divide_by="sqrt_std")
    assert published[0, 0] == pytest.approx(mean * (1 - std**-0.5), abs=1e-6)


def test_whitening_ignores_affine_changes_and_padding():
    torch.testing.assert_close(whiten(5 * X - 3, MASK), whiten(X, MASK))
    poisoned = torch.where(MASK.bool(), X, torch.inf)
    torch.testing.assert_close(whiten(poisoned, MASK), whiten(X, MASK))
    assert (
        whiten(torch.full((2, 2), 7.0), torch.ones(2, 2)).abs().max() == 0
    )  # no spread: no signal, no division by zero
    assert torch.equal(whiten(torch.full((2, 2), 7.0), torch.ones(2, 2), shift_mean=False), torch.full((2, 2), 7.0))


def test_seeds_are_pure_functions_of_their_parts():
    assert derive_seed(42, "rollout", 3) == 8386216188706336444  # a change would break resuming older runs
    parts = [(0,), (1,), ("0",), (0, 0), (0, "a"), ("a", 0), ("a0",), (10, 1), (1, 0, 1)]
    seeds = {derive_seed(*p) for p in parts}
    assert len(seeds) == len(parts) and all(0 <= s < 2**63 for s in seeds)


def test_seeded_sets_every_generator():
    def draw():
        with seeded(1, "x"):
            return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw() == draw()
    with seeded(2, "x"):
        assert random.random() != draw()[0]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.json"
    utils.write_json(path, {"text": "é\n"})
    assert utils.read_json(path) == {"text": "é\n"} and "é" in path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        utils.write_json(path, {"text": object()})
    with pytest.raises(UnicodeEncodeError):
        utils.write_text(path, "half \ud800")
    assert utils.read_json(path) == {"text": "é\n"} and [p.name for p in path.parent.iterdir()] == ["a.json"]
    utils.write_jsonl(path, [{"a": 1}, {"a": "\u2028 x"}])
    assert utils.read_jsonl(path) == [{"a": 1}, {"a": "\u2028 x"}]


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "b.jsonl"
    for read in (utils.read_json, utils.read_jsonl):
        with pytest.raises(UserError, match="b.jsonl does not exist"):
            read(path)
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(UserError, match="b.jsonl, line 3"):
        utils.read_jsonl(path)
    with pytest.raises(UserError, match="b.jsonl is not valid JSON"):
        utils.read_json(path)


def test_a_users_mistake_prints_one_message_and_exits_with_2(capsys):
    def main():
        raise UserError("the file x is missing: run setup first")

    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: the file x is missing: run setup first\n"
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)  # a fault of ours keeps its traceback
