"""Text in and out by fairseq's tokenizers and BPEs, whose files lie in the model's folder."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_verifier
from fairseq.data import Dictionary, encoders
from helpers.models.drafters import make_task, save_checkpoint

from specdec_plugins.cli import inference, make_pair
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flags import make_settings
from specdec_plugins.inference.pair_folder import segmentation_beside, verifier_settings
from specdec_plugins.inference.report import model_files

LINES = [
    "the small house stands in the garden",
    "a garden is small, and a house is smaller",
    "in the house: a house-cat",
    "smaller gardens stand  still",
]
PAIRS = "i n</w>\ne n\n"
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def save_model(folder: Path, dictionary: Dictionary) -> None:
    """A verifier whose dictionaries both are this one."""
    for language in LANGUAGES.values():
        dictionary.save(str(folder / f"dict.{language}.txt"))
    model = make_verifier(make_task(dictionary))
    path = save_checkpoint(folder / "verifier.pt", model, **LANGUAGES)
    torch.save({**torch.load(path, weights_only=False), "task_state": {}}, path)


def load(folder: Path, **given: Any) -> Any:
    limits = GenerationLimits(max_len_b=8)
    return load_translator(Settings.of_model(folder, limits=limits, **{"strategy": "AR", **given}))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a SentencePiece model, and a verifier of its pieces."""
    trainer = pytest.importorskip(
        "sentencepiece", reason="the extra [sentencepiece] is not installed"
    ).SentencePieceTrainer
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text").write_text("\n".join(LINES * 5), "utf-8")
    prefix = str(folder / "sentencepiece.bpe")
    options: Any = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    trainer.train(input=str(folder / "text"), model_prefix=prefix, **options)
    dictionary = Dictionary()
    for line in Path(f"{prefix}.vocab").read_text("utf-8").splitlines()[3:]:
        dictionary.add_symbol(line.split("\t")[0])
    dictionary.pad_to_multiple_(8)  # fairseq-preprocess adds madeupword0000 and so on
    save_model(folder, dictionary)
    return folder


