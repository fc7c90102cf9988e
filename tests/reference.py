"""Expected values for the rows in tests/fixtures, computed independently of the tested code.

`write_expected` writes a folder of the same form as the golden values of the published code, but
uses none of them: segments are marked by hand in fixtures/segments.json (`|` where a sub-sentence
begins, `‖` where a sentence ends), and everything else follows the written rules by brute force.
The code is slow and simple on purpose.
"""

import json
import math
import re
from difflib import SequenceMatcher
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
ROWS = FIXTURES / "qa_feedback"
PAIRS = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
FACTUAL = ("Wrong-Grounding", "Unverifiable")


# ---- segments ------------------------------------------------------------------------------------


def unmarked(marked: str) -> dict:
    """Text and offsets of a marked text.

    Offsets are 0 and the sentences' ends, and the sub-sentences' starts and the text's length.
    """
    text, ends, starts = "", [0], []
    for character in marked:
        if character == "‖":
            ends.append(len(text))
        elif character == "|":
            starts.append(len(text))
        else:
            text += character
    return {"text": text, "sentence_offsets": ends, "subsentence_offsets": [*starts, len(text)]}


def marked_segments() -> list[dict]:
    return [
        unmarked(marked)
        for marked in json.loads((FIXTURES / "segments.json").read_text(encoding="utf-8"))
    ]


def plain_sentences(text: str) -> list[tuple[int, int]]:
    """[start, end) of the sentences in simple texts: `.`, `!` or `?` with white space ends one."""
    pieces = re.finditer(r"\S.*?[.!?](?=\s|$)|\S.*?$", text, re.DOTALL)
    return [(piece.start(), piece.start() + len(piece[0].rstrip())) for piece in pieces]


def plain_subsentences(text: str) -> list[str]:
    """The sub-sentences of a text.

    A break follows a word that ends in , ; ! ? if more than five words remain. A piece of fewer
    than five words joins its neighbour, and the first piece of a sentence runs on.
    """
    result = []
    for start, end in plain_sentences(text):
        words = text[start:end].split()
        breaks = [0]
        for i in range(1, len(words)):
            if words[i - 1][-1] in ",;!?" and i + 5 < len(words):
                if i - breaks[-1] >= 5:
                    breaks.append(i)
                elif breaks[-1] != 0:
                    breaks[-1] = i
        bounds = [*breaks, len(words)]
        result += [" ".join(words[first:stop]) for first, stop in zip(bounds, bounds[1:])]
    return result


# ---- relevance and factuality: words and tags ----------------------------------------------------


def pieces_of(text: str, level: str) -> list[tuple[int, int]]:
    """The hand-marked segments of a prediction as [start, end), without surrounding white space."""
    marks = next(example for example in marked_segments() if example["text"] == text)
    bounds = marks[f"{level}_offsets"]
    pieces = []
    for first, stop in zip(bounds, bounds[1:]):
        inside = [i for i in range(first, stop) if not text[i].isspace()]
        pieces.append((inside[0], inside[-1] + 1))
    return pieces


def segment_line(number: int, row: dict, level: str) -> str | None:
    """The line of NF-ERR_subsentence or F-ERR_sentence; None if the prediction is left out.

    `level` is `subsentence` for the first file and `sentence` for the second.
    """
    text = row["prediction 1"]
    words = ["question:", *row["question"].split()]
    if level == "sentence" and row["passages"]:
        words.append("context:")
        for title, *sentences in row["passages"]:
            words += ["wikipage:", *title.split(), "text:", *" ".join(sentences).split()]
    words.append("answer:")
    tags = ["Ignore"] * len(words)
    for first, stop in pieces_of(text, level):
        characters = set(range(first, stop))
        factual = non_factual = False
        for error in row["feedback"]["errors"]:
            touches = bool(characters & set(range(error["start"], error["end"])))
            is_long = len(text[error["start"] : error["end"]].split()) >= 5
            if touches and error["error type"] in FACTUAL:
                factual = True
            elif touches and is_long:
                non_factual = True
        if level == "subsentence":
            tag = "NF-ERR" if non_factual else "O"
        elif factual:
            tag = "F-ERR"
        else:
            tag = "Ignore" if non_factual else "O"
        inside = text[first:stop].split()
        words += ["</s>", *inside]
        tags += [tag, *["Ignore"] * len(inside)]
    if set(tags) == {"Ignore"}:
        return None
    return json.dumps({"id": str(number), "text": words, "feedback_tags": tags})


# ---- completeness --------------------------------------------------------------------------------


def similarity(piece: str, sentence: str) -> float:
    """1 if the sentence contains the piece, else the best quick ratio with a word n-gram."""
    if piece in sentence:
        return 1.0
    n = len(piece.split())
    size = n + int(0.05 * n)
    words = sentence.split()
    while len(words) <= size:
        words.append("#")
    grams = [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]
    return max(SequenceMatcher(None, gram, piece).quick_ratio() for gram in grams)


