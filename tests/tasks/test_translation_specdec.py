"""Training end to end through fairseq's commands, on random sentences."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_dictionary, make_verifier
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from helpers.models.drafters import CAUSAL, make_block, make_causal
from helpers.models.dummy_data import SIZES, run_train
from helpers.models.trained import DRAFTER, Trained
from omegaconf import OmegaConf

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.checkpoints.pair import load_drafter
from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig
from specdec_plugins.decoding.acceptance import SamplingRule, StrictRule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

PUBLISHED_FLAGS = (
    "--task translation_lev_modified --arch block --noise block_mask --block-size 4 --total-up 8 "
    "--criterion glat_loss --label-smoothing 0.1 --src-embedding-copy --share-all-embeddings "
    f"--encoder-learned-pos --decoder-learned-pos --apply-bert-init --activation-fn gelu {SIZES}"
)
CAUSAL_FLAGS = (
    f"--task translation_specdec --arch block_causal --block-size 4 --criterion glat_loss {SIZES}"
)
LENT_FLAGS = f"{DRAFTER} --AR-path VERIFIER"
"""VERIFIER stands for the path of the verifier."""


@pytest.fixture(scope="module")
def data(trained: Trained) -> Path:
    return trained.data


@pytest.fixture(scope="module")
def verifier(trained: Trained) -> Path:
    return trained.verifier


#: What fairseq's commands fill in.
NEEDED = (
    *("source_lang", "target_lang", "data", "dataset_impl", "train_subset"),
    *("required_seq_len_multiple", "left_pad_source", "max_source_positions"),
)


def make_task(data: Path, **cfg: Any) -> TranslationSpecdecTask:
    settings: dict[str, object] = {
        "source_lang": "en",
        "target_lang": "de",
        "data": str(data),
        "block_size": 4,
        "dataset_impl": None,
        "train_subset": "train",
        "required_seq_len_multiple": 1,
    }
    return TranslationSpecdecTask.setup_task(TranslationSpecdecConfig(**{**settings, **cfg}))


class TestTraining:
    def test_published_flags(self, data: Path, tmp_path: Path) -> None:
        logs = run_train(data, tmp_path, f"{PUBLISHED_FLAGS} --max-epoch 2")
        drafter = load_drafter(tmp_path / "checkpoint_best.pt", make_task(data))
        assert type(drafter).__name__ == "BlockDrafter"
        assert drafter.block_size == 4
        updates = logs.of("train_inner")
        assert len(updates) >= 6
        for part, prefix in (("train", "train_"), ("valid", "valid_")):
            for epoch in logs.of(part):
                for name in ("loss", "nll_loss", "glat_accu", "glat_context_p", "acc_0", "acc_3"):
                    assert isinstance(epoch[prefix + name], float), name
        # Without a verifier, nothing is said of one.
        assert not any("acceptance" in key for key in logs.of("valid")[0])
        assert logs.of("train")[1]["train_loss"] < logs.of("train")[0]["train_loss"]

    def test_a_drafter_with_all_of_its_verifier(
        self, data: Path, trained: Trained, tmp_path: Path
    ) -> None:
        before = trained.verifier.read_bytes()
        flags = "--max-epoch 2 --update-freq 2 --max-tokens-valid 60"
        logs = run_train(data, tmp_path, f"{trained.drafter_flags} {flags}")
        valid = logs.of("valid")
        assert len(valid) == 2
        lengths = [log["valid_acceptance_length"] for log in valid]
        assert all(1.0 <= length <= 5.0 for length in lengths)
        best = load_state(tmp_path / "checkpoint_best.pt")
        assert best["extra_state"]["best"] == pytest.approx(max(lengths), abs=1e-3)
        # Nothing of the verifier is stored or changed, and the block size is stored.
        assert not [key for key in best["model"] if key.startswith("encoder.")]
        assert "decoder.embed_tokens.weight" not in best["model"]
        assert trained.verifier.read_bytes() == before
        task = make_task(data, block_size=9, AR_path=str(trained.verifier))
        drafter = load_drafter(tmp_path / "checkpoint_best.pt", task)
        assert drafter.block_size == 4
        # Its own validation says the same again.
        task = make_task(data, AR_path=str(trained.verifier), blocks_per_sentence=3)
        last = load_drafter(tmp_path / "checkpoint_last.pt", task)
        found = validate(task, last, data, max_tokens=200)
        assert found["acceptance_length"] == pytest.approx(lengths[-1], abs=1e-3)

    def test_resuming_is_going_on(self, data: Path, verifier: Path, tmp_path: Path) -> None:
        """Two updates, then two more: the same weights as without a break."""
        flags = f"{LENT_FLAGS.replace('VERIFIER', str(verifier))} --dropout 0.2 --max-tokens 50"
        flags += " --update-freq 2 --disable-validation"
        run_train(data, tmp_path / "whole", f"{flags} --max-update 4")
        run_train(data, tmp_path / "halves", f"{flags} --max-update 2")
        logs = run_train(data, tmp_path / "halves", f"{flags} --max-update 4")
        assert [log["num_updates"] for log in logs.of("train_inner")] == [3, 4]
        first, second = (
            without_copies(load_state(tmp_path / name / "checkpoint_last.pt")["model"])
            for name in ("whole", "halves")
        )
        assert first.keys() == second.keys()
        assert [key for key, tensor in first.items() if not torch.equal(tensor, second[key])] == []

    def test_noise_is_drawn_anew_in_every_update(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a sentence would be masked, glanced at and hidden alike in all epochs."""
        seen: dict[int, list[tuple[int, ...]]] = {}
        step = TranslationSpecdecTask.train_step

        def note(task: FairseqTask, sample: Sample, *args: Any, **kwargs: Any) -> Any:
            done = step(task, sample, *args, **kwargs)
            noise = zip(sample["id"].tolist(), sample["cuts"].tolist(), sample["seeds"].tolist())
            for sentence, cuts, seed in noise:
                seen.setdefault(sentence, []).append((*cuts, seed))
            return done

        monkeypatch.setattr(TranslationSpecdecTask, "train_step", note)
        flags = f"{CAUSAL_FLAGS} --blocks-per-sentence 3 --max-epoch 3 --disable-validation"
        run_train(data, tmp_path, f"{flags} --no-save")
        assert len(seen) == 60
        assert all(len(set(noise)) == len(noise) == 3 for noise in seen.values())
        cuts = [len({item[:-1] for item in noise}) for noise in seen.values()]
        assert sum(cuts) > 2 * len(cuts)

    def test_half_precision(self, data: Path, verifier: Path, tmp_path: Path) -> None:
        """On a CPU fairseq offers float16 in its memory-efficient form only. Under autocast the
        products are bfloat16's, and the parameters stay float32."""
        flags = f"{LENT_FLAGS.replace('VERIFIER', str(verifier))} --max-update 3"
        losses = []
        for precision in (
            "--no-save",
            "--no-save --bf16",
            "--no-save --memory-efficient-fp16 --fp16-init-scale 4",
            "--autocast bfloat16",
        ):
            logs = run_train(data, tmp_path, f"{flags} {precision}")
            assert len(logs.of("valid")) == 1
            losses.append([log["loss"] for log in logs.of("train_inner")])
        for half, tolerance in zip(losses[1:], (0.05, 0.05, 0.02), strict=True):
            assert half == pytest.approx(losses[0], rel=tolerance)
        assert losses[-1] != losses[0]
        weights = load_state(tmp_path / "checkpoint_last.pt")["model"]
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}

    def test_an_encoder_is_copied_at_the_start_and_not_at_the_end(
        self, data: Path, verifier: Path, tmp_path: Path
    ) -> None:
        flags = f"{CAUSAL_FLAGS} --init-encoder-from FILE --max-update 1 --lr 0"
        copy = tmp_path / "verifier.pt"
        copy.write_bytes(verifier.read_bytes())
        run_train(data, tmp_path / "drafter", flags.replace("FILE", str(copy)))
        copy.unlink()
        path = tmp_path / "drafter" / "checkpoint_last.pt"
        # The file it started from is gone; the drafter is loaded all the same.
        drafter = load_drafter(path, make_task(data))
        theirs = load_state(verifier)["model"]
        parameters = dict(drafter.encoder.named_parameters())
        for name, parameter in without_copies(parameters).items():
            assert torch.equal(parameter, theirs[f"encoder.{name}"]), name


