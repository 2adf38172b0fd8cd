"""The stages of a pair's making: what each runs, and what it says of what it made."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.differences import decode
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject, file_digest, write_json, write_whole
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.ctranslate2_ar import obstacle
from specdec_plugins.inference.ctranslate2_model import is_installed
from specdec_plugins.inference.pair_folder import (
    DRAFTER,
    ENCODERS,
    IN_FOLDER,
    SEGMENTATION,
    pair_settings,
)
from specdec_plugins.inference.settings import CTRANSLATE2, PLAIN
from specdec_plugins.inference.verifier_facts import describe
from specdec_plugins.jobs.make_pair import text
from specdec_plugins.jobs.make_pair.commands import PREPROCESS, Command, Runner, command
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.progress import Progress
from specdec_plugins.jobs.make_pair.recipe import drafter_recipe, head_recipe, write_recipe
from specdec_plugins.jobs.make_pair.schedule import BEST, LAST, Part, Schedule, trained
from specdec_plugins.jobs.make_pair.training_log import TrainingLog
from specdec_plugins.machine import cores, processor_name

logger = logging.getLogger(__name__)

BATCH = 64
"""Sentences that are distilled at a time."""
HEAD_UPDATES = 100, 400
"""Least and most of a head's training."""
CHECKED = 20
"""Lines of the text by which the verifier is checked."""
COMPARED = 200
"""Held-out lines by which the pair is compared with the checkpoint that was given."""