def test_pieces_are_fairseqs(pieces: Path) -> None:
    codec = load(pieces).codec
    model = str(pieces / "sentencepiece.bpe.model")
    stock = encoders.build_bpe(Namespace(bpe="sentencepiece", sentencepiece_model=model))
    for number, line in enumerate(LINES, 1):
        ids = codec.encode(Line(number, line))
        expected = codec.source.encode_line(stock.encode(line), add_if_not_exist=False).long()
        assert ids.tolist() == expected.tolist()
        assert codec.source.unk() not in ids
        assert codec.decode(ids) == " ".join(line.split())
    settings = Settings.of_model(pieces, strategy="AR")
    assert (settings.tokenizer, settings.bpe) == ("space", "sentencepiece")
    assert model_files(settings)["sentencepiece.bpe.model"] == model
    for translation in load(pieces).translate(LINES):
        assert "\u2581" not in translation.text
        assert translation.text == translation.text.strip()
    with pytest.raises(InferenceError):
        load(pieces, encoder_options={"sentencepiece_model": str(pieces / "other.model")})


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder with a verifier of whole words, some of which its dictionary names twice."""
    text = sorted({word for line in LINES for word in line.split()})
    lines = [*(f"{word} 5\n" for word in text), "the 3 #fairseq:overwrite\nmadeupword0000 0\n"]
    (tmp_path / "dict").write_text("".join(lines), "utf-8")
    dictionary = Dictionary.load(str(tmp_path / "dict"))
    assert dictionary.index("the") == len(dictionary) - 2
    save_model(tmp_path, dictionary)
    for language in LANGUAGES.values():
        shutil.copy(tmp_path / "dict", tmp_path / f"dict.{language}.txt")
    return tmp_path


def test_codes_are_found_by_any_of_their_names(words: Path) -> None:
    for name in ("codes", "code", "bpecodes"):
        (words / name).write_text("#version: 0.2\nt h\n", "utf-8")
        translator = load(words, bpe="subword_nmt")
        assert model_files(translator.settings)[name] == str(words / name)
        assert len(translator.codec.encode(Line(1, "the"))) == 3  # th@@ e </s>
        (words / name).unlink()


@pytest.mark.parametrize("codes", [PAIRS, f"#version: 0.2\n{PAIRS}", f"{PAIRS}\n\n", "i n\r\n"])
def test_codes_of_every_version(codes: str, tmp_path: Path) -> None:
    texts = []
    for mark in ("", "\ufeff"):
        (tmp_path / "codes").write_text(mark + codes, "utf-8", newline="")
        options = Namespace(bpe="subword_nmt", bpe_codes=str(tmp_path / "codes"))
        texts.append(encoders.build_bpe(options).encode("in"))
    assert texts in (["in"] * 2, ["i@@ n"] * 2)


@pytest.mark.parametrize(
    ("names", "tokenizer", "bpe"),
    [
        (("codes", "spm.model"), "moses", "subword_nmt"),
        (("spm.model", "truecase.model"), "space", "sentencepiece"),
        (("en.model", "de.model"), None, None),
        ((), None, None),
    ],
)
def test_every_door_takes_what_lies_beside_the_dictionaries(
    names: tuple[str, ...], tokenizer: str | None, bpe: str | None, words: Path, tmp_path: Path
) -> None:
    for name in names:
        (words / name).touch()
    beside = segmentation_beside(words)
    assert (beside.get("tokenizer"), beside.get("bpe")) == (tokenizer, bpe)
    verifier = str(words / "verifier.pt")
    text = tmp_path / "text"
    text.write_text("the house\n" * 100)
    by_path = [str(words), "--AR-path", verifier, "--strategy", "AR", "--cpu"]
    doors: list[Any] = [
        make_settings(inference.parse(by_path)),
        Settings(**verifier_settings(Path(verifier), None)),
        make_pair.job_of(make_pair.parse([verifier, str(text), "out", "--cpu"])).verifier,
    ]
    assert {(door.tokenizer, door.bpe) for door in doors} == {(tokenizer, bpe)}
    for flags, expected in ((["--segmented"], None), (["--bpe", "characters"], "characters")):
        chosen = make_settings(inference.parse([*by_path, *flags]))
        assert (chosen.tokenizer, chosen.bpe) == (None, expected)


@pytest.mark.parametrize(
    "described",
    [
        {"bpe": "subword_nmt"},
        {"bpe": "subword_nmt", "bpe_codes": "http://127.0.0.1:1/codes"},
        {"bpe": "subword_nmt", "bpe_codes": "/dev/zero"},
        {"bpe": "subword_nmt", "bpe_codes": "../codes"},
        {"bpe": "sentencepiece", "sentencepiece_model": "missing"},
        {"bpe": "gpt2"},  # whose files fairseq would fetch
    ],
)
def test_only_files_of_the_folder_are_read(
    described: dict[str, str], words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (words.parent / "codes").write_text("#version: 0.2\nt h\n")
    (words / "here").mkdir()
    (words / "here/missing").write_text("#version: 0.2\nt h\n")
    monkeypatch.chdir(words / "here")
    (words / "segmentation.json").write_text(json.dumps(described))
    with pytest.raises(InferenceError):
        load(words)


def test_special_symbols_are_read_as_by_fairseq(words: Path) -> None:
    """``<pad>`` is read by nobody: fairseq masks it, and gives it no position."""
    translator = load(words, tokenizer=None, bpe=None, precision="float64", engine="eager")
    stock = load(words, tokenizer=None, bpe=None, precision="float64", strategy="fairseq", beam=1)
    source = translator.codec.source
    for line in ("the </s> house", "<s> the house", "</s> </s>", "the <pad> house is <pad>", "in"):
        ids = translator.codec.encode(Line(1, line))
        expected = source.encode_line(line, add_if_not_exist=False).long()
        assert ids.tolist() == [index for index in expected.tolist() if index != source.pad()]
        lengths = torch.tensor([len(expected)])
        sample = {"net_input": {"src_tokens": expected[None], "src_lengths": lengths}}
        (found,), (ours,) = (
            generator.generate([], sample) for generator in (stock.generator, translator.generator)
        )
        (text,) = (result.text for result in translator.translate([line]))
        assert found[0]["tokens"].tolist() == ours[0]["tokens"].tolist()
        assert translator.codec.decode(found[0]["tokens"]) == text
