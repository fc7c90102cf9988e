"""Display settings for reports: names, order, colours, and the parts of a prompt."""

from fgrlhf.report.display import Display, PromptPart, Spread, whole_prompt

# Gains in gold of `make demo` with different seeds, on two sets of instructions.
GAINS = {
    "fine_grained_vs_sft": (0.189, 0.188, 0.171, 0.193, 0.213),
    "holistic_vs_sft": (0.047, 0.041, 0.069, 0.115, 0.062),
    "fine_grained_vs_holistic": (0.142, 0.146, 0.102, 0.078, 0.151),
}


def spread(pair: str) -> Spread:
    """The spread of a difference in gold at mini scale, in the toy language."""
    return Spread(
        pair=pair,
        metric="oracle/gold",
        gains=GAINS[pair],
        over="seeds and processors",
        source="tasks/qa_feedback/RESULTS.md",
        scale="mini",
        data="mini world, 400 test prompts",
    )


def prompt_parts(prompt: str) -> list[PromptPart]:
    """The question of `question: ... context: wikipage: ...`, and its passages."""
    if not prompt.startswith("question:"):
        return whole_prompt(prompt)
    question, _, context = prompt.removeprefix("question:").partition(" context:")
    passages = [_passage(text) for text in context.split("wikipage:") if text.strip()]
    return [("question", question.strip()), *(("passages", text) for text in passages)]


def _passage(text: str) -> str:
    """`TITLE text: SENTENCES |` as its title, a colon and its sentences."""
    title, _, sentences = text.strip().removesuffix("|").partition(" text:")
    return ": ".join(part.strip() for part in (title, sentences) if part.strip())


DISPLAY = Display(
    names={
        "sft": "SFT",
        "sft_full": "SFT-full",
        "holistic": "Holistic RLHF",
        "baseline": "Holistic RLHF",
        "dpo": "DPO",
        "best_of_n": "Best of n",
        "sft_samples": "SFT, sampled",
        "fine_grained": "Fine-grained RLHF",
        "rel_rm": "Relevance",
        "fact_rm": "Factuality",
        "comp_rm": "Completeness",
        "baseline_rm": "Preference",
        "judge_rel_rm": "Relevance, judge",
        "judge_fact_rm": "Factuality, judge",
        "judge_comp_rm": "Completeness, judge",
        "judge_baseline_rm": "Preference, judge",
        "relevance_model": "relevance",
        "factuality_model": "factuality",
        "completeness_model": "completeness",
        "baseline_model": "preference",
    },
    metrics={"oracle/gold": "gold score", "kl": "KL from SFT"},
    definitions={
        "oracle/gold": (
            "how good an answer truly is, from 0 to 1: the F1 of its correct facts, judged by the"
            " world's own rules. No model is trained on it"
        ),
        "oracle/relevance": "true share of sub-sentences that are relevant, new and well-formed",
        "oracle/factuality": "true share of sentences that the passages support",
        "oracle/completeness": "true share of the needed facts that the answer has",
    },
    headline=("oracle/gold", "reward", "rougeLsum", "kl"),
    order=(
        *("sft", "sft_full", "holistic", "baseline", "dpo", "best_of_n", "fine_grained"),
        *("rel_rm", "fact_rm", "comp_rm", "baseline_rm"),
        *("judge_rel_rm", "judge_fact_rm", "judge_comp_rm", "judge_baseline_rm"),
    ),
    colours={"sft": 0, "holistic": 1, "baseline": 1, "fine_grained": 2},
    prompt_parts=prompt_parts,
    spreads=tuple(spread(pair) for pair in GAINS),
)
