"""A reward from a server: `kind: reward_server`; fgrlhf/rewards/protocol.py has the protocol.

Every value is an answer of the pinned model. A query that fails for a transient reason is
repeated; any other fault, and a query that fails too often, stops the run.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fgrlhf.base.background import wait_for
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.reward_models.prefix import PrefixFn
from fgrlhf.rewards.protocol import PROTOCOL, Scores, read_scores, request_of
from fgrlhf.scorers.answer_cache import AnswerCache
from fgrlhf.scorers.service import (
    GivenUp,
    Refused,
    Service,
    TooLong,
    place_name,
    text_of,
)
from fgrlhf.text_types import Prompt

if TYPE_CHECKING:
    from fgrlhf.rewards.kinds import ServerReward


class RewardClient:
    """The reward of a server with the model `config.model_sha256`.

    All responses of a call go into one request, as far as `config.batch_size` allows. A reward
    model therefore forms the same batches as in the run's own process, and the values are equal bit
    for bit. For the same reason the cache has whole requests, not single responses.

    Args:
      prefix_fn: the words that a reward model reads before a response; a task's `rm_prefix`.
      pause: waits between attempts; tests replace it.
      wait: waits for an answer until its deadline; tests replace it.
    Raises:
      UserError: the server cannot be reached, has another model, or refuses the token.
    """

    remote = True  # `CombinedReward` does not wait for one answer before it asks for the next

    def __init__(
        self,
        config: "ServerReward",
        prefix_fn: PrefixFn,
        pause: Callable[[float], None] = time.sleep,
        wait: Callable[[threading.Event, float], bool] = wait_for,
    ):
        self.config = config
        self.prefix_fn = prefix_fn
        name = f"the reward server {config.url}"
        self.service = Service(config, name, _message_of, pause, wait)
        self.cache = None
        if config.cache is not None:
            self.cache = AnswerCache(config.cache, "scores", _is_list)
        self.check_model()

    def check_model(self) -> None:
        """Raise `UserError` unless the server answers and has the pinned model."""
        answer = self._answer("/v1/model", None)
        self._refuse_other_model(answer)

    def segment_scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Scores]:
        """The scores of each response: `AspectReward`.

        Raises:
          UserError: any fault of the server; the message names it.
        """
        results = []
        for start in range(0, len(texts), self.config.batch_size):
            stop = start + self.config.batch_size
            results += self._scores(prompts[start:stop], texts[start:stop])
        return results

    def _scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Scores]:
        request = request_of(self.config.model_sha256, self.prefix_fn, prompts, texts)
        key = request["request_id"]
        if self.cache is not None:
            self.cache.refresh()
            if key in self.cache.answers:
                return self._read(self.cache.answers[key], texts, str(self.cache.path))
        answer = self._answer("/v1/scores", json.dumps(request).encode("ascii"))
        self._refuse_other_model(answer)
        if answer.get("request_id") != key:
            raise self._fault(f"the scores of another request, {shorten(answer.get('request_id'))}")
        rows = answer.get("scores")
        scores = self._read(rows, texts, self.service.name)
        if self.cache is not None:
            self.cache.add(key, rows)
        return scores

    def _read(self, rows: Any, texts: Sequence[str], source: str) -> list[Scores]:
        try:
            return read_scores(rows, texts)
        except ValueError as error:
            raise self._fault(str(error), source) from None

    # ---- queries ----

    def _answer(self, path: str, body: bytes | None) -> dict[str, Any]:
        """The JSON object that the server answers with.

        Raises:
          UserError: it does not, or refuses the query.
        """
        service = self.service
        try:
            text = service.query(path, body, bytes)
        except Refused as refusal:
            raise UserError(service.without_token(self._refused(refusal))) from None
        except GivenUp as error:
            message = (
                f"{service.name} gave no answer in {error}. No reward was recorded for these"
                " responses. Check that it runs and can be reached (its terminal has the reason"
                " of an error), raise timeout_s if it is slow, then run the same command again"
            )
            raise UserError(service.without_token(message)) from None
        except TooLong as error:
            raise self._fault(f"too much: {error}") from None
        try:
            answer = parse_json(text.decode("utf-8"), unique_keys=True)
        except ValueError as error:
            raise self._fault(f"text that is not valid JSON ({shorten(error)})") from None
        if not isinstance(answer, dict):
            raise self._fault("JSON that is not an object")
        protocol = answer.get("protocol")
        if type(protocol) is not int or protocol != PROTOCOL:  # true and 1.0 equal 1
            raise self._fault(
                f"protocol {shorten(repr(protocol), 40)}, but this release has {PROTOCOL}"
            )
        return answer

    def _refuse_other_model(self, answer: dict[str, Any]) -> None:
        served = answer.get("model_sha256")
        if served != self.config.model_sha256:
            raise UserError(self._other_model(served))

    # ---- messages ----

    def _fault(self, fault: str, source: str | None = None) -> UserError:
        """The error for an answer that must not be used."""
        way_out = (
            "Check that `url` is the address of `fgrlhf reward-serve` and that no proxy answers in"
            " its place"
        )
        if source is None:
            source = self.service.name
        elif source != self.service.name:
            way_out = "Remove that file"
        message = f"{source} gave {shorten(fault, 300)}. No reward was used. {way_out}"
        return UserError(self.service.without_token(message))

    def _other_model(self, served: Any) -> str:
        return (
            f"{self.service.name} has the model {shorten(repr(served), 80)}, but the run is pinned"
            f" to model_sha256: {self.config.model_sha256}. Serve that model, or start another run"
            " with the new hash: rewards of two models must not be mixed"
        )

    def _refused(self, refusal: Refused) -> str:
        message = _message_of(refusal.body)
        config = self.config
        if refusal.code in (401, 403):
            place = place_name(config.token_from)
            return (
                f"{self.service.name} refuses the token in {place}: {refusal.code} {message}. Use"
                " the token of the server (its token_from)"
            )
        if refusal.code == 409:
            return self._other_model(_field(refusal.body, "model_sha256"))
        way_out = "Check `url`, and that the server is of the same release"
        if refusal.code == 413:
            way_out = "Lower batch_size, or raise the server's max_batch or max_body_mb"
        elif refusal.code == 422:
            way_out = "Its reward cannot score these responses: check its model and settings"
        return f"{self.service.name} refuses the query: {refusal.code} {message}. {way_out}"


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _message_of(body: bytes) -> str:
    """The reason of a refusal: {"error": reason}, or the body itself."""
    reason = _field(body, "error")
    return shorten(reason) if isinstance(reason, str) else text_of(body)


def _field(body: bytes, name: str) -> Any:
    """A field of a JSON object; None if there is none."""
    try:
        tree = parse_json(body.decode("utf-8"))
    except ValueError:
        return None
    return tree.get(name) if isinstance(tree, dict) else None