def matches(text: str, passages: list[list[str]]) -> list[tuple[str, tuple[int, int]]]:
    """The sub-sentences that match a passage sentence, as (passage, sentence) counted from 1."""
    result = []
    for piece in plain_subsentences(" ".join(text.split())):
        best, where = 0.0, None
        for p, (_, *sentences) in enumerate(passages, 1):
            for s, sentence in enumerate(sentences, 1):
                value = similarity(piece, " ".join(sentence.split()))
                if value > best:
                    best, where = value, (p, s)
        if best >= 0.85:
            result.append((piece, where))
    return result


def completeness(row: dict) -> list[int] | None:
    """The six preferences by coverage; None if no information is needed."""
    minor = set()
    for info in row["feedback"]["missing-info"]:
        if info["error type"] == "Missing-Minor-Auxiliary":
            minor |= {(info["passage_id"], sentence) for sentence in info["sentence_id"]}
    first = " ".join(row["prediction 1"].split()).lower()
    needed = set()
    for piece, where in matches(row["feedback"]["corrected-prediction"], row["passages"]):
        if where in minor and piece.lower() not in first:
            needed.discard(where)
        else:
            needed.add(where)
    if not needed:
        return None
    scores = {}
    for i in (1, 2, 3, 4):
        told = {where for _, where in matches(row[f"prediction {i}"], row["passages"])}
        scores[i] = len(told & needed) / len(needed)
    return [(scores[a] > scores[b]) + 2 * (scores[a] < scores[b]) for a, b in PAIRS]


# ---- PPO in float64 ------------------------------------------------------------------------------

PPO_CASES = [
    {  # two answers of three tokens and one token, not whitened
        "lengths": [3, 1],
        "whiten_rewards": False,
        "lam": 0.95,
        "gamma": 1.0,
        "kl_coef": 0.3,
        "cliprange": 0.2,
        "cliprange_value": 0.2,
        "pg_coef": 1.0,
        "vf_coef": 1.0,
        "logprobs": [[-1.0, -0.5, -2.0], [-0.25]],
        "ref_logprobs": [[-1.5, -0.25, -2.0], [-1.0]],
        "values": [[0.5, 0.25, -0.5], [1.0]],
        "raw_rewards": [[0.3, 0.0, -0.5], [0.25]],
        "new_logprobs": [[-0.7, -0.9, -2.05], [-0.3]],
        "new_values": [[0.1, 0.6, -0.45], [0.7]],
    },
    {  # three answers, whitened, discounted, different coefficients
        "lengths": [2, 4, 3],
        "whiten_rewards": True,
        "lam": 0.9,
        "gamma": 0.8,
        "kl_coef": 0.1,
        "cliprange": 0.1,
        "cliprange_value": 0.5,
        "pg_coef": 0.7,
        "vf_coef": 1.3,
        "logprobs": [[-0.1, -3.0], [-0.6, -1.2, -0.3, -0.9], [-2.2, -0.4, -1.1]],
        "ref_logprobs": [[-0.2, -2.5], [-0.6, -1.0, -0.8, -0.7], [-1.9, -0.4, -1.6]],
        "values": [[0.2, -0.3], [0.9, 0.4, 0.1, 0.6], [-0.8, 0.0, 0.35]],
        "raw_rewards": [[0.0, 1.0], [0.3, -0.3, 0.3, 2.0], [-0.3, 0.0, -1.5]],
        "new_logprobs": [[-0.15, -2.6], [-0.9, -1.1, -0.35, -0.4], [-2.0, -0.8, -1.0]],
        "new_values": [[1.0, -0.2], [0.2, 0.5, 0.9, 0.55], [-0.1, 0.1, 0.3]],
    },
    {  # one long and one short answer: the padding's whitened values have a large effect
        "lengths": [5, 1],
        "whiten_rewards": True,
        "lam": 0.99,
        "gamma": 1.0,
        "kl_coef": 0.2,
        "cliprange": 0.2,
        "cliprange_value": 0.2,
        "pg_coef": 1.0,
        "vf_coef": 0.5,
        "logprobs": [[-0.5, -0.5, -1.5, -0.75, -0.1], [-1.0]],
        "ref_logprobs": [[-0.4, -0.9, -1.5, -0.5, -0.2], [-0.6]],
        "values": [[0.0, 0.1, 0.2, 0.3, 0.4], [-1.0]],
        "raw_rewards": [[0.0, 0.5, 0.0, -0.5, 1.5], [-2.0]],
        "new_logprobs": [[-0.45, -0.8, -1.2, -0.75, -0.05], [-1.4]],
        "new_values": [[0.3, 0.1, -0.3, 0.25, 0.9], [-0.9]],
    },
]


def padded(rows: list[list[float]], length: int) -> list[list[float]]:
    return [[*row, *[0.0] * (length - len(row))] for row in rows]


def masked_mean(rows: list[list[float]], lengths: list[int]) -> float:
    """The mean over the real tokens of all rows."""
    real = [value for row, length in zip(rows, lengths) for value in row[:length]]
    return sum(real) / len(real)


