"""Folders as fairseq's checkpoints, and a fairseq checkpoint as a folder."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import encoders
from fairseq.sequence_generator import SequenceGenerator
from helpers.models.folders import FAMILIES, LINES, import_transformers, make_marian
from helpers.models.stand_ins import JOINT, PRE_NORM, StandIn, without_versions
from helpers.runs.scripts_here import run

import specdec_plugins
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli.export_checkpoint import main
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.pair_folder import copy_segmentation, verifier_settings
from specdec_plugins.jobs.make_pair import stages
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.verifiers.families import family_of
from specdec_plugins.verifiers.network import OUTPUT_BIAS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WMT = Path(__file__).parents[2] / "checkpoints" / "wmt.en-de"
OF_FAIRSEQ = (
    f". --user-dir {Path(specdec_plugins.__file__).parent} --task translation -s en -t de --cpu "
    "--dataset-impl raw --batch-size 1 --num-workers 0"
)
FINE_TUNE = f"""
fairseq-train {OF_FAIRSEQ} --finetune-from-model verifier.pt --save-dir new --arch transformer \\
    --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-layers 2 \\
    --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-layers 2 \\
    --encoder-attention-heads 4 --encoder-learned-pos --max-source-positions 64 \\
    --decoder-attention-heads 4 --decoder-learned-pos --max-target-positions 64 \\
    --activation-fn swish --optimizer adam --lr 1e-4 --max-update 1 --disable-validation &&
fairseq-generate {OF_FAIRSEQ} --path new/checkpoint_last.pt --gen-subset train --max-len-b 20
"""
EXACT = {"engine": "eager", "precision": "float64", "strategy": "AR"}


def export(*argv: object) -> None:
    main.__wrapped__([*map(str, argv)])


def flags_of(languages: dict[str, str]) -> list[str]:
    return ["-s", languages["source_lang"], "-t", languages["target_lang"]] if languages else []


def tokens(settings: Settings, lines: list[str]) -> list[list[str]]:
    return [translation.tokens for translation in load_translator(settings).translate(lines)]


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart"])
@torch.no_grad()
def test_stock_fairseq_loads_it(kind: str, tmp_path: Path) -> None:
    """The bias is folded into other weights, and targets begin with EOS or their language."""
    folder, path = tmp_path / kind, tmp_path / "new" / "verifier.pt"
    make, languages = FAMILIES[kind]
    # Stock fairseq lacks swish.
    make(folder, activation_function="relu")
    export(folder, path, *flags_of(languages))
    state = load_state(path)
    assert OUTPUT_BIAS not in state["model"]
    overrides = {"data": str(path.parent)}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    model = model.double().eval()
    options = {"beam_size": 1, "max_len_b": 28, "min_len": 0}
    search = SequenceGenerator([model], task.target_dictionary, **options)
    ours = load_translator(Settings.of_model(folder, **EXACT, **languages))
    tokens = ours.codec.tokens
    begin = {"prefix_tokens": torch.tensor([tokens.forced]) if tokens.forced else None}
    for number, line in enumerate(LINES, 1):
        ids = ours.codec.encode(Line(number, line))
        net_input = {"src_tokens": ids[None], "src_lengths": torch.tensor([len(ids)])}
        sample = {"net_input": net_input}
        outputs = search.generate([model], sample, bos_token=tokens.begin, **begin)
        (translation,) = ours.translate([line])
        stock = [task.target_dictionary[i] for i in outputs[0][0]["tokens"]]
        assert stock == translation.tokens


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_checkpoint_is_the_folder(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gives the same words, by text that is segmented by the model beside it; but for Marian's
    codes of languages, which are named."""
    caplog.set_level("WARNING")
    folder, path = tmp_path / "folder", tmp_path / "out" / "verifier.pt"
    path.parent.mkdir()
    make, pair = FAMILIES[kind]
    make(folder)
    export(folder, path, *flags_of(pair))
    whole = Settings.of_model(folder, **EXACT, **pair)
    settings = Settings.of_model(path.parent, **EXACT, **pair, limits=whole.limits)
    assert settings.ar_path == str(path)
    first, second = (load_translator(item) for item in (whole, settings))
    for line in LINES:
        assert first.codec.segment(line) == second.codec.segment(line)
    assert tokens(whole, LINES) == tokens(settings, LINES)
    assert ("a target language such as >>deu<<" in caplog.text) == (kind == "marian")
    assert "unknown fields" not in caplog.text
    options = family_of(folder).segmentation
    files = {n: str(path.parent / name) for n, name in options.items() if "_" in n}
    stock = encoders.build_bpe(Namespace(bpe=options["bpe"], **files))
    assert first.codec.segment(LINES[0]) == stock.encode(LINES[0])


