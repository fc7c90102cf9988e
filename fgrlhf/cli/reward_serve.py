"""Serve a reward over HTTP: `fgrlhf reward-serve ckpt=FOLDER [key=value ...]`.

    fgrlhf reward-serve ckpt=outputs/segment_rm values='{error: -0.5, ok: 0.3}' token_from=file:PATH
    fgrlhf reward-serve kind=length value=-0.1 max_words=60
    fgrlhf reward-serve TASK served.yml port=8771

A run uses it by a reward of the kind `reward_server`; docs/rewards.md, Rewards as a service.
"""

import difflib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import uvicorn
from pydantic import Field, create_model, model_validator

from fgrlhf.base.errors import UserError, shorten
from fgrlhf.base.http_connections import SERVER_OPTIONS
from fgrlhf.base.program import run_main
from fgrlhf.cli.command_line import describe
from fgrlhf.configs.schema import keys_of
from fgrlhf.configs.strict import (
    Count,
    Kernels,
    StrictModel,
    any_kind,
    config_from,
    load_config,
    refuse,
    unread_keys,
)
from fgrlhf.kernels.choice import use_kernels
from fgrlhf.load import load_task
from fgrlhf.reward_models.spec import SPEC_FILE, RewardModelSpec
from fgrlhf.rewards.kind import RewardKind
from fgrlhf.rewards.kinds import LIBRARY_REWARDS
from fgrlhf.rewards.protocol import sent_prefix
from fgrlhf.rewards.server import Limits, ServedReward, create_app, model_sha256
from fgrlhf.scorers.base import OnDevice, RewardContext
from fgrlhf.scorers.service import TokenPlace, is_local, place_name, read_token, token_file

USAGE = """\
usage: fgrlhf reward-serve ckpt=FOLDER [key=value ...]
       fgrlhf reward-serve [TASK] [config.yml] [key=value ...]
Keys of the reward can be given without `reward.`. A folder with reward_model.json needs no `kind`.
TASK adds the reward kinds of a task."""
MOST_USED_KEYS = """\
  ckpt=FOLDER       of a reward model; the reward's kind is then that of the folder
  kind=NAME         any other reward: docs/rewards.md has the kinds and their keys
  values='{error: -0.5, ok: 0.3}', scale=0.3, label=polite, ...    keys of the kind
  token_from=file:PATH   the token of the clients; made if the file does not exist
  port=8770         where to listen
`fgrlhf reward-serve --help` lists all keys."""
KIND_OF_MODEL = {"segment": "segment_classifier", "sequence": "sequence_scorer"}
NOT_SERVED = {
    "reward_server": "the reward of another server: name that server in the config of the run",
    "missing_eos": (
        "it reads the policy's tokens, which a server does not get: put it into the config of the"
        " run"
    ),
}


class ServerSettings(StrictModel):
    """Where to listen, for whom, and how much."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8770, description="port to listen on; 0: any free one"
    )
    other_machines: bool = Field(
        default=False,
        description="allow a host that other machines can reach; texts and token are not encrypted",
    )
    token_from: TokenPlace = Field(
        default="FGRLHF_REWARD_TOKEN",
        description="the environment variable with the bearer token of the clients, or file:PATH,"
        " which is made if it does not exist",
    )
    max_batch: Count = Field(default=512, description="most responses of a request")
    max_body_mb: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32, description="largest body of a request, in MiB"
    )
    device: str = Field(default="auto", description="of the model: auto, cpu, cuda:0, ...")
    dtype: Literal["fp32", "bf16"] = Field(default="fp32", description="of its forward passes")
    kernels: Kernels = "auto"

    @model_validator(mode="after")
    def _loopback_or_allowed(self):
        if not is_local(self.host) and not self.other_machines:
            reason = (
                f"{shorten(self.host)} can be reached from other machines: keep 127.0.0.1 and use"
                " an SSH tunnel, or, in a network that you trust, set other_machines=true"
            )
            refuse([("host", reason)])
        return self


class _WithReward(ServerSettings):
    """The settings with a reward, whose kind is filled in from the model's folder."""

    @model_validator(mode="before")
    @classmethod
    def _fill_kind(cls, tree: Any) -> Any:
        section = tree.get("reward") if isinstance(tree, dict) else None
        if not isinstance(section, dict):
            return tree
        kind = section.get("kind")
        kind = kind if isinstance(kind, str) else None
        if kind in NOT_SERVED:
            refuse([("reward.kind", f"`{kind}` cannot be served: {NOT_SERVED[kind]}")])
        folder = section.get("ckpt")
        if "kind" in section or not isinstance(folder, str):
            return tree
        if not Path(folder).is_dir():
            refuse([("reward.ckpt", f"there is no folder {shorten(folder)}")])
        if not (Path(folder) / SPEC_FILE).is_file():
            reason = (
                f"{shorten(folder)} is not a reward model of this library: it has no {SPEC_FILE}."
                " Give the folder of a reward model, or the kind of another one, such as kind=score"
            )
            refuse([("reward.ckpt", reason)])
        kind = KIND_OF_MODEL[RewardModelSpec.read(folder).kind]
        return {**tree, "reward": {"kind": kind, **section}}

    @model_validator(mode="after")
    def _no_unread_keys(self):
        reward: RewardKind = getattr(self, "reward")  # noqa: B009 (declared by `settings_class`)
        of_the_run = {"weight", "constraint", "place"} & type(reward).model_fields.keys()
        mistakes = unread_keys(reward, sorted(of_the_run), "set it in the config of the run")
        if isinstance(reward, OnDevice):
            mistakes += unread_keys(reward, ["device"], "set device of the server instead")
        refuse([(f"reward.{key}", text) for key, text in mistakes])
        return self


