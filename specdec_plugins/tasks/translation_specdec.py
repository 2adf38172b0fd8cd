"""Task ``translation_specdec``: train a drafter, and generate speculatively with the pair."""

from __future__ import annotations

import json
import logging
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from unittest.mock import patch

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.optim import FairseqOptimizer
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from specdec_plugins.checkpoints import multilingual, pair
from specdec_plugins.checkpoints.config import saved_model, stored_languages
from specdec_plugins.checkpoints.loading import KEY, check_dictionaries, fingerprints
from specdec_plugins.checkpoints.multilingual import LanguageTokens, Multilingual, adopt
from specdec_plugins.data import block_mask
from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.controllers.base import controller_of
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits, check_stock_search
from specdec_plugins.decoding.options import check_options
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.host import repeated_ngrams  # noqa: F401  which mends fairseq
from specdec_plugins.host.checkpoints import use_plain_encoder
from specdec_plugins.host.fairseq_types import LogOutput, Sample
from specdec_plugins.host.subword_codes import warn_of_locale
from specdec_plugins.host.training import WholePairs, autocast, refuse_precision
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.tasks.generation import (
    generation_options,
    pair_of,
    searched_models,
    speculative_generator,
    verifiers_of,
)
from specdec_plugins.tasks.language_data import add_languages
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig

logger = logging.getLogger(__name__)


