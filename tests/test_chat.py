import json

import pytest
import tiny
import torch

from fgrlhf.base.errors import UserError
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.chat import load_chat_template
from fgrlhf.policy import load_policy, load_value

USER, ASSISTANT, END, BOS = 4, 5, 6, 3


def tokens(policy, text):
    ids_BP, mask_BP = policy.encode([text])
    return policy.tokenizer.convert_ids_to_tokens(
        [i for i, m in zip(ids_BP[0].tolist(), mask_BP[0].tolist()) if m]
    )


def test_a_prompt_is_the_users_turn_with_one_bos_token():
    policy = tiny.chat()
    turn = ["<s>", "<|user|>", "▁the", "▁red", "▁cat", "<|end|>", "<|assistant|>"]
    assert tokens(policy, "the red cat") == turn
    plain = tiny.chat(chat_template=False)
    assert tokens(plain, "the red cat") == ["<s>", "▁the", "▁red", "▁cat"]
    ids_BP, mask_BP = policy.encode(["the red cat", "dog"])
    assert mask_BP.tolist() == [[1] * 7, [0, 0] + [1] * 5] and ids_BP[1, 2] == BOS


def test_a_long_prompt_loses_its_end_but_never_its_template():
    policy = tiny.chat(max_input_len=6)
    cut = ["<s>", "<|user|>", "▁a", "▁dog", "<|end|>", "<|assistant|>"]
    assert tokens(policy, "a dog likes the bird sees") == cut
    assert tokens(policy, "") == ["<s>", "<|user|>", "<|end|>", "<|assistant|>"]


def test_the_end_of_the_turn_ends_a_response():
    policy, plain = tiny.chat().eval(), tiny.chat(chat_template=False).eval()
    assert policy.eos_ids == [1, END] and plain.eos_ids == [1]
    output = policy.model.get_output_embeddings()
    bias = torch.zeros(output.out_features)
    bias[END] = 1e4  # the model writes only this token
    output.bias = torch.nn.Parameter(bias)
    response = policy.generate(*policy.encode(["cat"]), Sampling(5, do_sample=False))
    assert response.ids_BT.tolist() == [[END]] and response.mask_BT.tolist() == [[1]]
    assert policy.tokenizer.decode(response.ids_BT[0], skip_special_tokens=True) == ""
    assert plain.generate(*plain.encode(["cat"]), Sampling(5, do_sample=False)).mask_BT.sum() == 5
    policy.model.generation_config.eos_token_id = [END, 1]
    assert policy.eos_ids == [END, 1]


def test_a_saved_policy_keeps_or_loses_its_template(tmp_path):
    tiny.chat().save(tmp_path / "chat")
    assert load_policy(tmp_path / "chat").chat is not None
    load_policy(tmp_path / "chat", chat_template=False).save(tmp_path / "plain")
    plain = load_policy(tmp_path / "plain")
    assert plain.chat is None and plain.eos_ids == [1, END]  # the saved model ended turns with it
    message = "chat_template is true.*has no chat template.*leave the setting out"
    with pytest.raises(UserError, match=message):
        load_policy(tmp_path / "plain", chat_template=True)
    value = load_value(tmp_path / "chat", load_policy(tmp_path / "chat"))
    assert value.trunk.chat is None  # the critic reads the policy's token ids


def test_a_template_that_only_a_processor_reads_is_the_policys(tmp_path):
    """Folders of models with images, as transformers 4 saved them."""
    policy = tiny.chat()
    tiny.chat(chat_template=False).save(tmp_path)
    file = tmp_path / "chat_template.json"
    file.write_text(json.dumps({"chat_template": policy.tokenizer.chat_template}))
    assert tokens(load_policy(tmp_path), "the red cat") == tokens(policy, "the red cat")
    load_policy(tmp_path, chat_template=False).save(tmp_path / "plain")
    assert load_policy(tmp_path / "plain").chat is None
    file.write_text("{}")
    with pytest.raises(UserError, match="KeyError.*chat_template"):
        load_policy(tmp_path)


def test_a_template_must_leave_tokens_for_the_prompt():
    with pytest.raises(UserError, match="max_input_len is 4.*template alone takes 4 tokens"):
        tiny.chat(max_input_len=4)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",  # SecurityError
        "{{ messages[0].nothing.at_all }}",  # UndefinedError
        "{% for m in messages %}",  # TemplateSyntaxError
        "{{ raise_exception('only one turn') }}",
        "{{ 1 / 0 }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(10**12) %}{% endfor %}",
        12,
    ],
)
def test_a_template_that_fails_is_a_user_error(template):
    tokenizer = tiny.chat_tokenizer()
    tokenizer.chat_template = template
    message = "chat template of the policy's tokenizer fails .*chat_template=false"
    if template == 12:
        message = "chat template is 12, not a text"
    with pytest.raises(UserError, match=message):
        load_chat_template(tokenizer, None, 64)
    assert load_chat_template(tokenizer, False, 64) is None
