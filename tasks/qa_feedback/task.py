"""Long-form question answering with fine-grained feedback (Wu et al. 2023). PLACEHOLDER."""

from fgrlhf.task import Task
from tasks.qa_feedback.feedback import rm_prefix, rm_prefix_of_words
from tasks.qa_feedback.reward_modeling.pairs import read_pairs

TASK = Task(
    name="qa_feedback",
    rm_prefix=rm_prefix,
    rm_prefix_of_words=rm_prefix_of_words,
    rm_pairs=read_pairs,
)
