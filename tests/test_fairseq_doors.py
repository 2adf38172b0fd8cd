"""Speculation through fairseq's own commands: all give the tokens that ``inference.py`` gives."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel
from fairseq_cli import generate, interactive, validate
from helpers.models.dummy_data import listening
from helpers.models.trained import Trained

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "specdec_plugins"


def run_generate(arguments: str, results: Path) -> str:
    """Return the results of ``fairseq-generate``, run in this process."""
    arguments += f" --results-path {results}"
    args = options.parse_args_and_arch(options.get_generation_parser(), arguments.split())
    generate.main(convert_namespace_to_omegaconf(args))
    return (results / "generate-valid.txt").read_text("utf-8")


def run_interactive(arguments: str) -> None:
    """``fairseq-interactive`` in this process, which prints."""
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, arguments.split())
    interactive.main(convert_namespace_to_omegaconf(args))


def by_letter(output: str) -> dict[str, dict[str, list[str]]]:
    """fairseq's output: of each kind of line (S, H, …), the fields of each sentence."""
    lines: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for line in output.splitlines():
        if match := re.match(r"([STHDPWIE])-(\d+(?:_\d+)?)\t(.*)", line):
            lines[match[1]][match[2]] = match[3].split("\t")
    return lines


def in_order(lines: dict[str, list[str]]) -> list[str]:
    return [lines[name][-1] for name in sorted(lines, key=int)]


@pytest.fixture
def flags(trained: Trained) -> str:
    """Flags of ``fairseq-generate`` for the valid set."""
    return (
        f"{trained.data} --task translation_specdec -s en -t de --gen-subset valid --cpu "
        "--num-workers 0 --max-len-b 12 --beam 1"
    )


def check_output(output: str, trained: Trained, expected: list[str]) -> None:
    lines = by_letter(output)
    assert in_order(lines["S"]) == trained.source
    assert in_order(lines["T"]) == trained.reference
    assert in_order(lines["H"]) == in_order(lines["D"]) == expected
    for name, (score, text) in lines["H"].items():
        scores = [float(part) for part in lines["P"][name][0].split()]
        assert len(scores) == len(text.split()) + 1
        assert float(score) == pytest.approx(sum(scores) / len(scores), abs=1e-4)
        steps = int(lines["I"][name][0])
        committed = [lines["E"][f"{name}_{step}"][0] for step in range(steps)]
        assert " ".join(part for part in committed if part) == text
        assert f"{name}_{steps}" not in lines["E"]
    assert re.search(r"Generate valid with beam=1: BLEU = \d", output)


SHOW = "--scoring sacrebleu --print-step --retain-iter-history"
PENALISED = GenerationLimits(max_len_b=12, repetition_penalty=4.0)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("--max-tokens 60", {}),
        (
            "--batch-size 3 --beta 3 --tau 2 --repetition-penalty 4",
            {"rule": RelaxedRule(3, 2.0), "limits": PENALISED},
        ),
    ],
    ids=["strict", "relaxed, penalised"],
)
def test_generate(
    options: str, settings: dict[str, object], trained: Trained, flags: str, tmp_path: Path
) -> None:
    """With the verifier first."""
    files = f"{trained.verifier}:{trained.drafter}"
    output = run_generate(f"{flags} --path {files} {SHOW} {options}", tmp_path)
    check_output(output, trained, trained.translate(**settings))


