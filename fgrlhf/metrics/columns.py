"""The last parts of the names of columns, in rows of an evaluation and in its summary."""

CORPUS = "/corpus"  # of a summary: the value of all responses together
PROMPT = "/prompt"  # of a summary: the mean over prompts of the value of their responses together
TOKENIZER = "/tokenizer"  # `<metric>/tokenizer` of a row: the name of what finds the words

# A reward that classifies segments has two counts in a row, `<reward>/error_free` and
# `<reward>/segments`. Their ratio over all responses is `<reward>/ratio` in the summary.
ERROR_FREE = "/error_free"
TOTAL = "/segments"
RATIO = "/ratio"

# `<column>/not_applicable` in the summary: the share of responses for which a column is None
NOT_APPLICABLE = "/not_applicable"

# The last part of a column's name -> how its values are reduced over the responses to a prompt.
MAX = "max"
ANY = "any"
