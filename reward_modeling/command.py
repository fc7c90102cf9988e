"""`fgrlhf rm segment|sequence [TASK] config.yml`: train a reward model; its files, its export."""

import importlib
import sys
from collections.abc import Sequence

from fgrlhf.base.errors import UserError, shorten

# kind -> its module with main(argv), which is imported if it is asked for
PROGRAMS = {
    "segment": "reward_modeling.run_fg_rm",
    "sequence": "reward_modeling.run_pref_rm",
    "span_files": "reward_modeling.span_files",
    "step_files": "reward_modeling.step_files",
    "linear": "fgrlhf.cli.linear_scorer",
    "export": "reward_modeling.export",
}
USAGE = """usage: fgrlhf rm KIND [TASK] config.yml [section.key=value ...]
       fgrlhf rm span_files|step_files TASK source=... output=... [key=value ...]
       fgrlhf rm linear texts=... output_dir=... [key=value ...]
       fgrlhf rm export FOLDER output_dir=...

  segment      a label for every segment, from files of words and tags
  sequence     one score for the whole response, from comparisons
  span_files   write a file for `segment` from responses with marked spans
  step_files   write a file for `segment` from solutions with judged steps
  linear       a linear scorer for every label of a file of texts; no network
  export       write a model of `sequence`, shape causal, as a classifier of transformers

TASK determines what the model reads before a response; the default is the prompt's text.
`fgrlhf rm KIND --help` lists the keys."""


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: the kind of reward model, then the arguments of its program."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    kind, *rest = arguments
    if kind not in PROGRAMS:
        raise UserError(
            f"`{shorten(kind)}` is not a kind of reward model: use segment, sequence or linear;"
            " span_files and step_files prepare a file, export writes one for other programs"
        )
    importlib.import_module(PROGRAMS[kind]).main(rest)