def make_drafter(task: TranslationSpecdecTask) -> Drafter:
    names = Namespace(
        source_dictionary=task.source_dictionary,
        target_dictionary=task.target_dictionary,
        cfg=Namespace(block_size=4),
        verifier=None,
    )
    return make_causal(names).float()


def batches(task: TranslationSpecdecTask, max_tokens: int) -> list[Sample]:
    iterator = task.get_batch_iterator(
        task.dataset("valid"),
        max_tokens=max_tokens,
        max_positions=(1000, 1000),
        disable_iterator_cache=True,
    )
    return list(iterator.next_epoch_itr(shuffle=False))


def validate(
    task: TranslationSpecdecTask, model: Drafter, data: Path, max_tokens: int
) -> dict[str, float]:
    """The whole validation set, with every digit."""
    task.load_dataset("valid")
    criterion = GlatLoss(task, GlatLossConfig(verifier_labels=task.cfg.AR_path is not None))
    totals: dict[str, float] = {}
    for sample in batches(task, max_tokens):
        _, _, log = task.valid_step(sample, model.eval(), criterion)
        for key, value in log.items():
            totals[key] = totals.get(key, 0.0) + float(value)
    found = {"loss": totals["loss"] / totals["sample_size"]}
    found["accuracy"] = totals["glat_correct"] / totals["glat_total"]
    if "_steps" in totals:
        found["acceptance_length"] = totals["_committed"] / totals["_steps"]
    return found


