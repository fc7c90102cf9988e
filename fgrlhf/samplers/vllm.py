"""A vLLM server as the sampler of a decoder-only policy: `sampler: {kind: vllm}`, docs/scale.md.

    check
      GET /v1/models
      GET /server_info, for some policies

    publish                          sample, a request per response
      write weights to sync_dir        POST /v1/completions
      POST /pause                        prompt token ids, seed, sampling settings
      POST /collective_rpc               -> token ids and their log-probabilities
             reload_weights          GET /weight_info: still the published version?
      POST /reset_prefix_cache
      POST /update_weight_version
      POST /resume
      GET /weight_info

All routes outside /v1 are those of vLLM's development mode. Older servers lack
/update_weight_version and /weight_info; they are then left out.

A request that fails for a transient reason is repeated: its seed makes the answer the same. Any
other fault stops the run. No token and no log-probability is invented.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from fgrlhf.base.background import run_parallel, wait_for
from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.files import parse_json
from fgrlhf.configs.sections import Sampling
from fgrlhf.models.base import Policy
from fgrlhf.samplers.config import VllmSamplerConfig
from fgrlhf.samplers.correction import checked_gap, importance_weighted
from fgrlhf.samplers.sampler import Sampler, SavePolicy
from fgrlhf.samplers.shared_weights import publish_weights
from fgrlhf.scorers.service import GivenUp, Refused, Service, TooLong, openai_message
from fgrlhf.types import Advantages, Response, Rollout

NO_ROUTE = (404, 405)
ABOVE_ZERO = 1e-3  # a log-probability may be this far above 0, by rounding

# token ids and log-probabilities of a response
Sampled = tuple[list[int], list[float]]
Result = TypeVar("Result")


class NotComplete(OSError):
    """An answer without a complete response, which the next attempt may give."""


class VllmSampler(Sampler):
    """Samples on a vLLM server that serves the model in `config.sync_dir`.

    Attributes:
      version: of the weights that this process published; None before that, and in processes that
        do not publish.

    Args:
      tied_embeddings: whether the policy's output layer has the weights of its embeddings.
      pause: waits between attempts; tests replace it.
      wait: waits for an answer until its deadline; tests replace it.
    """

    has_own_weights = True

    def __init__(
        self,
        config: VllmSamplerConfig,
        tied_embeddings: bool = False,
        pause: Callable[[float], None] = time.sleep,
        wait: Callable[[threading.Event, float], bool] = wait_for,
    ):
        self.config = config
        self.tied_embeddings = tied_embeddings
        self.version: str | None = None
        self._reports_version = True
        self._served_model: str | None = None
        name = f"the sampler {config.url}"
        self.service = Service(config, name, openai_message, pause, wait)

    def check(self) -> None:
        """Raise `UserError` if the server cannot serve this policy.

        It must be reached, serve exactly one model, and be able to replace all its weights.
        """
        self._model()
        # vLLM 0.32 on a CPU computes with copies of the weights in another layout. It copies them
        # again when they are replaced, but not those of an output layer that shares its weights.
        if self.tied_embeddings and self._device() == "cpu":
            raise UserError(
                f"{self.service.name} runs on a CPU, where vLLM cannot replace the output layer of"
                " a policy with tied embeddings: its responses would come from a mixture of old and"
                " new weights. Use sampler.kind=local, or a server on a GPU"
            )

    # ---- weights ---------------------------------------------------------------------------------

    def publish(self, save: SavePolicy) -> None:
        """Write the policy to `sync_dir` and let the server load it.

        Raises:
          UserError: the folder cannot be written, the server cannot be reached, or does not report
            the new version.
        """
        self.version = publish_weights(self.config.sync_dir, save)
        # If one of these fails, the server stays paused, so nobody samples with such weights. The
        # next `publish` resumes it.
        self._control("/pause")
        self._control("/collective_rpc", {"method": "reload_weights"})
        self._control("/reset_prefix_cache")
        self._label_weights()
        self._control("/resume")
        self.check_version()

    def _label_weights(self) -> None:
        """Tell the server the version of its weights, unless it has no such route."""
        if not self._reports_version:
            return
        try:
            self._query("/update_weight_version", {"new_version": self.version}, _ignored)
        except Refused as refusal:
            if refusal.code not in NO_ROUTE:
                raise self._refused(refusal, "/update_weight_version") from None
            self._reports_version = False

    def check_version(self) -> None:
        """Raise `UserError` if the server reports other weights than this process published."""
        if self.version is None or not self._reports_version:
            return
        try:
            answer = self._query("/weight_info", None, self._json)
        except Refused as refusal:
            if refusal.code not in NO_ROUTE:
                raise self._refused(refusal, "/weight_info") from None
            self._reports_version = False
            return
        reported = answer.get("weight_version")
        if reported != self.version:
            raise UserError(
                f"{self.service.name} has the weights {shorten(repr(reported), 80)}, but the"
                f" policy's are {self.version!r}: it was restarted, another run uses it, or it did"
                " not load them. Give it to this run alone, check that it serves"
                f" {self.config.sync_dir}, then run the same command again"
            )

    # ---- responses -------------------------------------------------------------------------------

    def sample(
        self,
        policy: Policy,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> Response:
        """`Sampler.sample`. The log-probabilities are the server's, at the sampling temperature.

        Raises:
          UserError: any fault of the server; the message names it.
        """
        ask = self.prepare(
            policy, prompt_ids_GP, prompt_mask_GP, sampling, row_seeds, num_samples, temperature
        )
        return ask()

    def gap_metrics(self, rollout: Rollout, step: int) -> dict[str, float]:
        return checked_gap(rollout, self.config, step)

    def weighted(
        self, advantages: Advantages, old: Rollout
    ) -> tuple[Advantages, dict[str, Tensor]]:
        return importance_weighted(advantages, old, self.config)

    def prepare(
        self,
        policy: Policy,
        prompt_ids_GP: Tensor,
        prompt_mask_GP: Tensor,
        sampling: Sampling,
        row_seeds: Sequence[int],
        num_samples: int,
        temperature: float,
    ) -> Callable[[], Response]:
        """A call that does what `sample` does, and reads neither the policy nor its tokenizer.

        So it may run in another thread while the policy trains.

        Raises:
          ValueError: the server cannot sample like this. The config refuses such settings.
          UserError: the server cannot be reached.
        """
        if temperature != sampling.temperature or not sampling.do_sample:
            raise ValueError("RLConfig refuses these settings with sampler.kind=vllm")
        model = self._model()
        eos_ids = policy.eos_ids
        pad_id = policy.tokenizer.pad_token_id
        check = partial(
            read_completion,
            max_tokens=sampling.max_new_tokens,
            eos_ids=eos_ids,
            num_embeddings=policy.num_embeddings,
        )
        calls = []
        for row, seed in enumerate(row_seeds):
            prompt = row // num_samples
            prompt_ids_P = prompt_ids_GP[prompt][prompt_mask_GP[prompt].bool()]
            request = completion_request(model, prompt_ids_P.tolist(), sampling, seed, eos_ids)
            calls.append(partial(self._complete, request, check))

        def ask() -> Response:
            responses = run_parallel(calls, self.config.parallel)
            self.check_version()
            return _as_response(responses, pad_id, prompt_ids_GP.device)

        return ask

    def _complete(
        self, request: dict[str, Any], check: Callable[[dict[str, Any]], Sampled]
    ) -> Sampled:
        """The response to one request."""

        def parse(body: bytes) -> Sampled:
            try:
                return check(self._json(body))
            except ValueError as error:
                raise self._fault(str(error)) from None

        try:
            return self._query("/v1/completions", request, parse)
        except Refused as refusal:
            raise self._refused(refusal, "/v1/completions") from None

    def _model(self) -> str:
        """The name of the served model."""
        if self._served_model is None:
            try:
                answer = self._query("/v1/models", None, self._json)
            except Refused as refusal:
                raise self._refused(refusal, "/v1/models") from None
            try:
                (model,) = answer["data"]
                name = model["id"]
            except (KeyError, TypeError, ValueError):
                name = None
            if not isinstance(name, str):
                raise self._fault("not the name of exactly one model at /v1/models")
            self._served_model = name
        return self._served_model

    def _device(self) -> str | None:
        """The type of the server's device; None if it does not tell."""
        path = "/server_info?config_format=json"
        try:
            answer = self._query(path, None, self._json)
        except Refused as refusal:
            if refusal.code in NO_ROUTE:
                return None
            raise self._refused(refusal, path) from None
        try:
            return answer["vllm_config"]["device_config"]["device"]
        except (KeyError, TypeError):
            return None

    # ---- queries ---------------------------------------------------------------------------------

    def _control(self, path: str, body: dict[str, Any] | None = None) -> None:
        """POST to a route of the development mode; the answer's body has no meaning."""
        try:
            self._query(path, body or {}, _ignored)
        except Refused as refusal:
            raise self._refused(refusal, path) from None

    def _query(
        self, path: str, body: dict[str, Any] | None, parse: Callable[[bytes], Result]
    ) -> Result:
        """The parsed answer: to POST, or to GET if `body` is None.

        Args:
          parse: the answer's body -> the result; if it raises `NotComplete`, the query is repeated.
        Raises:
          Refused: the server refuses the query.
          UserError: it does not answer.
        """
        data = None if body is None else json.dumps(body).encode("ascii")
        try:
            return self.service.query(path, data, parse)
        except GivenUp as error:
            message = (
                f"{self.service.name} gave no answer to {path} in {error}. Check that it runs and"
                " can be reached, raise sampler.timeout_s if it is slow, then run the same command"
                " again"
            )
        except TooLong as error:
            message = f"{self.service.name}, {path}: {error}. Check sampler.url"
        raise UserError(self.service.without_token(message))

    def _json(self, body: bytes) -> dict[str, Any]:
        try:
            answer = parse_json(body.decode("utf-8"))
        except ValueError as error:
            raise self._fault(f"text that is not valid JSON ({shorten(error)})") from None
        if not isinstance(answer, dict):
            raise self._fault("JSON that is not an object")
        return answer

    def _fault(self, fault: str) -> UserError:
        """The error for an answer that must not be used."""
        message = (
            f"{self.service.name} gave {shorten(fault, 300)}. No response was used. Check that"
            " sampler.url is a vLLM server that was started as docs/scale.md describes, and that no"
            " proxy answers in its place"
        )
        return UserError(self.service.without_token(message))

    def _refused(self, refusal: Refused, path: str) -> UserError:
        way_out = "Check sampler.url, and the options of the server (docs/scale.md)"
        if refusal.code in (401, 403):
            way_out = "Name its API key by sampler.token_from"
        elif refusal.code in NO_ROUTE and not path.startswith("/v1/"):
            way_out = "Start it with VLLM_SERVER_DEV_MODE=1: the run must replace its weights"
        reason = openai_message(refusal.body)
        message = f"{self.service.name} refuses {path}: {refusal.code} {reason}. {way_out}"
        return UserError(self.service.without_token(message))


