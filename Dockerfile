# The library in an environment of its own, for CPUs or for GPUs of NVIDIA:
#   docker build -t fgrlhf .
#   docker build -t fgrlhf --build-arg TORCH=https://download.pytorch.org/whl/cu130 .
# A run with a tiny model, one minute; then the whole pipeline, 15 to 25 minutes on two cores:
#   docker run --rm fgrlhf
#   docker run --rm -v "$PWD/outputs:/fgrlhf/outputs" fgrlhf make demo
# A container with GPUs needs `docker run --gpus all` and NVIDIA's container toolkit.
FROM python:3.11-slim-bookworm

# the index of PyTorch's builds; the release is that of constraints.txt
ARG TORCH=https://download.pytorch.org/whl/cpu

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /fgrlhf

# before the sources, so that a change of these does not install PyTorch again
COPY constraints.txt ./
RUN python -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --index-url "$TORCH" "$(grep '^torch==' constraints.txt)"

COPY . .
RUN PIP_NO_CACHE_DIR=1 make setup

ENV PATH=/fgrlhf/.venv/bin:$PATH VIRTUAL_ENV=/fgrlhf/.venv
CMD ["bash", "tasks/numbers/run.sh"]