def test_generate_by_onnxruntime(trained: Trained, flags: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    flags += f" --path {trained.drafter}:{trained.verifier} {SHOW} --max-tokens 60"
    flags += " --engine onnxruntime --controller tree --drafter-precision int8"
    check_output(run_generate(flags, tmp_path), trained, trained.translate())


def test_generate_by_sampling(trained: Trained, flags: str, tmp_path: Path) -> None:
    """From the best token alone it is greedy; else the seed decides."""
    flags += f" --path {trained.drafter}:{trained.verifier} {SHOW} --controller tree"
    flags += " --sampling"
    greedy = run_generate(f"{flags} --sampling-topk 1 --temperature 3", tmp_path / "best")
    check_output(greedy, trained, trained.translate())
    first, second = (run_generate(f"{flags} --seed {n}", tmp_path / str(n)) for n in (1, 2))
    assert in_order(by_letter(first)["H"]) != in_order(by_letter(second)["H"])


@pytest.mark.parametrize("forced", ["", " --prefix-size 2"])
def test_generate_by_the_verifier_alone_is_the_same(
    trained: Trained, flags: str, tmp_path: Path, forced: str
) -> None:
    """Its scores, too; fairseq's own search decodes it."""
    flags += forced
    alone = run_generate(f"{flags} --path {trained.verifier} --beam 1", tmp_path)
    expected = by_letter(alone)["H"]
    assert len(expected) == 14
    assert len({text for _, text in expected.values()}) > 3
    controlled = "--controller confidence --confidence-threshold 0.1"
    for ours in (f"{trained.drafter}", f"{trained.drafter}:{trained.verifier} {controlled}"):
        output = run_generate(f"{flags} --path {ours} --AR-path {trained.verifier}", tmp_path)
        decoded = by_letter(output)["H"]
        assert decoded.keys() == expected.keys()
        for name, (score, text) in decoded.items():
            assert text == expected[name][1]
            assert float(score) == pytest.approx(float(expected[name][0]), abs=1e-4)


def test_generate_with_overrides(trained: Trained, flags: str, tmp_path: Path) -> None:
    """Overrides of both models' configurations, as stock fairseq has them."""
    plain = run_generate(f"{flags} --path {trained.verifier} --beam 1", tmp_path / "plain")
    flags += " --model-overrides {'activation_fn':'gelu'}"
    stock = run_generate(f"{flags} --path {trained.verifier} --beam 1", tmp_path / "stock")
    pair = f"{flags} --path {trained.drafter}:{trained.verifier}"
    expected = in_order(by_letter(stock)["H"])
    assert in_order(by_letter(run_generate(pair, tmp_path))["H"]) == expected
    assert in_order(by_letter(plain)["H"]) != expected


def hypotheses(output: str) -> list[tuple[str, str, list[float]]]:
    """The name, the words or alignment, and the scores of each hypothesis."""
    lines = [line.split("\t") for line in output.splitlines() if line[:2] in ("H-", "P-", "A-")]
    scores = [[*map(float, line[1].split())] if line[0][0] != "A" else [] for line in lines]
    return [
        (line[0], "" if line[0][0] == "P" else line[-1], numbers)
        for line, numbers in zip(lines, scores)
    ]


BEAMS = (
    "",
    "--beam 4 --nbest 3 --lenpen 0.6",
    "--beam 4 --unnormalized --no-repeat-ngram-size 2",
    "--beam 4 --diversity-rate 0.5 --prefix-size 1",
    "--beam 3 --print-alignment",
    "--beam 3 --print-alignment soft",
)


@pytest.mark.parametrize("asked", BEAMS)
def test_generate_by_beams(
    asked: str,
    trained: Trained,
    flags: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Words, scores and alignments are stock fairseq's, whose default is a beam of 5; with a
    drafter, a warning says that it is not used."""
    flags = f"{flags.replace('--beam 1', '')} --max-tokens 60 {asked}"
    stock = flags.replace("translation_specdec", "translation")
    expected = run_generate(f"{stock} --path {trained.verifier}", tmp_path / "stock")
    assert "take no drafts" not in caplog.text
    for models in (f"{trained.verifier}", f"{trained.drafter}:{trained.verifier}"):
        found = run_generate(f"{flags} --path {models}", tmp_path / "ours")
        right_names, right_words, right_scores = zip(*hypotheses(expected))
        # Stock fairseq leaves out the last batch.
        alike = [item for item in hypotheses(found) if item[0] in right_names]
        names, words, scores = zip(*alike)
        assert (names, words) == (right_names, right_words)
        for numbers, right in zip(scores, right_scores, strict=True):
            assert numbers == pytest.approx(right, abs=2e-3)
    assert caplog.text.count("beams take no drafts, --beam 1 does") == 1


def test_generate_by_an_ensemble(trained: Trained, flags: str, tmp_path: Path) -> None:
    """Of two equal verifiers, which write as the verifier alone; the drafter is none of them."""
    flags += " --beam 3 --nbest 2"
    alone = run_generate(f"{flags} --path {trained.verifier}", tmp_path / "alone")
    both = f"{trained.verifier}:{trained.drafter}:{trained.verifier}"
    found = run_generate(f"{flags} --path {both}", tmp_path / "both")
    assert [line.split("\t")[-1] for line in found.splitlines() if line[0] == "H"] == [
        line.split("\t")[-1] for line in alone.splitlines() if line[0] == "H"
    ]


@pytest.mark.parametrize("flag", ["--print-alignment", "--retain-dropout"])
def test_attention_is_known_to_eager_alone(
    flag: str, trained: Trained, flags: str, tmp_path: Path
) -> None:
    flags += f" --beam 3 --path {trained.verifier} --engine onnxruntime {flag}"
    with pytest.raises(ValueError, match=f"{flag}: not by --engine onnxruntime"):
        run_generate(flags, tmp_path)


@pytest.mark.parametrize("shard", [0, 1])
def test_generate_in_shards(shard: int, trained: Trained, flags: str, tmp_path: Path) -> None:
    """``--num-shards`` is left to fairseq, whose versions differ in what they make of it: the
    sentences, under their numbers, are those that stock fairseq takes."""
    flags += f" --required-batch-size-multiple 1 --num-shards 2 --shard-id {shard}"
    stock = flags.replace("translation_specdec", "translation") + " --beam 1"
    expected = run_generate(f"{stock} --path {trained.verifier}", tmp_path / "stock")
    found = run_generate(f"{flags} --path {trained.drafter}:{trained.verifier}", tmp_path)
    ours, theirs = by_letter(found)["H"], by_letter(expected)["H"]
    assert {name: text for name, (_, text) in ours.items()} == {
        name: text for name, (_, text) in theirs.items()
    }


@pytest.mark.parametrize("max_tokens", [60, 10_000])
def test_validate(trained: Trained, max_tokens: int) -> None:
    """``fairseq-validate`` says what training's last validation said, in batches of any size: an
    acceptance length is that of all sentences, each step counted once."""
    flags = f"{trained.data} --task translation_specdec --path {trained.drafter} --cpu"
    flags += f" --valid-subset valid --num-workers 0 --log-format json --max-tokens {max_tokens}"
    parse = options.parse_args_and_arch
    override = parse(options.get_validation_parser(), flags.split(), suppress_defaults=True)
    cfg = convert_namespace_to_omegaconf(parse(options.get_validation_parser(), flags.split()))
    with listening() as logs:
        validate.main(cfg, override_args=override)
    (said,) = logs.of("valid")
    best = load_state(trained.drafter)["extra_state"]["best"]
    assert 1 < said["valid_acceptance_length"] == pytest.approx(best, abs=1e-3)
    assert {"valid_loss", "valid_glat_accu", "valid_acc_0", "valid_acc_3"} <= said.keys()


def test_interactive(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    run_interactive(
        f"{trained.data} --user-dir {PACKAGE} --task translation_specdec -s en -t de --cpu "
        f"--path {trained.drafter}:{trained.verifier} --tokenizer moses --bpe subword_nmt "
        f"--bpe-codes {trained.data}/codes --max-len-b 12 --buffer-size 5 --batch-size 4 --beam 1 "
        f"--input {trained.folder}/valid.en"
    )
    lines = by_letter(capsys.readouterr().out)
    assert in_order(lines["D"]) == trained.translate()
    assert len(lines["P"]) == len(lines["W"]) == len(trained.source)


def test_alignments_of_a_shipped_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From Python they are those of stock fairseq's ``fairseq-interactive``."""
    pair = ROOT / "checkpoints" / "multi30k.en-de"
    lines = (ROOT / "data" / "captions.en").read_text("utf-8").splitlines()[:12]
    text = tmp_path / "captions.en"
    text.write_text("\n".join(lines) + "\n", "utf-8")
    run_interactive(
        f"{pair} --task translation -s en -t de --cpu --path {pair}/verifier.pt --beam 5 --nbest 3 "
        f"--tokenizer moses --bpe subword_nmt --bpe-codes {pair}/codes --buffer-size 8 "
        f"--batch-size 1 --print-alignment --input {text}"
    )
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("A-")]
    settings = Settings.of_model(pair, beam=5, nbest=3, batch=8, print_alignment="hard")
    translator = load_translator(settings)
    for row, found in enumerate(translator.translate(lines)):
        words = translator.codec.segment(lines[row]).split()
        for place, hypothesis in enumerate(found.hypotheses):
            assert max(source for source, _ in hypothesis.alignment) < len(words)
            pairs = " ".join(f"{source}-{target}" for source, target in hypothesis.alignment)
            assert printed[3 * row + place] == f"A-{row}\t{pairs}"


def test_interactive_with_constraints(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After tabs in a line; the words, their order and the scores are stock fairseq's."""
    text = tmp_path / "in.en"
    words = ("\tw5", "\tw3 w4\tw1", "", "\tunheard")
    lines = [line + more for line, more in zip(trained.source, words)]
    text.write_text("\n".join(lines) + "\n", "utf-8")
    outputs = []
    for task in ("translation", f"translation_specdec --user-dir {PACKAGE}"):
        run_interactive(
            f"{trained.data} --task {task} -s en -t de --cpu --path {trained.verifier} --beam 4 "
            f"--max-len-b 12 --buffer-size 4 --batch-size 4 --constraints --input {text}"
        )
        outputs.append(hypotheses(capsys.readouterr().out))
    for (name, output, scores), (other, expected, numbers) in zip(*outputs, strict=True):
        assert (name, output) == (other, expected)
        assert scores == pytest.approx(numbers, abs=2e-3)
    assert "w5" in outputs[0][0][1]


def test_hub(trained: Trained, tmp_path: Path) -> None:
    """Exported checkpoints, from a folder that holds all there is."""
    for name in ("verifier", "drafter"):
        export_checkpoint(str(getattr(trained, name)), str(tmp_path / f"{name}.pt"))
    for name in ("dict.en.txt", "dict.de.txt", "codes"):
        (tmp_path / name).symlink_to(trained.data / name)
    hub = TransformerModel.from_pretrained(
        str(tmp_path),
        checkpoint_file="drafter.pt:verifier.pt",
        user_dir=str(PACKAGE),
        tokenizer="moses",
        bpe="subword_nmt",
        bpe_codes=str(tmp_path / "codes"),
        source_lang="en",
        target_lang="de",
        controller="tree",
    )
    assert hub.task.controller.name == "tree"
    paths = {"path": str(tmp_path / "drafter.pt"), "ar_path": str(tmp_path / "verifier.pt")}
    expected = trained.translate(**paths)
    assert hub.translate(trained.source, beam=1, max_len_b=12) == expected
    assert hub.translate(trained.source[0], beam=1, max_len_b=12) == expected[0]
    penalised = hub.translate(trained.source, beam=1, max_len_b=12, repetition_penalty=4.0)
    assert penalised == trained.translate(**paths, limits=PENALISED) != expected
    forced = {"prefix_tokens": torch.tensor([[7]])}
    encoded = [hub.encode(trained.source[0])]
    ((begun,),) = hub.generate(encoded, beam=1, max_len_b=12, inference_step_args=forced)
    assert begun["tokens"][0] == 7
    # The task's options need not wait for other models.
    assert hub.translate(trained.source, beam=1, max_len_b=12, controller="none") == expected
    allowed: dict[str, Any] = {"max_len_b": 12, "prefix_allowed_tokens_fn": lambda *_: [4, 2]}
    with pytest.raises(ValueError, match="prefix_allowed"):
        hub.translate(trained.source, beam=1, **allowed)
    # fairseq's default is a beam of 5.
    assert set(" ".join(hub.translate(trained.source, **allowed)).split()) == {hub.tgt_dict[4]}
