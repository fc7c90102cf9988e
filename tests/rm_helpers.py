"""Tiny reward models of every shape, and toy data they can learn.

A segment with many `red` is wrong.
"""

import itertools
import json
import random
from pathlib import Path

import tiny
import torch
from transformers import LongformerConfig, LongformerModel

from fgrlhf.reward_models.prefix import Prefix
from fgrlhf.text_types import Prompt

OTHERS = ["a", "blue", "green", "cat", "dog", "bird", "sees", "likes", "and"]
SHAPES = ("encoder", "seq2seq", "causal")
LABELS = ("NF-ERR", "O")


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def prefix(text: str, context: str = "", mark: str = "answer:") -> Prefix:
    """The prefix `text`, then `context`, which may be cut."""
    core, more = words(text), words(context)
    ranges = (range(len(core), len(core) + len(more)),) if more else ()
    return Prefix((*core, *more), ranges, words(mark))


def prefix_fn(prompt: Prompt, with_context: bool) -> Prefix:
    context = f"context: {prompt.meta['context']}" if with_context else ""
    return prefix(f"question: {prompt.text}", context)


def prompt(text: str = "the cat", context: str = "wikipage: one text: two three") -> Prompt:
    return Prompt("0", text, meta={"context": context})


def longformer_config(vocabulary: int, **changes) -> LongformerConfig:
    return LongformerConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_window=8,
        max_position_embeddings=1026,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        sep_token_id=1,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **changes,
    )


def start(folder: Path, shape: str, kind: str = "word") -> Path:
    """A random checkpoint to train a reward model of `shape` from."""
    path = folder / f"start-{shape}"
    if shape == "encoder":
        torch.manual_seed(0)
        tokenizer = tiny.tokenizer(kind)
        LongformerModel(longformer_config(len(tokenizer))).save_pretrained(path)
        tokenizer.save_pretrained(path)
    else:
        {"seq2seq": tiny.t5, "causal": tiny.gpt2}[shape](kind).save(path)
    return path


def segment(rng: random.Random, wrong: bool) -> list[str]:
    return (
        rng.sample(["red"] * 3 + rng.choices(OTHERS, k=2), 5) if wrong else rng.choices(OTHERS, k=5)
    )


def segment_file(path: Path, n: int, seed: int, error: str = "NF-ERR") -> Path:
    """JSON lines of tagged answers, 2 to 4 segments each, a quarter of them not judged."""
    rng, lines = random.Random(seed), []
    for i in range(n):
        words, tags = ["question:", "the", rng.choice(OTHERS), "answer:"], ["Ignore"] * 4
        for _ in range(rng.randint(2, 4)):
            wrong = rng.random() < 0.4
            words += ["</s>", *segment(rng, wrong)]
            tags += ["Ignore" if rng.random() < 0.25 else error if wrong else "O", *["Ignore"] * 5]
        lines.append(json.dumps({"id": str(i), "text": words, "feedback_tags": tags}))
    path.write_text("\n".join(lines) + "\n")
    return path


def comparison_rows(n: int, seed: int, most: int = 5) -> list[dict]:
    """Rows of a pair file with 2 to `most` responses. The one with more `one` is better."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        counts = [rng.randint(0, 3) for _ in range(rng.randint(2, most))]
        responses = answers_with(counts, rng)
        places = range(len(counts))
        pairs = [[i, j] for i in places for j in places if counts[i] > counts[j]]
        rng.shuffle(pairs)
        row = {"prompt": f"the {rng.choice(OTHERS)}", "responses": responses}
        rows.append(row | {"preferences": pairs[: rng.randint(0, len(pairs))]})
    return rows


def answers_with(counts: list[int], rng: random.Random) -> list[str]:
    """Answers of six words, with so many times `one`."""
    return [" ".join(rng.sample(["one"] * c + rng.choices(OTHERS, k=6 - c), 6)) for c in counts]


def pair_rows(n: int, seed: int) -> list[dict]:
    """Rows of a qa-feedback file in which the answer with more `one` is better."""
    rng, rows = random.Random(seed), []
    for _ in range(n):
        counts = [rng.randint(0, 3) for _ in range(4)]
        outputs = answers_with(counts, rng)
        preference = [
            0 if one == other else 1 if one > other else 2
            for one, other in itertools.combinations(counts, 2)
        ]
        asked = {"question": f"the {rng.choice(OTHERS)}"}
        asked["passages"] = [["a dog", "the dog sees a cat"]]
        answered = {f"prediction {i + 1}": text for i, text in enumerate(outputs)}
        rows.append({**asked, **answered, "preference": preference})
    return rows
