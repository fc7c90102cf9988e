"""`fgrlhf rm segment|sequence [TASK] config.yml`: train a reward model of either kind."""

import sys
from collections.abc import Sequence

from fgrlhf.errors import UserError
from reward_modeling import run_fg_rm, run_pref_rm

PROGRAMS = {"segment": run_fg_rm, "sequence": run_pref_rm}
USAGE = """usage: fgrlhf rm KIND [TASK] config.yml [section.key=value ...]

  segment    a label for every segment, from files of words and tags
  sequence   one score for the whole response, from comparisons

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
        raise UserError(f"`{kind}` is not a kind of reward model: use segment or sequence")
    PROGRAMS[kind].main(rest)