@pytest.mark.slow
def test_fairseq_fine_tunes_it(tmp_path: Path) -> None:
    """Its own commands load it with ``--user-dir``."""
    make_marian(tmp_path / "folder")
    export(tmp_path / "folder", tmp_path / "verifier.pt", "-s", "en", "-t", "de")
    for language in ("en", "de"):
        (tmp_path / f"train.en-de.{language}").write_text("t h e d o g\ns n o w\n", "utf-8")
    assert "\nH-1\t" in run("sh", "-c", FINE_TUNE, folder=tmp_path, status=0).stdout


def without_near_ties(model: PreTrainedModel, ids: torch.Tensor, output: list[int]) -> bool:
    """Whether transformers prefers each token of an output by more than rounding."""
    begun = torch.tensor([[2, *output[:-1]]])
    best = model(input_ids=ids, decoder_input_ids=begun).logits[0].topk(2).values
    return bool((best[:, 0] - best[:, 1]).min() > 1e-4)


@torch.no_grad()
def test_the_shipped_verifier_is_an_m2m(tmp_path: Path) -> None:
    transformers = import_transformers()
    export(WMT / "verifier.pt", tmp_path, "--to", "transformers")
    lines = sorted((WMT / "example.en").read_text("utf-8").splitlines(), key=len)[:6]
    checkpoint = Settings.of_model(WMT, path=None, **EXACT)
    folder = Settings.of_model(tmp_path, **EXACT)
    assert folder.limits == checkpoint.limits
    wanted = tokens(checkpoint, lines)
    assert tokens(folder, lines) == wanted
    translator = load_translator(Settings.of_model(tmp_path))
    assert [translation.tokens for translation in translator.translate(lines)] == wanted
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).double().eval()
    codec = translator.codec
    for line, output in zip(lines, wanted):
        ids = codec.encode(Line(1, line))[None]
        ours = [codec.target.index(symbol) for symbol in output]
        theirs = model.generate(input_ids=ids, num_beams=1, do_sample=False)[0].tolist()[1:]
        assert theirs == ours or not without_near_ties(model, ids, ours)


@pytest.mark.parametrize("segmented", [True, False])
def test_a_checkpoint_comes_back_from_a_folder(segmented: bool, tmp_path: Path) -> None:
    """With the codes that its text is segmented by, or with none."""
    import_transformers()
    pair, folder, back = (tmp_path / name for name in ("pair", "folder", "back"))
    pair.mkdir()
    for name in ("verifier.pt", "dict.en.txt", "dict.de.txt", *["codes"] * segmented):
        (pair / name).symlink_to(WMT / name)
    export(WMT / "verifier.pt", folder, "--to", "transformers", "--dictionaries", pair)
    export(folder, back / "verifier.pt", "-s", "en", "-t", "de")
    lines = ["The quick brown fox jumps over the lazy dog.", "T@@ wo do@@ gs ."]
    wanted, *others = (
        Settings.of_model(path, **{**EXACT, "path": None}) for path in (pair, folder, back)
    )
    assert {(other.tokenizer, other.bpe) for other in others} == {(wanted.tokenizer, wanted.bpe)}
    first, *rest = (load_translator(settings) for settings in (wanted, *others))
    for line in lines:
        assert {" ".join(x.codec.segment(line)) for x in rest} == {
            " ".join(first.codec.segment(line))
        }
    assert tokens(others[1], lines) == tokens(wanted, lines)
    sources = tmp_path / "sources"
    sources.write_text("\n".join(lines) + "\n", "utf-8")
    made = Settings(**{**verifier_settings(folder, None), "strategy": "AR"})
    job = PairJob(made, sources, tmp_path / "out", lambda *_: "", quiet=True)
    stages.check(job, {})
    files = {path.name for path in (tmp_path / "out" / "pair").iterdir()}
    assert ("codes" in files) == segmented