def head_updates(lines: int) -> int:
    """Updates of a head's training, of about 50 lines each: what a head can learn of a text it has
    learnt when it has read it 25 times."""
    least, most = HEAD_UPDATES
    return min(most, max(least, 25 * lines // 50))


class Stages:
    """Each stage can be stopped anywhere: run again, it goes on, or makes the same once more."""

    def __init__(self, job: PairJob, runner: Runner, progress: Progress) -> None:
        self.job, self.runner, self.progress = job, runner, progress
        self.layout = job.layout

    @property
    def _languages(self) -> tuple[str, ...]:
        source, target = self.job.languages
        return "-s", source, "-t", target

    # check

    def check_commands(self) -> list[Command]:
        job, pair = self.job, self.layout.pair
        export = (job.verifier, self.layout.verifier, *self._languages, "--dictionaries", pair)
        flags = ["--half"] * job.half + ["--as-transformer"] * job.as_transformer
        check = (pair, "--input-path", job.sources, "--lines", CHECKED)
        return [command("export_checkpoint", *export, *flags), command("check", *check)]

    def check(self) -> JsonObject:
        """Put the verifier and what belongs to it into the pair's folder, and try it there."""
        self.layout.pair.mkdir(parents=True, exist_ok=True)
        for language in self.job.languages:
            self._copy(self.job.dictionaries / f"dict.{language}.txt", f"dict.{language}.txt")
        write_json(self.layout.pair / SEGMENTATION, self._segmentation())
        said = "".join(map(self.runner.run, self.check_commands()))
        return {"said": said, "verifier": list(describe(self._verifier()))}

    def _segmentation(self) -> dict[str, str]:
        """What the pair's folder says of its segmentation; files are copied there."""
        job = self.job
        said: dict[str, str] = {}
        for name, path in job.encoder_files.items():
            said[name] = IN_FOLDER[name][0] if name in IN_FOLDER else path.name
            self._copy(path, said[name])
        said |= {name: value for name in ENCODERS if (value := getattr(job, name))}
        for name, value in job.encoder_options.items():
            if name not in said and value not in (None, False, ""):
                said[name] = str(value)
        return said

    def _copy(self, path: Path, name: str) -> None:
        write_whole(self.layout.pair / name, [path.read_bytes()])

    def _verifier(self) -> Translator:
        """The pair's verifier, with its segmentation."""
        settings = {**pair_settings(self.layout.pair), **PLAIN, "path": None, "strategy": "AR"}
        return load_translator(Settings(**settings))

    # segment

    def segment(self) -> JsonObject:
        """Segment the text, and hold out lines to measure on."""
        verifier, begin = self._verifier(), time.monotonic()
        with self.progress.bar(None, "line") as bar:
            facts = text.segment(self.job, verifier, bar.update)
        facts["seconds"] = time.monotonic() - begin
        lines = self.layout.valid_text.read_text("utf-8").splitlines(keepends=True)
        write_whole(self.layout.example, ("".join(lines[: text.EXAMPLE]).encode(),))
        return facts

    # distil

    def distil_commands(self) -> list[Command]:
        layout, job = self.layout, self.job
        backend = "ours"
        if is_installed() and obstacle(self._distilling()) is None:
            backend = CTRANSLATE2
        flags: list[object] = [layout.pair, "--AR-path", layout.verifier, "--strategy", "AR"]
        flags += ["--AR-backend", backend, "--batch", BATCH, "--segmented", "--keep-bpe"]
        flags += ["--max-len-a", text.LIMITS.max_len_a, "--max-len-b", text.LIMITS.max_len_b]
        flags += ["--quiet", *self.progress.bar_flags, *(job.device_flags or ("--fp16",))]
        flags += ["--input-path", layout.sources]
        if job.workers:
            shards = ("--workers", job.workers, "--output-path", layout.shards)
            return [command("translate_corpus", *flags, *shards)]
        path = ("--output-path", layout.outputs, "--resume", "--stats-json", layout.distilling)
        return [command("inference", *flags, *path)]

    def _distilling(self) -> Settings:
        return Settings(
            str(self.layout.pair),
            str(self.layout.verifier),
            strategy="AR",
            batch=BATCH,
            limits=text.LIMITS,
            device=self.job.device,
            precision="float32" if self.job.device == "cpu" else "float16",
        )

    def binarise_command(self, folder: Path) -> Command:
        """fairseq-preprocess of the lines of all kinds; those of a head are ``valid1``."""
        layout = self.layout
        dictionaries = [
            f"--{side}dict={layout.pair}/dict.{language}.txt"
            for side, language in zip(("src", "tgt"), self.job.languages)
        ]
        kinds = ("valid", "head") if self.job.heads else ("valid",)
        others = ",".join(f"{layout.text}/{kind}" for kind in kinds)
        texts = [f"--trainpref={layout.text}/train", f"--validpref={others}"]
        rest = [f"--destdir={folder}", "--workers", cores()]
        return command(PREPROCESS, *self._languages, *dictionaries, *texts, *rest)

    def distil(self, lines: dict[str, int]) -> JsonObject:
        """Have the verifier translate the text greedily, and binarise what is to be learnt."""
        layout = self.layout
        logger.info("outputs may have twice the tokens of their source, and 10")
        if not (self.job.workers and layout.outputs.exists()):
            for one in self.distil_commands():
                self.runner.run(one)
            if self.job.workers:
                os.replace(layout.shards / layout.sources.name, layout.outputs)
        facts = text.collect(self.job, lines)
        partial = layout.bin.with_name(f"{layout.bin.name}.part")
        for old in (layout.bin, partial):
            shutil.rmtree(old, ignore_errors=True)
        self.runner.run(self.binarise_command(partial))
        partial.rename(layout.bin)
        return facts

    # train

    def write_recipe(self) -> None:
        verifier = self._verifier().generator
        assert isinstance(verifier, SpeculativeGenerator)
        model = verifier.model
        assert isinstance(model, TransformerModelBase)
        write_recipe(drafter_recipe(model, self.job), self.layout.recipe)

    def train_command(self, flags: list[str]) -> Command:
        layout = self.layout
        named = (layout.bin, "--save-dir", layout.training, "--recipe", layout.recipe)
        return command("train", *named, *self._languages, *flags)

    def train(self, schedule: Schedule) -> JsonObject:
        """Train the drafter until the budget is spent, or the run is interrupted; then the best one
        is gone on with, if there is one.
        """
        layout = self.layout
        if not layout.recipe.exists():
            self.write_recipe()
        log, stopped = layout.log("training"), False
        try:
            while part := schedule.next(layout.training, TrainingLog(log)):
                with self.progress.training(part.expected, log) as look:
                    self.runner.watch(self.train_command(part.flags), log, look)
        except KeyboardInterrupt:
            if not (layout.training / BEST).exists():
                raise
            stopped = True
        last = TrainingLog(log)
        return {
            "points": [vars(point) for _, point in sorted(last.points.items())],
            "stopped": stopped,
            "seconds_an_update": last.seconds_an_update,
            "processor": processor_name(),
        }

    # export

    def export_commands(self, draft_from: int | None) -> list[Command]:
        layout, source = self.layout, self.layout.training / BEST
        flags = (source, layout.pair / DRAFTER, *self._languages, "--half")
        flags += ("--dictionaries", layout.pair)
        if draft_from is None:
            return [command("export_checkpoint", *flags)]
        read = layout.text / f"train.{self.job.languages[1]}"
        chosen = ("--draft-vocabulary", draft_from, "--draft-text", read)
        return [command("export_checkpoint", *flags, *chosen)]

    def export(self) -> JsonObject:
        """Write the best drafter into the pair's folder, which drafts from the frequent tokens."""
        target = self.job.languages[1]
        entries = len((self.layout.pair / f"dict.{target}.txt").read_bytes().splitlines())
        count = text.frequent_tokens(self.layout.text / f"train.{target}", entries)
        for one in self.export_commands(count):
            self.runner.run(one)
        return {"draft_vocabulary": count}

    # heads

    def head_commands(self, updates: int) -> list[Command]:
        """Training for so many updates, and calibration."""
        layout, folder = self.layout, self._head_folder()
        named = (layout.bin, "--save-dir", folder, "--recipe", layout.head_recipe)
        flags = [f"--max-update={updates}", f"--total-num-update={updates}"]
        flags.append(f"--warmup-updates={updates // 8}")
        rule = f".{self.job.rule.name}" if self.job.rule_flags else ""
        made = layout.pair / f"acceptance_head{rule}.pt"
        return [
            command("train", *named, *self._languages, *flags),
            command("calibrate_head", folder / LAST, made, *self.progress.bar_flags),
        ]

    def _head_folder(self) -> Path:
        """A head is of one drafter, and a training is gone on with."""
        drafter = self.layout.pair / DRAFTER
        name = f"head-{file_digest(drafter)[:8]}" if drafter.exists() else "head"
        return self.layout.work / name

    def heads(self, lines: int) -> JsonObject:
        """Train and calibrate the acceptance head of the exported drafter.

        Args:
            lines: that are kept for it.
        """
        layout = self.layout
        write_recipe(head_recipe(self.job), layout.head_recipe)
        updates = head_updates(lines)
        train, calibrate = self.head_commands(updates)
        if trained(self._head_folder() / LAST)[0] < updates:
            log = layout.log("head")
            with self.progress.training(updates, log) as look:
                self.runner.watch(train, log, look)
        return {"said": self.runner.run(calibrate)}

    # measure

    def measure_commands(self) -> list[Command]:
        rule, pair = self.job.rule_flags, self.layout.pair
        flags = (pair, *rule, *self.job.device_flags, *self.progress.bar_flags)
        commands = [command("tune", *flags)] if self.job.device == "cpu" else []
        for name, controller in self._controllers().items():
            read = ("--input-path", self.layout.valid_text, "--output-path", os.devnull)
            stats = ("--stats-json", self._stats(name), "--quiet", "--batch", 16)
            commands.append(command("inference", *flags, *controller, *read, *stats))
        return commands

    def _controllers(self) -> dict[str, tuple[str, ...]]:
        chosen: dict[str, tuple[str, ...]] = {"constant": ("--controller", "constant")}
        if self.job.arch != "block":
            chosen["tree 8"] = ("--controller", "tree", "--tree-nodes", "8")
        return chosen

    def _stats(self, name: str) -> Path:
        return self.layout.work / f"{name.replace(' ', '')}.json"

    def measure(self) -> JsonObject:
        """Measure the ways to decode here, and on the held-out lines acceptance lengths and
        exactness."""
        said = "".join(map(self.runner.run, self.measure_commands()))
        lengths = {
            name: json.loads(self._stats(name).read_text("utf-8"))["acceptance_length"]
            for name in self._controllers()
        }
        return {"said": said, "acceptance_length": lengths, "exact": self._compare()}

    def _compare(self) -> str:
        """Compare the pair with stock fairseq on the checkpoint that was given, in float64."""
        text = read_text(str(self.layout.valid_text), COMPARED)
        lines = [line for line in text if line.text.strip()]
        plain = {**PLAIN, "precision": "float64", "batch": 16, "keep_bpe": True}
        pair = Settings.of_model(self.layout.pair, **plain)
        source, target = self.job.languages
        stock = replace(
            pair,
            ar_path=str(self.job.verifier),
            strategy="fairseq",
            beam=1,
            source_lang=source,
            target_lang=target,
            as_transformer=self.job.as_transformer,
        )
        found, expected = (decode(load_translator(one), lines) for one in (pair, stock))
        differ = sum(a != b for a, b in zip(found, expected, strict=True))
        said = (
            f"Of {counted(len(lines), 'held-out line')}, the pair translates {differ} differently "
            f"from stock fairseq (beam 1) with {self.job.verifier.name}, in float64."
        )
        (logger.warning if differ and not self.job.half else self.progress.say)(said)
        return said

    def commands(self, part: Part, lines: int) -> Iterator[tuple[str, list[Command]]]:
        """The stages by name, with the commands that each stands for where the drafter drafts from
        all tokens.

        Args:
            part: the drafter's training.
            lines: of the text.
        """
        yield "check", self.check_commands()
        yield "segment", []
        yield "distil", [*self.distil_commands(), self.binarise_command(self.layout.bin)]
        yield "train", [self.train_command(part.flags)]
        yield "export", self.export_commands(None)
        if self.job.heads:
            yield "heads", self.head_commands(head_updates(text.head_lines(lines)))
        yield "measure", self.measure_commands()
