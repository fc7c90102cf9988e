from setuptools import find_packages, setup

TRACKERS = {"wandb": ["wandb>=0.20"], "tensorboard": ["tensorboard>=2.15"]}
QUANTIZE = {"quantize": ["bitsandbytes>=0.50"]}  # QLoRA and 8-bit AdamW
DOCS = {"docs": ["pdoc>=16,<17"]}  # `make docs`
PEERS = {"peers": ["trl>=1.16,<2"]}  # packages that `make bench-peers` compares with

UIMA = {"uima": ["dkpro-cassis>=0.12,<1"]}  # `fgrlhf data import from=uima`

TEST = [
    "ruff>=0.17",
    "basedpyright>=1.40",  # pyright with Node.js, installable from PyPI
    "pytest>=9",
    "pytest-xdist>=3.8",
    "hypothesis>=6.100",
    "playwright>=1.60",
    "axe-playwright-python>=0.1.7",
    "submitit>=1.5",
    "dkpro-cassis>=0.12,<1",
]
SLURM = {"slurm": ["submitit>=1.5"]}  # runs of comparisons and sweeps as jobs of a cluster
CHECK = ["schemathesis>=4", "krippendorff>=0.8"]  # for `make feedback-check`

# endings of the files that programs read, or that users copy and change
ENDINGS = ["css", "html", "j2", "js", "json", "jsonl", "md", "sh", "txt", "yml"]
DATA = [f"**/*.{ending}" for ending in ENDINGS]  # `**`: also in folders that are no packages

setup(
    name="fgrlhf",
    version="0.1.0",
    description="Reinforcement learning from fine-grained human feedback",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(
        include=["fgrlhf*", "sft*", "reward_modeling*", "interface_html*", "tasks*"]
    ),
    package_data={package: DATA for package in ("fgrlhf", "interface_html", "tasks")},
    entry_points={"console_scripts": ["fgrlhf = fgrlhf.cli.main:entry_point"]},
    # the lowest releases that are known to work; `make setup` installs the pins of constraints.txt
    install_requires=[
        "torch>=2.13",
        "transformers>=5.23,<6",
        "accelerate>=1.15",
        "peft>=0.21,<1",
        "datasets>=5.2",
        "spacy>=3.8,<4",
        "rouge-score>=0.1.2",
        "sacrebleu>=2.6,<3",
        "nltk>=3.9",
        "pydantic>=2.14,<3",
        "safetensors>=0.8",
        "sentencepiece>=0.2",  # with protobuf: tokenizers of models without tokenizer.json
        "protobuf>=5",
        "gguf>=0.19",  # reads the model of `fgrlhf data model`; pure Python, 0.1 MB
        "regex>=2024.11",  # grapheme clusters; transformers needs it too
        "numpy>=2",
        "scipy>=1.14",
        "scikit-learn>=1.7",
        "jinja2>=3.1",
        "matplotlib>=3.10",
        "psutil>=6",
        "pyyaml>=6",
        "tqdm>=4.67",
        "fastapi>=0.115",
        "uvicorn>=0.30",
        "textblob>=0.19",  # tasks/sentiment
        "vaderSentiment>=3.3.2",  # tasks/sentiment
    ],
    extras_require={
        "check": CHECK,
        "test": TEST,
        **TRACKERS,
        **DOCS,
        **PEERS,
        **QUANTIZE,
        **SLURM,
        **UIMA,
    },
)