def settings_class(kinds: Sequence[type[RewardKind]]) -> type[_WithReward]:
    """The settings of a server whose reward is one of `kinds`."""
    return create_model("Settings", __base__=_WithReward, reward=(any_kind(kinds), ...))


def settings_from(argv: Sequence[str]) -> tuple[ServerSettings, RewardKind]:
    """The settings of a command line, and the section of the reward.

    Raises:
      UserError: lists every mistake.
    """
    words = [word for word in argv if "=" not in word and word not in ("-h", "--help")]
    files = [word for word in words if Path(word).suffix in (".yml", ".yaml")]
    tasks = [word for word in words if word not in files]
    if len(files) > 1 or len(tasks) > 1:
        raise UserError(f"`{shorten(words[-1])}` is not a setting: write it as key=value\n{USAGE}")
    kinds = {name: kind for name, kind in LIBRARY_REWARDS.items() if name not in NOT_SERVED}
    if tasks:
        kinds |= load_task(tasks[0]).rewards
    model = settings_class(tuple(kinds.values()))
    if {"-h", "--help"} & set(argv):
        print("\n".join([USAGE, "keys:", *describe(model)]))
        sys.exit(0)
    if not argv:
        raise UserError(f"name the reward to serve\n{USAGE}\n{MOST_USED_KEYS}")
    kinds_given = [word.removeprefix("kind=") for word in argv if word.startswith("kind=")]
    is_kind_known = all(kind in kinds for kind in kinds_given)
    keys_of_rewards = {key for kind in kinds.values() for key in keys_of(kind)}
    overrides = []
    unknown = []
    for word in argv:
        if "=" not in word:
            continue
        first = word.partition("=")[0].partition(".")[0].strip()
        overrides.append(word if first in model.model_fields else f"reward.{word}")
        is_key_known = first in model.model_fields or first in keys_of_rewards
        if is_kind_known and not is_key_known:
            unknown.append(_unknown_key(first, [*model.model_fields, *keys_of_rewards]))
    if unknown:
        raise UserError("\n".join(unknown))
    settings = load_config(model, files[0], overrides) if files else config_from(model, overrides)
    reward: RewardKind = getattr(settings, "reward")  # noqa: B009
    return settings, reward


def _unknown_key(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key[:100], known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else "`fgrlhf reward-serve --help` lists the keys"
    return f"{shorten(key)}: unknown key; {hint}"


def token_of(settings: ServerSettings) -> tuple[str, str]:
    """The token that clients need, and where it is: `the file outputs/token`.

    Raises:
      UserError: there is none.
    """
    place = settings.token_from
    file = token_file(place)
    if file is not None and not os.path.lexists(file):
        _make_token(Path(file))
    if file is None and not os.environ.get(place, "").strip():
        raise UserError(
            f"{place_name(place)} is not set: it must have the token of the clients. Give"
            " token_from=file:PATH instead, which this server makes if it does not exist"
        )
    token = read_token(place, "the clients")
    assert token is not None  # there is a place
    return token, place_name(place)


def _make_token(path: Path) -> None:
    """Write a new token, which only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `UserError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{shorten(host)}, port {port}, cannot be used: {shorten(error)}. Choose another"
            " port=..., or stop the program that uses it"
        ) from None


def serve(settings: ServerSettings, reward: RewardKind) -> None:
    """Serve until interrupted. Raises `UserError` if the server cannot start."""
    digest = model_sha256(reward, settings.dtype)
    token, place = token_of(settings)
    device = settings.device
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    with listener(settings.host, settings.port) as listening:
        print(f"loading the reward {reward.kind}", flush=True)
        use_kernels(settings.kernels)
        aspect = reward.build(RewardContext(sent_prefix, device, settings.dtype))
        limits = Limits(settings.max_batch, settings.max_body_mb << 20)
        app = create_app(ServedReward(aspect, reward.kind, digest, limits), token)
        config = uvicorn.Config(app, lifespan="off", limit_concurrency=256, **SERVER_OPTIONS)
        server = uvicorn.Server(config)
        host, port = listening.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        print(
            f"ready: http://{address}:{port}\n"
            f"model_sha256: {digest}\n"
            f"the token is in {place}; Ctrl+C stops the server",
            flush=True,
        )
        # uvicorn ends running requests, and then passes the signal on
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            print("stopped", flush=True)
        finally:
            signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> None:
    serve(*settings_from(list(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    run_main(main)