class TestValidation:
    @pytest.mark.parametrize("blocks", [1, 3])
    def test_it_is_the_same_every_time_and_however_batched(self, blocks: int, data: Path) -> None:
        task = make_task(data, blocks_per_sentence=blocks)
        model = make_drafter(task)
        first = validate(task, model, data, 10_000)
        torch.manual_seed(99)
        assert validate(task, model, data, 10_000) == first
        assert len(batches(task, 40)) > 2
        assert validate(task, model, data, 40) == pytest.approx(first, abs=1e-5)

    def test_acceptance_is_measured_against_the_verifier(
        self, data: Path, trained: Trained
    ) -> None:
        task = make_task(data, AR_path=str(trained.verifier))
        drafter = load_drafter(trained.drafter, task)
        first = validate(task, drafter, data, 10_000)
        assert validate(task, drafter, data, 40) == pytest.approx(first, abs=1e-5)
        task.load_dataset("valid")
        generator = task.build_generator([drafter], None)
        for sample in batches(task, 10_000):
            generator.generate([], sample)
        assert generator.statistics.acceptance_length == first["acceptance_length"]

    def test_a_plain_transformer_needs_no_verifier(self, data: Path, verifier: Path) -> None:
        task = make_task(data, AR_path=str(verifier))
        state = load_state(verifier)
        model = task.build_model(state["cfg"]["model"])
        task.load_dataset("valid")
        criterion = task.build_criterion(
            OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})
        )
        (sample,) = batches(task, 10_000)
        assert task.valid_step(sample, model.eval(), criterion)[0] > 0

    def test_relaxed_acceptance_is_measured_as_such(self, data: Path, verifier: Path) -> None:
        model, found = make_drafter(make_task(data)), []
        for beta in (1, 24):
            task = make_task(data, AR_path=str(verifier), beta=beta, tau=50.0)
            model.attach_verifier(task.verifier)
            found.append(validate(task, model, data, 10_000)["acceptance_length"])
        assert found[0] + 0.5 < found[1] <= 5

    def test_bleu_is_that_of_the_weights_at_hand(
        self, data: Path, trained: Trained, caplog: pytest.LogCaptureFixture
    ) -> None:
        """--eval-bleu translates with the pair, and says so of a beam; relaxed, it depends on the
        drafter's weights."""
        bleu = {"eval_bleu": True, "eval_bleu_args": '{"beam": 4}'}
        task = make_task(data, AR_path=str(trained.verifier), beta=24, tau=50.0, **bleu)
        model = task.build_model(load_state(trained.drafter)["cfg"]["model"])
        task.load_dataset("valid")
        (sample,) = batches(task, 10_000)
        seen: list[object] = []
        inference_step = task.inference_step

        def tokens(rows: Any) -> list[list[int]]:
            return [row[0]["tokens"].tolist() for row in rows]

        def note(*args: Any, **kwargs: Any) -> Any:
            seen.append(inference_step(*args, **kwargs))
            return seen[-1]

        task.inference_step = note  # type: ignore[method-assign]
        criterion = GlatLoss(task, GlatLossConfig())
        for _ in range(2):
            task.valid_step(sample, model.eval(), criterion)
            expected = task.build_generator([model], Namespace()).generate([], sample)
            assert tokens(seen[-1]) == tokens(expected)
            optimizer = Namespace(backward=torch.Tensor.backward)
            task.train_step(sample, model, criterion, optimizer, 0)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(std=0.5)
        assert tokens(seen[0]) != tokens(seen[1])
        assert "--beam 4: a drafter's validation decodes by drafts, greedily" in caplog.text

    @pytest.mark.parametrize("beam", [1, 3])
    def test_bleu_of_a_verifier_is_stock_fairseqs(
        self, beam: int, data: Path, trained: Trained
    ) -> None:
        """With the beam of --eval-bleu-args."""
        state = load_state(trained.verifier)
        settings = {name: getattr(make_task(data).cfg, name) for name in NEEDED}
        counted = []
        for kind, cfg in (
            (TranslationSpecdecTask, TranslationSpecdecConfig),
            (TranslationTask, TranslationConfig),
        ):
            arguments = json.dumps({"beam": beam, "max_len_b": 9})
            told = {**settings, "eval_bleu": True, "eval_bleu_args": arguments}
            task = kind.setup_task(cfg(**told))
            task.load_dataset("valid")
            model = task.build_model(state["cfg"]["model"])
            model.load_state_dict(state["model"])
            samples = batches(task, 10_000)
            criterion = task.build_criterion(
                OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})
            )
            logs = [task.valid_step(sample, model.eval(), criterion)[2] for sample in samples]
            counted.append([{k: v for k, v in log.items() if "bleu" in k} for log in logs])
        assert counted[0] == counted[1]
        assert counted[0][0]["_bleu_counts_0"] > 0


