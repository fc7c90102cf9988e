"""The cuts of docs/real_models.md, from real prompts."""

import os
from pathlib import Path

import pytest

from fgrlhf.load import load_task
from fgrlhf.models.loading import load_tokenizer
from fgrlhf.policy import check_prompts_fit, load_policy
from fgrlhf.reward_models.inputs import RMInputs
from fgrlhf.reward_models.prefix import RMText


@pytest.fixture(scope="module")
def real_prompts():
    folder = os.environ.get("FGRLHF_QA_FEEDBACK")
    if not folder:
        pytest.skip("FGRLHF_QA_FEEDBACK is not set; set it to the folder of real qa-feedback rows")
    task = load_task("tasks.qa_feedback")
    prompts = []
    for split in ("train", "dev"):
        prompts += task.prompts(Path(folder) / f"{split}.json", split, 0)
    assert len(prompts) == 350
    return prompts


@pytest.mark.small_model
def test_a_real_prompt_is_cut_but_keeps_its_question(small_model, real_prompts):
    task = load_task("tasks.qa_feedback")
    policy = load_policy(small_model, max_input_len=1024, empty=True)
    assert check_prompts_fit(policy, real_prompts, task.core_text, "rows") == 24
    rows = policy.tokenize([prompt.text for prompt in real_prompts])["input_ids"]
    for prompt, ids in zip(real_prompts, rows):
        text = policy.tokenizer.decode(ids)
        assert prompt.meta["question"] in text
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    lengths = policy.prompt_lengths([prompt.text for prompt in real_prompts])
    assert (round(sum(lengths) / 350), max(lengths)) == (725, 1202)


@pytest.mark.small_model
@pytest.mark.parametrize("max_length, cut", [(1024, 84), (1536, 0)])
def test_a_real_reward_input_loses_only_passages(small_model, real_prompts, max_length, cut):
    task = load_task("tasks.qa_feedback")
    inputs = RMInputs(load_tokenizer(small_model), "causal", "segment", max_length)
    texts = []
    for prompt in real_prompts:
        answer = tuple(prompt.references[0].split())
        texts.append(RMText(task.rm_prefix(prompt, True), (answer,)))
    encoded = inputs.encode(texts)
    assert (inputs.cuts.contexts, inputs.cuts.responses, inputs.cuts.cores) == (cut, 0, 0)
    for text, item in zip(texts, encoded):
        assert inputs.tokenizer.decode(item.input_ids).endswith(" " + " ".join(text.segments[0]))
        assert item.positions == (item.length - 1,)
