"""Tokens that an encoder-decoder's decoder always starts with, such as NLLB's target language.

A multilingual translation model writes its target language as the first token of the response, and
decoding forces that token. A forced token is no decision of the policy, so it belongs to the
prompt: with the prefix l_1 .. l_n and the decoder's start token s,

    log pi(a_t | x, y_<t)    is computed from the decoder input    s l_1 .. l_n y_1 .. y_(t-1)

and neither log-probabilities, KL and entropy nor rewards and advantages have a place for l_i.

The prefix is stored in the model's config, under `CONFIG_KEY`, so that later stages read it.
"""

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.models.chat import special_ids

CONFIG_KEY = "decoder_prefix"


def decoder_prefix_ids(tokenizer, prefix: str) -> list[int]:
    """The ids of the prefix, tokens that are separated by spaces; [] for an empty prefix.

    Raises:
      UserError: a part of the prefix is not a token of the vocabulary, or ends or pads texts.
    """
    vocabulary = tokenizer.get_vocab()
    ids = []
    for token in prefix.split():
        if token not in vocabulary:
            raise UserError(
                f"decoder_prefix has {shorten(repr(token), 40)}, which is not a token of the"
                " policy's tokenizer: give token texts separated by spaces, such as `deu_Latn`"
                f" (NLLB) or `__de__` (M2M100){_languages(tokenizer)}"
            )
        if token in (tokenizer.eos_token, tokenizer.pad_token):
            raise UserError(
                f"decoder_prefix has {shorten(repr(token), 40)}, the token with which texts end or"
                " are padded: leave it out. The decoder's own start token is added in any case"
            )
        ids.append(vocabulary[token])
    return ids


def _languages(tokenizer) -> str:
    """Examples of special tokens, for the message."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer)))
    examples = [token for token in special if token not in (tokenizer.eos_token, "<unk>")]
    return f". Special tokens are {shorten(', '.join(examples), 120)}" if examples else ""


def stored_prefix(config) -> str:
    """The prefix in a model's config; "" if there is none.

    Raises:
      UserError: it is not a text.
    """
    prefix = getattr(config, CONFIG_KEY, None)
    if prefix is None:
        return ""
    if not isinstance(prefix, str):
        raise UserError(
            f"{CONFIG_KEY} in the model's config.json is {shorten(repr(prefix), 40)}, which is not"
            " a text: correct it, or set decoder_prefix"
        )
    return prefix