def _ignored(body: bytes) -> None:
    """The result of an answer whose body has no meaning."""


def completion_request(
    model: str, prompt_ids: list[int], sampling: Sampling, seed: int, eos_ids: Sequence[int]
) -> dict[str, Any]:
    """The body of POST /v1/completions for one response.

    Every setting that the model's generation config could change is given. The server's own
    end-of-sequence token is ignored, since `eos_ids` are those at which the policy's responses end.
    """
    return {
        "model": model,
        "prompt": prompt_ids,
        "max_tokens": sampling.max_new_tokens,
        "n": 1,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(eos_ids),
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "stream": False,
    }


def read_completion(
    answer: dict[str, Any], max_tokens: int, eos_ids: Sequence[int], num_embeddings: int
) -> Sampled:
    """Token ids and log-probabilities in the answer to a request.

    Args:
      max_tokens: length limit of the response.
      eos_ids: tokens that end a response.
      num_embeddings: number of token ids that the policy can read.
    Raises:
      NotComplete: the server has aborted the request.
      ValueError: the answer is not a complete response with its log-probabilities; the text
        completes a sentence that begins with "the server gave ...".
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = f"{len(choices)} choices" if isinstance(choices, list) else "no choices"
        raise ValueError(f"{count} instead of one response")
    choice = choices[0]
    if choice.get("finish_reason") == "abort":
        raise NotComplete("the server has aborted the request")
    ids = _ids_in(choice, num_embeddings)
    logprobs = _logprobs_in(choice, len(ids))
    _check_end(ids, max_tokens, eos_ids)
    return ids, logprobs


def _ids_in(choice: dict[str, Any], num_embeddings: int) -> list[int]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise ValueError("a response without token ids (`return_token_ids`)")
    outside = [token for token in ids if not 0 <= token < num_embeddings]
    if outside:
        raise ValueError(
            f"the token id {outside[0]}, but the policy's are 0 to {num_embeddings - 1}: it serves"
            " another model"
        )
    return ids


def _logprobs_in(choice: dict[str, Any], n_tokens: int) -> list[float]:
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list) or len(values) != n_tokens:
        raise ValueError("a response without a log-probability for each token")
    for value in values:
        if not _is_logprob(value):
            raise ValueError(f"{shorten(repr(value), 40)} as a log-probability")
    return [min(float(value), 0.0) for value in values]


def _check_end(ids: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> None:
    """A response ends with its first end token, or has the most tokens and no end token."""
    has_early_end = any(token in eos_ids for token in ids[:-1])
    if len(ids) > max_tokens or has_early_end:
        raise ValueError("a response that continues after its end")
    if len(ids) < max_tokens and ids[-1] not in eos_ids:
        raise ValueError(
            f"a truncated response: {len(ids)} of {max_tokens} tokens, without an end token (its"
            " --max-model-len may be too small)"
        )


def _is_logprob(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value <= ABOVE_ZERO


def _as_response(responses: Sequence[Sampled], pad_id: int, device: torch.device) -> Response:
    B = len(responses)
    T = max(len(ids) for ids, _ in responses)
    ids_BT = torch.full((B, T), pad_id)
    mask_BT = torch.zeros(B, T, dtype=torch.long)
    logprobs_BT = torch.zeros(B, T)
    for row, (ids, logprobs) in enumerate(responses):
        length = len(ids)
        ids_BT[row, :length] = torch.tensor(ids)
        mask_BT[row, :length] = 1
        logprobs_BT[row, :length] = torch.tensor(logprobs)
    return Response(ids_BT.to(device), mask_BT.to(device), logprobs_BT.to(device), of_policy=False)
