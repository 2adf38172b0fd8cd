"""The configuration that reaches fairseq: known fields, each of its type."""

from __future__ import annotations

import pickle
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import examples
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import get_available_activation_fns
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from test_loading import make_model_args, make_state, make_task

from specdec_plugins.checkpoints.config import known_fields, saved_model, saved_task
from specdec_plugins.checkpoints.loading import load_model
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

CAUSAL = {"_name": "block_causal", "block_size": 3, "share_verifier_encoder": True}
MODELS = {
    "transformer": vars(make_model_args()),
    "block": {**vars(make_model_args()), "_name": "block", "arch": "block", "block_size": 3},
    "block_causal": CAUSAL,
}
# Where stock fairseq evaluates a string of the configuration, or opens what it names.
EVALUATED = (
    "adaptive_softmax_cutoff",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
    "encoder_embed_path",
    "decoder_embed_path",
    "left_pad_source",
    "pipeline_balance",
    "character_filters",
    "user_dir",
    "model_overrides",
    "quantization_config_path",
)


def harmful(trace: Path) -> str:
    """An expression that leaves a file behind where it is evaluated."""
    return f"[__import__('pathlib').Path({str(trace)!r}).touch() or 5, 6]"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@cache
def good_state() -> dict[str, object]:
    """A checkpoint, made once; not to be changed."""
    return make_state(make_task())


def every_field(name: str) -> list[str]:
    return sorted(known_fields(name))


def load(folder: Path, values: dict[str, Any], form: str = "dict") -> str | None:
    """Load a checkpoint of this configuration; its complaint, if any, is one line."""
    config: Any = Namespace(**values) if form in ("namespace", "args") else values
    if form == "omegaconf":
        config = OmegaConf.create(values)
    saved = {"model": config, "task": {"_name": "translation", "source_lang": "en"}}
    named = {"cfg": None, "args": config} if form == "args" else {"cfg": saved}
    path = folder / "crafted.pt"
    torch.save({**good_state(), **named}, path)
    try:
        load_model(path, make_task())
    except CheckpointError as error:
        message = str(error)
    else:
        return None
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


class TestNothingIsRun:
    def test_stock_fairseq_would(self, trace: Path) -> None:
        """Without this there would be nothing to protect from."""
        args = make_model_args()
        args.adaptive_softmax_cutoff = harmful(trace)
        make_task().build_model(args)
        assert trace.exists()

    @pytest.mark.parametrize("form", ["namespace", "dict", "omegaconf", "args"])
    def test_of_a_transformer(self, form: str, tmp_path: Path, trace: Path) -> None:
        for field in EVALUATED:
            load(tmp_path, {**vars(make_model_args()), field: harmful(trace)}, form)
        assert not trace.exists()

    @pytest.mark.parametrize("model", MODELS)
    def test_of_any_known_field(self, model: str, tmp_path: Path, trace: Path) -> None:
        for field in every_field(model):
            load(tmp_path, {**MODELS[model], field: harmful(trace)})
        assert not trace.exists()

    def test_of_any_architecture(self, tmp_path: Path, trace: Path) -> None:
        """All that fairseq knows: no Transformer, no model."""
        bad = dict.fromkeys(("encoder_layers", "decoder_layers", *EVALUATED), harmful(trace))
        for arch in ARCH_MODEL_REGISTRY:
            assert load(tmp_path, {"_name": arch, "arch": arch, **bad}, "namespace")
        assert not trace.exists()

    def test_where_fairseq_loads_the_task_looks(self, trace: Path) -> None:
        """``fairseq-generate`` and the hub read the file; the task builds the model."""
        args = make_model_args()
        args.adaptive_softmax_cutoff = harmful(trace)
        dictionary = make_task().source_dictionary
        config = TranslationSpecdecConfig(source_lang="en", target_lang="de")
        task = TranslationSpecdecTask(config, dictionary, dictionary)
        with pytest.raises(ConfigError):
            task.build_model(args, from_checkpoint=True)
        assert not trace.exists()


