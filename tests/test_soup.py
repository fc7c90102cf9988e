"""The average of policies' weights."""

import pytest
import tiny
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.cli import soup
from fgrlhf.policy import load_policy


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_weights_are_averaged_by_hand(kind, tmp_path, capsys):
    folders = []
    for seed in range(3):
        folders.append(str(tmp_path / str(seed)))
        tiny.policy(kind, seed=seed).save(folders[-1])
    out = tmp_path / "soup"
    soup.main([f"policies={folders}", "weights=[1, 2, 1]", f"output_dir={out}"])
    mixture = "0.25 {} + 0.5 {} + 0.25 {}".format(*folders)
    assert mixture in capsys.readouterr().out
    parts = [load_policy(folder).model.state_dict() for folder in folders]
    for name, tensor in load_policy(out).model.state_dict().items():
        a, b, c = (part[name] for part in parts)
        torch.testing.assert_close(tensor, a / 4 + b / 2 + c / 4)
    # one policy alone is itself
    soup.main([f"policies={folders[:2]}", "weights=[0, 3]", f"output_dir={tmp_path / 'one'}"])
    for name, tensor in load_policy(tmp_path / "one").model.state_dict().items():
        assert torch.equal(tensor, parts[1][name])


def test_policies_that_cannot_be_averaged_are_refused(tmp_path):
    a, b, words = tmp_path / "a", tmp_path / "b", tmp_path / "words"
    tiny.gpt2().save(a)
    tiny.policy("t5").save(b)
    tiny.gpt2("bpe").save(words)
    out = tmp_path / "out"

    def refused(*arguments, match):
        with pytest.raises(UserError, match=match):
            soup.main([*arguments, f"output_dir={out}"])
        assert not out.exists()

    refused(f"policies=[{a}, {b}]", match="differ in their")
    refused(f"policies=[{a}, {words}]", match="differ in their")
    refused(f"policies=[{a}]", match="policies")
    refused(f"policies=[{a}, {a}]", "weights=[1]", match="1 weights for 2 policies")
    refused(f"policies=[{a}, {a}]", "weights=[1, -1]", match="below 0")
    refused(f"policies=[{a}, {a}]", "weights=[0, 0]", match="all are 0")
    (tmp_path / "used").mkdir()
    with pytest.raises(UserError, match="exists"):
        soup.main([f"policies=[{a}, {a}]", f"output_dir={tmp_path / 'used'}"])
