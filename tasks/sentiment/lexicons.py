"""Two scorers of sentiment, from -1 to 1, with word lists that different people rated.

VADER rewards; the pattern lexicon of TextBlob judges and is never rewarded. Both come from the
package index and read no prompt.
"""

from collections.abc import Sequence

from textblob.en.sentiments import PatternAnalyzer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from fgrlhf.text_types import Prompt


class Vader:
    """The compound score of VADER (Hutto & Gilbert 2014), 0 for a text without rated words.

    It is x / sqrt(x^2 + 15) of the sum x of the ratings of all words, corrected for negation,
    emphasis and punctuation.
    """

    def __init__(self):
        self.analyzer = SentimentIntensityAnalyzer()

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [self.analyzer.polarity_scores(text)["compound"] for text in texts]


class Pattern:
    """The polarity of TextBlob's pattern lexicon (De Smedt & Daelemans 2012).

    It is the mean over the rated words, corrected for negation and emphasis, 0 without rated words.
    """

    def __init__(self):
        self.analyzer = PatternAnalyzer()

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [self.analyzer.analyze(text).polarity for text in texts]
