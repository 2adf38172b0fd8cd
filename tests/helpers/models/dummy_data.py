"""Random sentences, binarised, and fairseq's commands run on them within this process."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import progress_bar
from fairseq_cli import preprocess
from fairseq_cli import train as fairseq_train

SIZES = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2 --dropout 0.1"
)
# Newer versions of fairseq drop a last batch whose size is no multiple of 8, sentences and all.
COMMON = (
    "--source-lang en --target-lang de --cpu --optimizer adam --lr 0.01 --max-tokens 200 "
    "--num-workers 0 --required-batch-size-multiple 1 --seed 1 --log-format json --log-interval 1 "
    "--no-epoch-checkpoints"
)


def make_data(folder: Path, train: int = 60, valid: int = 14) -> Path:
    """A folder as ``fairseq-preprocess`` leaves it: one dictionary for both sides."""
    rng = random.Random(0)
    words = [f"w{index}" for index in range(20)]
    for split, count in (("train", train), ("valid", valid)):
        source = [rng.choices(words, k=rng.randint(1, 9)) for _ in range(count)]
        for side, lines in (("en", source), ("de", [line[::-1] for line in source])):
            text = "".join(" ".join(line) + "\n" for line in lines)
            (folder / f"{split}.{side}").write_text(text, "utf-8")
    flags = (
        f"-s en -t de --joined-dictionary --trainpref {folder}/train --validpref {folder}/valid "
        f"--testpref {folder}/valid --destdir {folder}/bin --workers 1"
    )
    preprocess.main(options.get_preprocessing_parser().parse_args(flags.split()))
    return folder / "bin"


class Logs:
    """Records of fairseq's JSON progress bar, with the part of training."""

    def __init__(self, records: list[tuple[str, dict[str, Any]]]) -> None:
        self.records = records

    def of(self, name: str) -> list[dict[str, Any]]:
        """All logs of ``train`` (an epoch), ``train_inner`` (an update) or ``valid``."""
        return [stats for tag, stats in self.records if tag == name]

    def save(self, folder: Path) -> None:
        """Beside what was trained, for :meth:`load`."""
        (folder / "logs.json").write_text(json.dumps(self.records), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Logs:
        return cls(json.loads((folder / "logs.json").read_text("utf-8")))


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[tuple[str, dict[str, object]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("{"):
            stats = {k: _number(v) for k, v in json.loads(message).items()}
            self.records.append((record.name, stats))


@contextmanager
def listening() -> Iterator[Logs]:
    """Collect the logs of fairseq's commands with ``--log-format json``."""
    listener, logger = _Listener(), progress_bar.logger
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    try:
        yield Logs(listener.records)
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def forget_trainings() -> None:
    """fairseq notes the best value on its functions, which a new process would not have."""
    for function in (checkpoint_utils.save_checkpoint, fairseq_train.should_stop_early):
        vars(function).clear()


def run_train(data: Path, save_dir: Path, flags: str, cpu: bool = True) -> Logs:
    """``fairseq-train`` in this process: nothing is left behind but files and what it logged."""
    forget_trainings()
    common = COMMON if cpu else COMMON.replace("--cpu ", "")
    arguments = f"{data} --save-dir {save_dir} {common} {flags}".split()
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    args.tpu = False  # which --bf16 stands for, on the command line
    cfg = convert_namespace_to_omegaconf(args)
    with listening() as logs:
        fairseq_train.main(cfg)
    return logs


def train_verifier(data: Path, save_dir: Path, flags: str = "--max-epoch 1") -> Path:
    run_train(
        data,
        save_dir,
        f"--task translation --arch transformer --share-all-embeddings {SIZES} "
        f"--criterion label_smoothed_cross_entropy --label-smoothing 0.1 {flags}",
    )
    return save_dir / "checkpoint_last.pt"