@register_task("translation_specdec", dataclass=TranslationSpecdecConfig)
class TranslationSpecdecTask(TranslationTask):
    """Translation with a drafter and a verifier."""

    cfg: TranslationSpecdecConfig

    def __init__(
        self, cfg: TranslationSpecdecConfig, src_dict: Dictionary, tgt_dict: Dictionary
    ) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        check_options(cfg, TranslationSpecdecConfig)
        if cfg.left_pad_target:
            raise ValueError("--left-pad-target: blocks are cut from right-padded targets")
        options = generation_options(None, cfg)
        self.rule = choose_rule(vars(options))
        self.controller = controller_of(vars(options))
        self.limits = GenerationLimits.from_config(cfg)
        #: The languages of the models, known when they are loaded.
        self.multilingual: Multilingual | None = None
        self.language_tokens = LanguageTokens()
        self._trains = False
        self._slots = 0
        self._validating: tuple[BaseFairseqModel, SpeculativeGenerator] | None = None

    def set_languages(self, languages: Multilingual, tokens: LanguageTokens) -> None:
        """Set the languages of the models, and the tokens of this direction."""
        self.multilingual = languages
        self.language_tokens = tokens

    @cached_property
    def verifier(self) -> TransformerModelBase | None:
        """The frozen verifier of ``--AR-path``, if there is one."""
        return pair.load_verifier(self.cfg.AR_path, self) if self.cfg.AR_path else None

    def load_drafter(self, path: str) -> Drafter:
        """Return the frozen drafter of a checkpoint, with the verifier of ``--AR-path``."""
        verifier = self.verifier
        return self._joined(pair.load_drafter(path, self), verifier)

    def _joined(self, drafter: Drafter, verifier: TransformerModelBase | None) -> Drafter:
        """Let a drafter's targets begin as the verifier's do, and attach it."""
        if self.language_tokens.begin is not None:
            drafter.begin_with(self.language_tokens.begin)
        if verifier is not None:
            pair.check_pair(drafter, verifier)
        return drafter

    @classmethod
    def setup_task(cls, cfg: TranslationSpecdecConfig, **kwargs: object) -> TranslationSpecdecTask:
        """Set up the task as fairseq does, with a warning where it will not read UTF-8."""
        warn_of_locale()
        return super().setup_task(cfg, **kwargs)

    def build_model(
        self, cfg: FairseqDataclass | Namespace, from_checkpoint: bool = False
    ) -> BaseFairseqModel:
        if from_checkpoint:
            # Where fairseq loads the weights, nobody checked cfg.
            cfg = saved_model(cfg, self.cfg.as_transformer)
            # For --eval-bleu fairseq would build a generator of weights that are not loaded yet.
            with patch.object(self, "build_generator", lambda *_: None):
                model = super().build_model(cfg, from_checkpoint)
            use_plain_encoder(model)
            return model
        refuse_precision(self.cfg)
        self._trains = True
        # First, since it may add languages to the dictionaries.
        verifier = self.verifier
        if getattr(cfg, "block_size", 0) is None:
            cfg.block_size = 5  # written in place, so that the checkpoint states it
        model = super().build_model(cfg, from_checkpoint)
        use_plain_encoder(model)
        if isinstance(model, Drafter):
            if (start := getattr(cfg, "init_encoder_from", None)) and model.encoder is not None:
                pair.init_encoder_from(model.encoder, start, self, model.exact_encoder)
            if self.cfg.blocks_per_sentence > 1 and not model.decoder.causal:
                raise ValueError("--blocks-per-sentence: --arch block can score one block a pass")
            self._joined(model, verifier)
            self._slots = self.cfg.blocks_per_sentence * model.block_size
        return model

    def state_dict(self) -> dict[str, object]:
        """Return the dictionaries' fingerprints and the languages, for checkpoints."""
        state = {**super().state_dict(), KEY: fingerprints(self)}
        if self.multilingual is not None:
            state[multilingual.KEY] = self.multilingual.options()
        return state

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Check the state of a checkpoint that fairseq loads."""
        name = "a checkpoint of --path"
        if (languages := stored_languages(state_dict)) is not None:
            adopt(languages, self, name)
        check_dictionaries(state_dict, self, name)
        super().load_state_dict(
            {key: x for key, x in state_dict.items() if key not in (KEY, multilingual.KEY)}
        )

    def load_dataset(self, split: str, *args: object, **kwargs: object) -> None:
        """Load a split as fairseq does, but drop no sentence. In a drafter's training, sizes of
        batches count the slots of blocks, too."""
        super().load_dataset(split, *args, **kwargs)
        pairs = self.datasets[split]
        WholePairs.adopt(pairs, self._slots)
        add_languages(pairs, self.language_tokens)

    def build_dataset_for_inference(self, *args: object, **kwargs: object) -> FairseqDataset:
        """Build it as fairseq does; sources have their language."""
        pairs = super().build_dataset_for_inference(*args, **kwargs)
        add_languages(pairs, self.language_tokens)
        return pairs

    def inference_step(
        self,
        generator: SpeculativeGenerator | SequenceGenerator,
        models: list[BaseFairseqModel],
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[Hypothesis]]:
        """Generate as fairseq does; targets begin with ``prefix_tokens``, else their language."""
        tokens = self.language_tokens
        source = sample["net_input"]["src_tokens"]
        if prefix_tokens is None and tokens.forced:
            prefix_tokens = source.new_tensor(tokens.forced).expand(len(source), -1)
        with torch.no_grad():
            return generator.generate(
                models,
                sample,
                prefix_tokens=prefix_tokens,
                constraints=constraints,
                bos_token=tokens.begin,
            )

    def glancing_ratio(self, update: int) -> float:
        """Return the ratio: from ``start_p`` down by ``minus_p`` over ``total_up`` updates."""
        part = min(1.0, max(0.0, update / self.cfg.total_up))
        return max(0.0, self.cfg.start_p - self.cfg.minus_p * part)

    def _add_noise(self, sample: Sample, seed: int, ratio: float) -> None:
        """Complete a batch by noise that depends on ``seed`` and each sentence's id alone."""
        target = sample["target"]
        seeds = block_mask.sentence_seeds(sample["id"].to(target.device), seed)
        uniforms = block_mask.sentence_uniforms(
            seeds, block_mask.CUTS, self.cfg.blocks_per_sentence
        )
        # Forced tokens are never drafted.
        forced = len(self.language_tokens.forced)
        lengths = target.ne(self.target_dictionary.pad()).sum(1) - forced
        cuts = forced + block_mask.sample_cuts(lengths, uniforms)
        sample.update({"seeds": seeds, "cuts": cuts, "glancing_ratio": ratio})

    def train_step(
        self,
        sample: Sample,
        model: BaseFairseqModel,
        criterion: FairseqCriterion,
        optimizer: FairseqOptimizer,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Tensor, Tensor, LogOutput]:
        """Train as fairseq does, with noise that depends on the update's seed and the sentence
        alone: several workers, to which fairseq gives the same seed, draw as a single process."""
        drafter = pair.unwrapped(model)
        is_drafter = isinstance(drafter, Drafter)
        if is_drafter and drafter.decoder.tables.output_projection.bias is not None:
            raise ValueError(
                "--AR-path: its output has a bias, which drafts would lack; give the file that "
                "specdec-export writes"
            )
        self._validating = None  # its weights are about to change
        self._add_noise(sample, torch.initial_seed(), self.glancing_ratio(update_num))
        name = self.cfg.autocast
        with nullcontext() if name is None else autocast(str(name), model, sample):
            return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(
        self, sample: Sample, model: BaseFairseqModel, criterion: FairseqCriterion
    ) -> tuple[Tensor, Tensor, LogOutput]:
        """Return the loss on fixed prefixes, and a drafter's acceptance length."""
        model = pair.unwrapped(model)
        self._add_noise(sample, 0, 0.0)
        if self.verifier is None or not isinstance(model, Drafter):
            return super().valid_step(sample, model, criterion)
        model.attach_verifier(self.verifier)  # not yet done where fairseq-validate loaded it
        generator = self._validation_generator(model)
        statistics = generator.statistics = DecodingStatistics()
        result = super().valid_step(sample, model, criterion)
        if not self.cfg.eval_bleu:  # else that has decoded the batch
            self.inference_step(generator, [model], sample)
        result[2].update(_committed=statistics.committed_tokens, _steps=statistics.steps)
        return result

    def _validation_generator(self, model: BaseFairseqModel) -> SpeculativeGenerator:
        """Return the generator of a validation run: it packs the present weights."""
        if self._validating is None or self._validating[0] is not model:
            args = None
            if self.cfg.eval_bleu:
                args = Namespace(**json.loads(self.cfg.eval_bleu_args))
            self._trains = True  # also in fairseq-validate, which has loaded the model
            self._validating = model, self.build_generator([model], args)
        return self._validating[1]

    def _inference_with_bleu(
        self, _generator: object, sample: Sample, model: BaseFairseqModel
    ) -> LogOutput:
        # fairseq's generator was built together with the model, from its first weights.
        return super()._inference_with_bleu(self._validation_generator(model), sample, model)

    def reduce_metrics(self, logging_outputs: list[LogOutput], criterion: FairseqCriterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        steps = sum(log.get("_steps", 0) for log in logging_outputs)
        if steps > 0:
            committed = sum(log["_committed"] for log in logging_outputs)
            metrics.log_scalar("acceptance_length", committed / steps, steps, round=4)

    def build_generator(
        self,
        models: list[BaseFairseqModel],
        args: FairseqDataclass | Namespace | None,
        seq_gen_cls: type | None = None,
        extra_gen_cls_kwargs: dict[str, object] | None = None,
        prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
    ) -> SpeculativeGenerator | SequenceGenerator:
        """Return a :class:`SpeculativeGenerator` if the models include a drafter and ``--beam`` is
        1, else fairseq's over our engine.

        Models are told apart by type, never by order.
        """
        models = [pair.unwrapped(model) for model in models]
        options = generation_options(args, self.cfg)
        unprinted = {self.language_tokens.target} - {None}
        drafted = any(isinstance(model, Drafter) for model in models)
        trains = args is None or self._trains
        if drafted and options.beam > 1:
            fault = "--beam %d: beams take no drafts, --beam 1 does"
            if trains:
                fault = "--beam %d: a drafter's validation decodes by drafts, greedily"
            logger.warning(fault, options.beam)
        if not drafted or (options.beam > 1 and not trains):
            check_stock_search(vars(options))
            searched = searched_models(verifiers_of(models, self.verifier), options, trains)
            return super().build_generator(
                searched,
                args,
                seq_gen_cls,
                {**(extra_gen_cls_kwargs or {}), "symbols_to_strip_from_output": unprinted},
                prefix_allowed_tokens_fn,
            )
        if prefix_allowed_tokens_fn is not None:
            raise ValueError("prefix_allowed_tokens_fn: not supported by speculative decoding")
        verifier, drafter = pair_of(models, self.verifier)
        generator = speculative_generator(verifier, drafter, options, trains)
        generator.symbols_to_strip_from_output |= unprinted
        return generator


@register_task("translation_lev_modified", dataclass=TranslationSpecdecConfig)
class TranslationLevModifiedTask(TranslationSpecdecTask):
    """``translation_specdec`` under its published name."""
