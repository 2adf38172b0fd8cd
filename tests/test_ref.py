"""scripts/ref.sh: the paper's compound-split BLEU, and sacreBLEU beside it."""

import io
import random
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import sacrebleu
from fairseq_cli import score
from sacremoses import MosesTokenizer
from scripts_here import load_script

from specdec_plugins.evaluation.bleu import References, plain_tokens, split_compounds

ROOT = Path(__file__).resolve().parents[1]
ON_PERL = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"

ref_bleu = load_script("ref_bleu")


def ref(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """What ``ref.sh`` says and how it ends, by what it runs, in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    command = ["ref.sh", *map(str, arguments)]
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", command):
        try:
            ref_bleu.main()
        except SystemExit as stop:
            status = 1
            print(stop.code, file=sys.stderr)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def damaged(line: str, chance: random.Random) -> str:
    """The line with words dropped and swapped, so that every precision is below 1."""
    words = [word for word in line.split() if chance.random() > 0.1]
    for i in range(len(words) - 1):
        if chance.random() < 0.1:
            words[i], words[i + 1] = words[i + 1], words[i]
    return " ".join(words)


@pytest.fixture(scope="module")
def pair() -> tuple[list[str], list[str]]:
    """Raw German (hypotheses, references), with hyphens, quotes and apostrophes in plenty."""
    references = (ROOT / "data" / "example.de").read_text(encoding="utf-8").splitlines()
    references += [
        'Der "Rot-Weiß-Rot"-Schal gehört Peter\'s Schwester, die E-Mail-Adresse nicht.',
        "Auf der A-B-C-Liste stehen 5-6 U-Bahn-Fahrer & ein Lkw-Fahrer [sic].",
    ]
    chance = random.Random(1)
    return [damaged(line, chance) for line in references], references


def fairseq_score(hyp: Path, ref: Path) -> str:
    pytest.importorskip("fairseq.libbleu", reason="fairseq's C++ BLEU is not built")
    said = io.StringIO()
    command = ["fairseq-score", "--sys", str(hyp), "--ref", str(ref)]
    with redirect_stdout(said), patch.object(sys, "argv", command):
        score.cli_main()
    return said.getvalue().strip().splitlines()[-1]


def moses(lines: list[str], **options: bool) -> list[str]:
    tokenizer = MosesTokenizer(lang="de")
    return [tokenizer.tokenize(line, return_str=True, **options) for line in lines]


@pytest.mark.parametrize(
    ("line", "split"),
    [
        ("ein a-b c", "ein a ##AT##-##AT## b c"),
        ("rot-weiß-rot", "rot ##AT##-##AT## weiß ##AT##-##AT## rot"),
        # The published flaw: "y" was used up by the first cut, so the second hyphen stays.
        ("x-y-z", "x ##AT##-##AT## y-z"),
        # It works on bytes, of which "ö" has two.
        ("x-ö-z", "x ##AT##-##AT## ö ##AT##-##AT## z"),
        ("A-B-C-D", "A ##AT##-##AT## B-C ##AT##-##AT## D"),
        ("a - b", "a - b"),
        ("Ost- und -West", "Ost- und -West"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a-\u00a0b", "a ##AT##-##AT## \u00a0b"),
    ],
)
def test_compounds_are_cut_in_one_pass(line: str, split: str) -> None:
    assert split_compounds(line) == split


@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
def test_compounds_are_cut_as_the_published_perl_cuts_them(
    pair: tuple[list[str], list[str]],
) -> None:
    lines = [*moses(pair[1]), "x-y-z", "a-\xa0b", "--", "a--b", "ä-ö-ü", "1-2-3-4", "„so“-sagt"]
    perl = subprocess.run(
        ["perl", "-ple", ON_PERL],
        input="".join(line + "\n" for line in lines).encode(),
        capture_output=True,
        check=True,
    )
    assert perl.stdout.decode().split("\n")[:-1] == [split_compounds(line) for line in lines]


def test_dash_splits_and_escapes_are_undone() -> None:
    line = "rot @-@ weiß @-@ rot &apos;s &quot; &amp;lt; @-@"
    assert plain_tokens([line], "de") == ["rot-weiß-rot 's \" &lt; @-@"]


def test_first_figure_is_that_of_fairseq_score(
    pair: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    hyp, reference = (moses(side) for side in pair)
    reference[3] += " <unk>"  # which fairseq-score counts, but lets nothing match
    hyp[3] += " <unk>"
    split = [[split_compounds(line) for line in side] for side in (hyp, reference)]
    expected = fairseq_score(
        write(tmp_path / "split.hyp", split[0]), write(tmp_path / "split.ref", split[1])
    )
    assert expected.startswith("BLEU4 = ")
    done = ref(write(tmp_path / "hyp", hyp), write(tmp_path / "ref", reference))
    assert done.stdout.splitlines()[0] == expected


def test_raw_text_gives_the_same_figure_as_tokenised(
    pair: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    raw = ref("--raw", *(write(tmp_path / f"raw.{i}", side) for i, side in enumerate(pair)))
    figures = {raw.stdout.splitlines()[0]}
    for i, hyp_options in enumerate([{"aggressive_dash_splits": True}, {}, {"escape": False}]):
        hyp = write(tmp_path / f"hyp.{i}", moses(pair[0], **hyp_options))
        # The reference keeps one form, so the two sides also meet in different ones.
        reference = write(tmp_path / "ref", moses(pair[1], aggressive_dash_splits=True))
        figures.add(ref(hyp, reference).stdout.splitlines()[0])
    assert len(figures) == 1


def test_a_benchmark_counts_both_in_the_same_way(
    pair: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    done = ref("--raw", *(write(tmp_path / f"raw.{i}", side) for i, side in enumerate(pair)))
    references = References(pair[1], "de")
    scores = references.scores(pair[0])
    assert done.stdout.startswith(f"BLEU4 = {scores.tokenised:.2f}, ")
    signed = done.stdout.splitlines()[1]
    assert signed.startswith(f"BLEU|{references.signature()} = {scores.sacrebleu:.2f} ")
    hyp, wanted = (moses(side, aggressive_dash_splits=True) for side in pair)
    assert References(wanted, "de", tokenised=True).scores(hyp).tokenised == scores.tokenised


def test_second_figure_is_sacrebleu_with_its_signature(
    pair: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    done = ref("--raw", *(write(tmp_path / f"raw.{i}", side) for i, side in enumerate(pair)))
    line = done.stdout.splitlines()[1]
    expected = sacrebleu.corpus_bleu(pair[0], [pair[1]])
    assert line.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert f" = {expected.score:.2f} " in line


def test_tokenised_text_is_detokenised_for_sacrebleu(tmp_path: Path) -> None:
    file = write(tmp_path / "text", ["Ein rot @-@ weißer Ball , Peter &apos;s Ball ."])
    done = ref(file, file)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(
        "BLEU4 = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, syslen=10, reflen=10)"
    )
    # 13a cuts "Ein rot-weißer Ball, Peter 's Ball." into 8 tokens, "@-@" and "&apos;" gone.
    assert "hyp_len = 8 " in done.stdout.splitlines()[1]


@pytest.mark.parametrize(
    ("raw", "line"), [([], "Ein Ball liegt im Gras."), (["--raw"], "Ein Ball liegt im Gras .")]
)
def test_text_of_the_other_kind_is_noticed(raw: list[str], line: str, tmp_path: Path) -> None:
    file = write(tmp_path / "text", [line] * 3)
    done = ref(*raw, file, file)
    assert done.returncode == 0
    assert "warning" in done.stderr
    assert str(file) in done.stderr
    assert "--raw" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"\n\n", "holds no words"),
        (b"eins\nzwei\n", "has 2 lines and"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_bad_input_is_refused_in_one_line(content: object, message: str, tmp_path: Path) -> None:
    hyp = tmp_path / "hyp"
    if isinstance(content, bytes):
        hyp.write_bytes(content)
    done = ref(hyp, write(tmp_path / "ref", ["eins"]))
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert str(hyp) in done.stderr
    assert len(done.stderr.splitlines()) == 1