def whitened(
    rows: list[list[float]], lengths: list[int], keep_mean: bool, published: bool
) -> list[list[float]]:
    """Whitened values, by the library's or the published arithmetic.

    Ours: divided by the standard deviation, the mean subtracted unless it is kept, 0 on padding.
    Published: the mean always subtracted, divided by the root of the standard deviation, the mean
    added again, padding included.
    """
    mean = masked_mean(rows, lengths)
    std = math.sqrt(masked_mean([[(value - mean) ** 2 for value in row] for row in rows], lengths))
    result = []
    for row, length in zip(rows, lengths):
        line = []
        for t, value in enumerate(row):
            if published:
                line.append((value - mean) / math.sqrt(std) + (mean if keep_mean else 0.0))
            elif t < length:
                line.append((value if keep_mean else value - mean) / std)
            else:
                line.append(0.0)
        result.append(line)
    return result


def ppo_expected(case: dict, published: bool) -> dict:
    """KL, penalised rewards, whitened advantages, returns and losses of a case, step by step."""
    lengths, longest = case["lengths"], max(case["lengths"])
    names = ("logprobs", "ref_logprobs", "values", "raw_rewards", "new_logprobs", "new_values")
    logprobs, ref_logprobs, values, raw, new_logprobs, new_values = (
        padded(case[name], longest) for name in names
    )
    count = range(len(lengths))
    kl = [[logprobs[b][t] - ref_logprobs[b][t] for t in range(longest)] for b in count]
    penalized = [[raw[b][t] - case["kl_coef"] * kl[b][t] for t in range(longest)] for b in count]
    rewards = penalized
    if case["whiten_rewards"]:
        rewards = whitened(penalized, lengths, keep_mean=True, published=published)
    advantages = [[0.0] * longest for _ in count]
    returns = [[0.0] * longest for _ in count]
    for b in count:
        # the published sum starts at the end of the longest answer
        last = longest if published else lengths[b]
        next_value = next_advantage = 0.0
        for t in reversed(range(last)):
            delta = rewards[b][t] + case["gamma"] * next_value - values[b][t]
            next_advantage = delta + case["gamma"] * case["lam"] * next_advantage
            next_value = values[b][t]
            advantages[b][t] = next_advantage
            returns[b][t] = next_advantage + values[b][t]
    white = whitened(advantages, lengths, keep_mean=False, published=published)
    policy_losses, value_losses = [], []
    for b in count:
        for t in range(lengths[b]):
            ratio = math.exp(new_logprobs[b][t] - logprobs[b][t])
            bounded = min(max(ratio, 1 - case["cliprange"]), 1 + case["cliprange"])
            policy_losses.append(max(-white[b][t] * ratio, -white[b][t] * bounded))
            change = new_values[b][t] - values[b][t]
            near = values[b][t] + min(
                max(change, -case["cliprange_value"]), case["cliprange_value"]
            )
            value_losses.append(
                0.5 * max((new_values[b][t] - returns[b][t]) ** 2, (near - returns[b][t]) ** 2)
            )
    policy_loss, value_loss = (
        sum(policy_losses) / len(policy_losses),
        sum(value_losses) / len(value_losses),
    )
    return {
        "kl": kl,
        "penalized": penalized,
        "whitened_advantages": white,
        "returns": returns,
        "loss_policy": policy_loss,
        "loss_value": value_loss,
        "loss_total": case["pg_coef"] * policy_loss + case["vf_coef"] * value_loss,
    }


def ppo_case(case: dict) -> dict:
    """A case in the form of ppo_numbers.json: padded tensors, a mask, the published results."""
    longest = max(case["lengths"])
    tensors = {
        name: padded(case[name], longest)
        for name in ("logprobs", "ref_logprobs", "values", "new_logprobs", "new_values")
    }
    mask = [[1] * length + [0] * (longest - length) for length in case["lengths"]]
    return {**case, **tensors, "mask": mask, "expect": ppo_expected(case, published=True)}


# ---- the folder ----------------------------------------------------------------------------------


def write_expected(folder: Path) -> Path:
    """Write segments.json, ppo_numbers.json and the reward-model files of the fixture rows."""
    (folder / "segments.json").write_text(json.dumps(marked_segments()))
    (folder / "ppo_numbers.json").write_text(
        json.dumps({"cases": [ppo_case(case) for case in PPO_CASES]})
    )
    for name in ("NF-ERR_subsentence", "F-ERR_sentence", "COMP_sequence"):
        (folder / name).mkdir()
    for split in ("train", "dev"):
        rows = json.loads((ROWS / f"{split}_feedback.json").read_text())
        for name, level in (("NF-ERR_subsentence", "subsentence"), ("F-ERR_sentence", "sentence")):
            lines = [segment_line(number, row, level) for number, row in enumerate(rows)]
            (folder / name / f"{split}.json").write_text(
                "".join(f"{line}\n" for line in lines if line)
            )
        preferences = [
            {"question": row["question"], "preference": completeness(row)} for row in rows
        ]
        kept = [row for row in preferences if row["preference"] is not None]
        (folder / "COMP_sequence" / f"{split}_preferences.json").write_text(json.dumps(kept))
    return folder
