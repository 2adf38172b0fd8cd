"""Drafters of multilingual verifiers: training reads what decoding does, languages included."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_dictionary
from helpers.models.dummy_data import run_train
from helpers.models.stand_ins import STAND_INS
from helpers.models.trained import DRAFTER

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.calibration import TrainedHead
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

LIMITS = GenerationLimits(max_len_b=12)


class World:
    """A verifier, what it says, and a drafter that was trained on it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self.verifier = STAND_INS[kind].save(folder / "verifier.pt")
        draw = random.Random(1)
        words = make_dictionary().symbols[4:]
        lines = [" ".join(draw.choices(words, k=draw.randint(2, 8))) for _ in range(30)]
        outputs = [one.text for one in self.translator(strategy="AR").translate(lines)]
        for split, part in (("train", slice(20)), ("valid", slice(20, 30))):
            for language, texts in (("en", lines), ("de", outputs)):
                text = "".join(f"{line}\n" for line in texts[part])
                (folder / f"{split}.en-de.{language}").write_text(text, "utf-8")
        self.sources = lines[20:]
        self.logs = run_train(
            folder,
            folder / "drafter",
            f"{DRAFTER} --AR-path {self.verifier} --dataset-impl raw --max-epoch 1 "
            '--eval-bleu --eval-bleu-args {"max_len_b":12}',
        )
        self.drafter = folder / "drafter" / "checkpoint_last.pt"

    def translator(self, **settings: Any) -> Translator:
        given = {"ar_path": str(self.verifier), "limits": LIMITS, "batch": 4, **settings}
        languages = {"source_lang": "en", "target_lang": "de"}
        return load_translator(Settings(str(self.folder), **languages, **given))


@pytest.fixture(
    scope="module", params=[name for name in STAND_INS if name.startswith("multilingual")]
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(request.param, tmp_path_factory.mktemp("multilingual"))


def test_validation_decodes_as_inference_does(world: World) -> None:
    translator = world.translator(path=str(world.drafter), controller=Constant(), engine="eager")
    found = [one.text for one in translator.translate(world.sources)]
    assert found == [one.text for one in world.translator(strategy="AR").translate(world.sources)]
    statistics = translator.statistics
    length = statistics.committed_tokens / statistics.steps
    said = world.logs.of("valid")[-1]["valid_acceptance_length"]
    assert said == pytest.approx(length, abs=1e-3)


def test_training_begins_where_decoding_does(world: World) -> None:
    config = TranslationSpecdecConfig(
        data=str(world.folder),
        source_lang="en",
        target_lang="de",
        AR_path=str(world.verifier),
        block_size=4,
        dataset_impl="raw",
        train_subset="train",
        required_seq_len_multiple=1,
    )
    task = TranslationSpecdecTask.setup_task(config)
    drafter = task.build_model(load_state(world.drafter)["cfg"]["model"]).float()
    tokens = task.language_tokens
    assert tokens.target == task.target_dictionary.index("__de__" if tokens.forced else "[de]")
    assert drafter.begin == (tokens.begin or task.target_dictionary.eos())
    task.load_dataset("valid")
    batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=10).next_epoch_itr()
    (sample,) = batches
    forced = len(tokens.forced)
    assert sample["target"][:, :forced].eq(tokens.target or 0).all()
    task.valid_step(sample, drafter.eval(), GlatLoss(task, GlatLossConfig(verifier_labels=True)))
    cuts = []
    for seed in range(20):
        task._add_noise(sample, seed, 0.0)
        cuts.append(sample["cuts"])
    assert int(torch.cat(cuts).min()) == forced


def test_a_head(world: World, tmp_path: Path) -> None:
    run_train(
        world.folder,
        tmp_path,
        f"--task translation_specdec --AR-path {world.verifier} --arch acceptance_head "
        f"--drafter {world.drafter} --criterion acceptance_loss --dataset-impl raw --max-epoch 1",
    )
    path = tmp_path / "checkpoint_last.pt"
    head = TrainedHead(str(path), data=str(world.folder))
    head.task.load_dataset("valid")
    dataset = head.task.dataset("valid")
    drafter, target = head.labeller.drafter.model, head.task.target_dictionary

    def decoded(rows: Any) -> tuple[SpeculativeGenerator, Sample, list[torch.Tensor]]:
        generator = build_generator(head.task.verifier, drafter, target)
        sample = dataset.collater([dataset[row] for row in rows])
        outputs = head.task.inference_step(generator, [], sample)
        return generator, sample, [h[0]["tokens"] for h in outputs]

    # Leave out ends that the maximum length brings: they are not the verifier's own.
    _, sample, outputs = decoded(range(len(dataset)))
    rows = [row for row, tokens in zip(sample["id"].tolist(), outputs) if len(tokens) < 60]
    generator, sample, outputs = decoded(rows)
    sample["target"] = torch.nn.utils.rnn.pad_sequence(
        outputs, batch_first=True, padding_value=target.pad()
    ).clone()
    _, survived, _, _ = head._predict(sample)
    statistics = generator.statistics
    assert (len(survived), int(survived.sum())) == (statistics.steps, statistics.accepted_tokens)