ODD: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.integers(min_value=10**9), st.floats()),
        *(st.text(max_size=20), st.binary(max_size=5), st.just(":")),
        st.sampled_from(["${oc.env:HOME}", "1+1", "relu", "0,1", "__import__('os')", 1 << 5000]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)


class TestTypes:
    @given(st.data())
    @examples(300)
    def test_any_value_of_any_field_is_taken_as_its_type_or_refused(
        self, data: st.DataObject
    ) -> None:
        name = data.draw(st.sampled_from(sorted(MODELS)))
        field = data.draw(st.sampled_from([*every_field(name), "unheard_of", "task"]))
        value = data.draw(ODD)
        form = data.draw(st.sampled_from([dict, Namespace]))
        values = {**MODELS[name], field: value}
        message, saved = "", {}
        try:
            saved = vars(saved_model(values if form is dict else Namespace(**values)))
        except ConfigError as error:
            message = str(error)
        assert "\n" not in message
        assert len(message) < 400
        assert set(saved) <= {*every_field(name), "arch", "_name"}
        stored = saved.get(field)
        assert stored is None or isinstance(stored, (bool, int, float, str))
        if isinstance(stored, str):  # no text of the file's author's own
            assert stored in get_available_activation_fns() or set(stored) <= set("0123456789,")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("encoder_layers", value) for value in ("6", True, 10**9, 2.0, -1, 1 << 900)),
            ("dropout", float("nan")),
            ("activation_fn", "eval"),
            ("decoder_layers_to_keep", "0,__import__"),
        ],
    )
    def test_values_that_do_not_fit(self, field: str, value: object) -> None:
        with pytest.raises(ConfigError, match=field):
            saved_model(Namespace(**{**MODELS["transformer"], field: value}))

    @pytest.mark.parametrize(
        "field",
        [
            *("adaptive_softmax_cutoff", "encoder_xformers_att_config", "base_layers"),
            *("decoder_xformers_att_config", "merge_src_tgt_embed", "quant_noise_scalar"),
        ],
    )
    def test_another_network_is_refused(self, field: str) -> None:
        """Under the name of its option, and unless the option is off."""
        off = vars(saved_model({**MODELS["transformer"], field: None}))
        assert not off.get(field)
        for value in (0.5, 2, True, "1"):
            with pytest.raises(ConfigError, match=field):
                saved_model({**MODELS["transformer"], field: value})

    def test_known_fields_stay(self) -> None:
        args = make_model_args()
        args.decoder_input_dim = "12"  # numbers that fairseq saves as text
        saved = saved_model({**vars(args), "init_encoder_from": "verifier.pt"})
        assert vars(saved) == {**vars(args), "decoder_input_dim": 12}

    def test_a_structure_that_is_large_when_written_out(self) -> None:
        bomb: Any = ["x"]
        for _ in range(60):
            bomb = [bomb, bomb]
        bomb = pickle.loads(pickle.dumps(bomb))
        with pytest.raises(ConfigError, match="decoder_layers"):
            saved_model({**CAUSAL, "decoder_layers": bomb})


@pytest.mark.parametrize("name", ["language_modeling", "translation_from_pretrained_bart", 3])
def test_a_task_of_another_kind_is_refused(name: object) -> None:
    with pytest.raises(ConfigError):
        saved_task({"_name": name})


@pytest.mark.parametrize("name", ["rdrop_translation", "__import__('os').abort()"])
def test_a_task_of_somebodys_user_dir_is_translation(name: str) -> None:
    saved = saved_task({"_name": name, "source_lang": "en", "alpha": 5})
    assert vars(saved) == {"_name": "translation", "source_lang": "en"}


def test_old_checkpoints_say_languages() -> None:
    args = Namespace(task="translation", source_lang="en", left_pad_source="True", data=["x"])
    assert vars(saved_task(args)) == {"source_lang": "en", "_name": "translation"}