def test_drafts_would_lack_the_bias_of_an_output(data: Path) -> None:
    """Such as Marian's: training would see it, and drafting not."""
    task: Any = make_task(data)
    names = Namespace(
        source_dictionary=task.source_dictionary,
        target_dictionary=task.target_dictionary,
        cfg=Namespace(block_size=4),
        verifier=make_verifier(task),
    )
    table = names.verifier.decoder.output_projection
    table.bias = torch.nn.Parameter(torch.ones(len(table.weight)))
    model = make_causal(names, **CAUSAL["shared encoder"])
    with pytest.raises(ValueError, match="--AR-path: its output has a bias"):
        task.train_step({}, model, None, None, 0)


class TestOptions:
    @pytest.mark.parametrize(
        "cfg", [{"block_size": 0}, {"left_pad_target": True}, {"start_p": 1.5}, {"minus_p": -1}]
    )
    def test_impossible_settings_are_named(self, cfg: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=f"--{next(iter(cfg)).replace('_', '-')}"):
            bare(**cfg)

    def test_glancing_ratio(self, data: Path) -> None:
        task = make_task(data, total_up=100)
        found = [task.glancing_ratio(update) for update in (0, 50, 100, 1000)]
        assert found == pytest.approx([0.5, 0.4, 0.3, 0.3])
        task = make_task(data, start_p=0.8, minus_p=0.8, total_up=10)
        assert [task.glancing_ratio(u) for u in (0, 5, 10)] == pytest.approx([0.8, 0.4, 0.0])

    def test_the_published_defaults(self, data: Path) -> None:
        cfg = TranslationSpecdecConfig(source_lang="en", target_lang="de", data=str(data))
        assert (cfg.noise, cfg.start_p, cfg.minus_p, cfg.total_up) == ("block_mask", 0.5, 0.2, 3e5)
        assert (cfg.block_size, cfg.beta, cfg.tau) == (None, 1, 0.0)


def bare(**cfg: Any) -> TranslationSpecdecTask:
    """A task without data."""
    config = TranslationSpecdecConfig(source_lang="en", target_lang="de", **cfg)
    return TranslationSpecdecTask(config, make_dictionary(), make_dictionary())


def built(args: Any, make: Any = make_causal, **cfg: object) -> SpeculativeGenerator:
    return bare(**cfg).build_generator([make(), make_verifier()], args)


