"""Translation: marked errors with severities (MQM) as rewards."""

from fgrlhf.report.display import Display
from fgrlhf.task import Task
from tasks.translation.data.oracle import oracle_metrics
from tasks.translation.source import source_words

TASK = Task(
    name="translation",
    rm_prefix=source_words,
    metrics=oracle_metrics,
    display=Display(
        names={
            "sft": "SFT",
            "preference": "preferences",
            "scalar": "one scalar",
            "spans": "severity spans",
            "span_rm": "errors in the translation",
            "omission_rm": "omissions",
            "pref_rm": "preferences by MQM",
        },
        metrics={
            "oracle/mqm": "MQM score",
            "oracle/perfect": "translations without an error",
            "oracle/major": "major errors",
            "chrf": "chrF",
            "chrf/corpus": "chrF of the corpus",
            "bleu/corpus": "BLEU",
        },
        headline=("oracle/mqm", "oracle/perfect", "chrf/corpus", "bleu/corpus", "reward", "kl"),
        order=("sft", "preference", "scalar", "spans"),
        colours={"sft": 0, "preference": 1, "scalar": 2, "spans": 3},
    ),
)
