#!/usr/bin/env bash
# Expected: With --apply_chat_template, the log-likelihood of an answer is that of the answer's tokens
#           behind the rendered prompt.
# Happens:  A template such as ChatML ends with the line break that opens the model's turn. Blanks at
#           the end of a prompt are moved to the answer, so this line break is scored, too, as the
#           first token of each answer. It is also in `is_greedy`.
# Seen:     lm_eval 0.4.13, transformers 5.23.0, torch 2.13.0, 2026-11-30.
# Here:     The metric `perplexity` counts what the template writes before the answer with the prompt
#           (fgrlhf/metrics/perplexity.py).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
    "lm_eval==0.4.13" "transformers==5.23.0" "torch==2.13.0" "accelerate==1.15.0"

venv/bin/python - <<'PYTHON'
import sys
from importlib.metadata import version

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

print(f"lm_eval {version('lm_eval')}, transformers {version('transformers')}")
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
characters = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
characters.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<|im_end|>")
tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
tokenizer.pad_token = tokenizer.eos_token
tokenizer.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    initializer_range=0.3,
)
model = LlamaForCausalLM(config).eval()
harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
prompt = harness.apply_chat_template([{"role": "user", "content": "Name a prime."}])
answer = "Seven."
request = Instance("loglikelihood", {}, (prompt, answer), 0)
logged = harness.loglikelihood([request], disable_tqdm=True)[0][0]

before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
ids = before + tokenizer(answer, add_special_tokens=False)["input_ids"]
with torch.no_grad():
    logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
scores = [logprobs[i - 1, ids[i]].item() for i in range(1, len(ids))]
of_answer = sum(scores[len(before) - 1 :])
of_break = scores[len(before) - 2]
print(f"the prompt ends with {prompt[-10:]!r}")
print(f"lm_eval {logged:.4f}; tokens of the answer {of_answer:.4f}, line break {of_break:.4f}")
if abs(logged - of_answer) < 1e-3:
    sys.exit("changed: only the tokens of the answer are scored")
if abs(logged - of_answer - of_break) > 1e-3:
    sys.exit("changed: the log-likelihood is another one than of line break and answer")
PYTHON