def test_a_checkpoint_leaves_another_models_files_alone(tmp_path: Path) -> None:
    """Its dictionaries would fit the other model no longer."""
    make_marian(tmp_path / "hf")
    other = tmp_path / "other"
    other.mkdir()
    (other / "dict.en.txt").write_text("a 1\n")
    argv = [tmp_path / "hf", other / "verifier.pt", "-s", "en", "-t", "de"]
    with pytest.raises(InferenceError, match=r"dict\.en\.txt beside it is another model's"):
        export(*argv)
    assert (other / "dict.en.txt").read_text() == "a 1\n"
    (other / "dict.en.txt").unlink()
    export(*argv)
    (other / "dict.en.txt").write_text("a 1\n")
    export(*argv, "--half")  # itself, whose files are replaced
    assert (other / "dict.en.txt").read_text() != "a 1\n"
    export(argv[0], other / "again.pt", *argv[2:])  # whose files are the same


def test_files_of_other_names_are_copied(tmp_path: Path) -> None:
    folder, target = tmp_path / "from", tmp_path / "to"
    folder.mkdir()
    target.mkdir()
    options = {"tokenizer": "moses", "bpe": "subword_nmt", "bpe_codes": "my.codes"}
    (folder / "segmentation.json").write_text(json.dumps(options))
    (folder / "my.codes").write_text("#version: 0.2\n")
    names = sorted(path.name for path in copy_segmentation(folder, target))
    assert names == ["my.codes", "segmentation.json"]
    assert (target / "my.codes").read_text() == "#version: 0.2\n"


def test_a_folder_of_transformers_has_no_drafter(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("words\n", "utf-8")
    flags = ("--to", "transformers", "--draft-vocabulary", 9, "--draft-text", text)
    with pytest.raises(ValueError, match="holds no drafter"):
        export(WMT / "verifier.pt", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["old", "no final norm", "bias"])
def test_parts_of_the_network_that_no_option_tells(kind: str, tmp_path: Path) -> None:
    """transformers would load the folder with parts of its own, or without ours."""
    options = {**PRE_NORM, **JOINT, "no_decoder_final_norm": kind == "no final norm"}
    changes = {"old": (without_versions,), "bias": (with_output_bias,)}
    stand_in = StandIn(options, changes.get(kind, ()))
    path = stand_in.save(tmp_path / "verifier.pt")
    lacking = "no bias of its output" if kind == "bias" else "a norm after the last layer"
    with pytest.raises(RuntimeError, match=f"an M2M-100 has {lacking}; the model has not"):
        export(path, tmp_path / "out", "--to", "transformers")


def with_output_bias(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**weights, OUTPUT_BIAS: torch.ones(len(weights["decoder.embed_tokens.weight"]))}


def test_a_network_that_is_no_m2m(tmp_path: Path) -> None:
    folder, path = tmp_path / "marian", tmp_path / "verifier.pt"
    make_marian(folder)
    export(folder, path)
    with pytest.raises(RuntimeError, match="an M2M-100 has --share-all-embeddings"):
        export(path, tmp_path / "out", "--to", "transformers")
