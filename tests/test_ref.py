"""scripts/ref.sh: the paper's compound-split BLEU, and sacreBLEU beside it."""

import io
import random
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import sacrebleu
from fairseq_cli import score
from helpers.runs.scripts_here import call, load_script
from sacremoses import MosesTokenizer

from specdec_plugins.evaluation.bleu import References, split_compounds

ROOT = Path(__file__).resolve().parents[1]
ON_PERL = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
Pair = tuple[list[str], list[str]]

ref_bleu = load_script("ref_bleu")


def ref(*arguments: object) -> list[str]:
    """Return the lines of ``ref.sh``, run in this process."""
    return call(ref_bleu, *arguments).splitlines()


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Raw German (hypotheses, references), with hyphens, quotes and apostrophes in plenty."""
    references = (ROOT / "data" / "example.de").read_text(encoding="utf-8").splitlines()
    references += [
        'Der "Rot-Weiß-Rot"-Schal gehört Peter\'s Schwester, die E-Mail-Adresse nicht.',
        "Auf der A-B-C-Liste stehen 5-6 U-Bahn-Fahrer & ein Lkw-Fahrer [sic].",
    ]
    chance = random.Random(1)
    # Words are dropped, so that every precision is below 1.
    kept = [[word for word in line.split() if chance.random() > 0.1] for line in references]
    return [" ".join(words) for words in kept], references


def moses(lines: list[str], **options: bool) -> list[str]:
    tokenizer = MosesTokenizer(lang="de")
    return [tokenizer.tokenize(line, return_str=True, **options) for line in lines]


@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
def test_compounds_are_cut_as_the_published_perl_cuts_them(pair: Pair) -> None:
    """In one pass over bytes: ``x-y-z`` is cut only once."""
    lines = [*moses(pair[1]), "x-y-z", "a-\xa0b", "--", "a--b", "ä-ö-ü", "1-2-3-4", "„so“-sagt"]
    perl = subprocess.run(
        ["perl", "-ple", ON_PERL],
        input="".join(line + "\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    assert perl.stdout.decode().split("\n")[:-1] == [split_compounds(line) for line in lines]


def test_first_figure_is_that_of_fairseq_score(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("fairseq.libbleu", reason="fairseq's C++ BLEU is not built")
    sides = [moses(side) for side in pair]
    for side in sides:
        side[3] += " <unk>"  # which fairseq-score counts, but lets nothing match
    files = [write(tmp_path / name, side) for name, side in zip(("hyp", "ref"), sides)]
    split = [
        write(tmp_path / f"split.{i}", [split_compounds(line) for line in side])
        for i, side in enumerate(sides)
    ]
    printed = io.StringIO()
    command = ["fairseq-score", "--sys", str(split[0]), "--ref", str(split[1])]
    with redirect_stdout(printed), patch.object(sys, "argv", command):
        score.cli_main()
    assert ref(*files)[0] == printed.getvalue().strip().splitlines()[-1]


def test_an_experiment_counts_both_in_the_same_way(pair: Pair, tmp_path: Path) -> None:
    """And so for text in any tokenised form."""
    done = ref("--raw", *(write(tmp_path / f"raw.{i}", side) for i, side in enumerate(pair)))
    references = References(pair[1], "de")
    bleu, tokenised_bleu = references.bleu(pair[0]), references.tokenised_bleu(pair[0])
    assert done[0].startswith(f"BLEU4 = {tokenised_bleu:.2f}, ")
    assert done[1].startswith(f"BLEU|{references.signature()} = {bleu:.2f} ")
    assert bleu == sacrebleu.corpus_bleu(pair[0], [pair[1]]).score
    wanted = moses(pair[1], aggressive_dash_splits=True)
    tokenised = References(wanted, "de", tokenised=True)
    for form in ({"aggressive_dash_splits": True}, {}, {"escape": False}):
        hyp = moses(pair[0], **form)
        assert tokenised.tokenised_bleu(hyp) == tokenised_bleu
        assert ref(write(tmp_path / "hyp", hyp), write(tmp_path / "ref", wanted))[0] == done[0]


def test_tokenised_bleu_is_not_smoothed(tmp_path: Path) -> None:
    """Without any four words in a row it is 0, as fairseq-score's; sacreBLEU smooths its own."""
    hypothesis, reference = ["ein Hund und eine Katze"], ["ein Hund auf eine Katze"]
    assert References(reference, "de").tokenised_bleu(hypothesis) == 0
    assert References(reference, "de").bleu(hypothesis) > 1
    files = write(tmp_path / "hyp", hypothesis), write(tmp_path / "ref", reference)
    assert ref(*files)[0].startswith("BLEU4 = 0.00, 80.0/50.0/0.0/0.0 ")


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *(("de", "char"), ("zh_CN", "zh"), ("zho_Hans", "zh"), ("ja", "ja-mecab|char")),
        *(("th", "char"), ("yue", "char"), ("lzh", "char"), ("wuu_Hans", "char"), ("cmn", "char")),
    ],
)
def test_languages_without_blanks(language: str, tokenizer: str, tmp_path: Path) -> None:
    """The references' script decides, where sacreBLEU has no tokenizer for the language."""
    signature = References(["我们今天去公园"], language).signature()
    assert any(f"tok:{name}" in signature for name in tokenizer.split("|"))
    if language != "de":
        hyp = write(tmp_path / "hyp", ["我们今天去公园散步看书。"])
        wanted = write(tmp_path / "ref", ["我们今天去公园散步吃饭。"])
        for line in ref("--raw", "--lang", language, hyp, wanted):
            assert float(line.split(" = ")[1].split()[0].rstrip(",")) > 30


@pytest.mark.parametrize(
    ("language", "text", "tokenizer"),
    [
        ("bo", "ང་བོད་སྐད་སློབ་སྦྱོང་བྱེད་ཀྱི་ཡོད།", "char"),
        ("dz", "ང་རྫོང་ཁ་སླབ་ཨིན།", "char"),
        ("shn", "ၵူၼ်းတႆးၵိၼ်ၶဝ်ႈ", "char"),
        ("mya_Mymr", "ကျွန်တော်ထမင်းစားသည်", "char"),
        ("th", "ฉันกินข้าว", "char"),
        ("khb", "ᦅᦱᧃᦎᦱᧉ", "char"),
        ("yue", "IBM 同 SAP 都喺香港開咗新嘅辦公室俾客人用", "char"),
        ("ko", "나는 학교에 간다", "ko-mecab|char"),
        ("vi", "Tôi đi học ở 河内.", "13a"),
        ("ja_Latn", "watashi wa", "ja-mecab|char"),
        ("hi", "मैं घर जा रहा हूँ", "13a"),
        ("de", "", "13a"),
    ],
)
def test_scripts_of_references(language: str, text: str, tokenizer: str) -> None:
    signature = References([text], language).signature()
    assert any(f"tok:{name}" in signature for name in tokenizer.split("|")), signature


@pytest.mark.parametrize("content", [b"\n\n", b"eins\nzwei\n", b"\xff\xfe\n"])
def test_files_that_do_not_fit_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "hyp").write_bytes(content)
    files = [tmp_path / "hyp", write(tmp_path / "ref", ["eins"])]
    assert ref_bleu.main([str(file) for file in files]) == 1


def test_a_reference_without_tokens_counts_as_nothing(tmp_path: Path) -> None:
    hypothesis = write(tmp_path / "hyp", ["Ein Hund."])
    reference = write(tmp_path / "ref", ["\x01"])
    assert ref("--raw", hypothesis, reference)[0].startswith("BLEU4 = 0.00")
