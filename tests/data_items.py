"""Hypothesis strategies for items of the row formats."""

from hypothesis import strategies as st

from fgrlhf.data.judgements import RESPONSE, SOURCE, JudgedResponse, Judgement
from fgrlhf.text_types import Prompt

TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12).filter(
    str.strip
)
META = st.dictionaries(
    st.sampled_from(["topic", "part", "n"]), st.one_of(st.integers(-9, 9), TEXTS), max_size=2
)
PROMPT = st.builds(Prompt, TEXTS, TEXTS, st.lists(TEXTS, max_size=2).map(tuple), META)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def spans(draw, text):
    """A span [start, end) of a text."""
    start = draw(st.integers(0, len(text) - 1))
    return start, draw(st.integers(start + 1, len(text)))


@st.composite
def judged_responses(draw):
    response = draw(TEXTS)
    source = draw(st.none() | TEXTS)
    judgements = []
    for _ in range(draw(st.integers(0, 3))):
        side = RESPONSE if source is None else draw(st.sampled_from([RESPONSE, SOURCE]))
        text = source if side == SOURCE else response
        start, end = draw(st.just((None, None)) | spans(text))
        label = draw(st.none() | TEXTS)
        score = draw(NUMBERS if label is None else st.none() | NUMBERS)
        others = {
            name: draw(st.none() | TEXTS)
            for name in ("severity", "annotator", "reason", "evidence", "origin")
        }
        aspect = draw(TEXTS)
        judgements.append(Judgement(aspect, label, start, end, score=score, side=side, **others))
    return JudgedResponse(draw(PROMPT), response, tuple(judgements), source)