class TestRoles:
    """A drafter and a verifier are told apart by type, never by order."""

    @pytest.mark.parametrize("make", [make_block, make_causal])
    def test_the_verifier_of_the_task_follows_the_drafter(
        self, make: Callable[..., Drafter], data: Path, verifier: Path
    ) -> None:
        """fairseq-generate moves the models of --path alone to a GPU, or to another type."""
        task = make_task(data, AR_path=str(verifier))
        assert task.verifier is task.verifier
        assert not any(p.requires_grad for p in task.verifier.parameters())
        drafter = make(task).float().double()
        generator = task.build_generator([drafter], Namespace())
        assert {p.dtype for p in generator.model.parameters()} == {torch.float64}
        trained = make(task).float()
        trained.attach_verifier(task.verifier)
        trained.to("meta")
        assert {p.device.type for p in task.verifier.parameters()} == {"meta"}

    def test_either_order(self) -> None:
        verifier, task = make_verifier(), bare(block_size=4)
        for drafter, longest in ((make_block(), 4), (make_causal(), 8)):
            for models in ([drafter, verifier], [verifier, drafter]):
                generator = task.build_generator(models, Namespace())
                assert isinstance(generator, SpeculativeGenerator)
                assert (generator.model, generator.drafter) == (verifier, drafter)
                assert generator.controller.max_length == longest

    @pytest.mark.parametrize(
        ("make", "args", "name"),
        [
            (make_causal, Namespace(), "tree"),
            (make_block, Namespace(), "constant"),
            (make_causal, None, "constant"),
        ],
    )
    def test_the_controller_that_is_recommended(
        self, make: Callable[..., Drafter], args: Namespace | None, name: str
    ) -> None:
        """In validation, where ``args`` are missing, whole blocks are what drafters are judged by;
        another one has to be asked for. That training counted BLEU does not matter afterwards."""
        assert built(args, make).controller.name == name
        assert built(args, make, eval_bleu=True).controller.name == name
        assert built(args, make, controller="heuristic").controller.name == "heuristic"

    @pytest.mark.parametrize("args", [None, Namespace(beam=1), OmegaConf.create({"beam": 1})])
    def test_options_of_the_task_where_fairseq_says_nothing(self, args: Any) -> None:
        """Which is so in validation, and with ``--eval-bleu-args``; the hub may say others."""
        sampling = {"sampling": True, "sampling_topk": 3, "temperature": 0.7}
        drawn, penalised = built(args, **sampling), built(args, repetition_penalty=1.5)
        assert (drawn.rule, drawn.limits.temperature) == (SamplingRule(sampling_topk=3), 0.7)
        assert penalised.limits.repetition_penalty == 1.5
        others = {"sampling": False, "sampling_topk": -1, "temperature": 2.0}
        greedy = built(Namespace(**others, repetition_penalty=2.0), **sampling)
        assert (greedy.rule, greedy.limits.temperature) == (StrictRule(), 2.0)
        assert greedy.limits.repetition_penalty == 2.0

    def test_not_one_of_each(self) -> None:
        """A verifier alone is searched by fairseq, which has no repetition penalty."""
        drafter, verifier, task = make_causal(), make_verifier(), bare()
        stock = task.build_generator([verifier], Namespace(beam=3))
        assert (type(stock), stock.beam_size) == (SequenceGenerator, 3)
        for models in ([drafter], [drafter, drafter, verifier], [drafter, verifier, verifier]):
            with pytest.raises(ValueError, match=r"one drafter and one verifier|no verifier"):
                task.build_generator(models, Namespace())
        with pytest.raises(ValueError, match="repetition"):
            task.build_generator([verifier], Namespace(repetition_penalty=1.5))


@pytest.mark.parametrize("flag", ["--fp16", "--amp"])
def test_training_for_a_gpu_is_refused_on_a_cpu(data: Path, tmp_path: Path, flag: str) -> None:
    """fairseq's trainer would fail, or say nothing and train in float32."""
    with pytest.raises(SystemExit, match=flag):
        run_train(data, tmp_path, f"{CAUSAL_FLAGS} {flag}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("flags", [PUBLISHED_FLAGS, LENT_FLAGS])
def test_precisions_of_a_gpu(flags: str, data: Path, verifier: Path, tmp_path: Path) -> None:
    flags = f"{flags.replace('VERIFIER', str(verifier))} --max-update 3 --no-save"
    losses = []
    for precision in ("", "--bf16", "--fp16 --fp16-init-scale 4", "--amp"):
        logs = run_train(data, tmp_path, f"{flags} {precision}", cpu=False)
        losses.append([log["loss"] for log in logs.of("train_inner")])
    for found in losses[1:]:
        assert found == pytest.approx(losses[0], rel=0.05)
