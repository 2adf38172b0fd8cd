"""Speculation through fairseq's own commands: all give the tokens that ``inference.py`` gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from dummy_data import COMMON, SIZES, make_data, run_train, train_verifier
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel
from fairseq_cli import generate

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "specdec_plugins"
DRAFTER = (
    f"--task translation_specdec --arch block_causal --block-size 4 --criterion glat_loss {SIZES} "
    "--share-verifier-encoder --verifier-features --verifier-embed-dim 16 --verifier-labels"
)
RELAXED = AcceptanceRule(3, 2.0)


class Pair:
    """A trained pair beside its dictionaries and BPE codes, and what inference says with it."""

    def __init__(self, folder: Path) -> None:
        self.data = make_data(folder)
        self.verifier = train_verifier(self.data, folder / "verifier", "--max-epoch 15")
        self.flags = f"{DRAFTER} --AR-path {self.verifier}"
        run_train(self.data, folder / "drafter", f"{self.flags} --max-epoch 4")
        self.drafter = folder / "drafter" / "checkpoint_last.pt"
        self.source = (folder / "valid.en").read_text("utf-8").splitlines()
        self.reference = (folder / "valid.de").read_text("utf-8").splitlines()
        digits = range(10)
        merges = [f"w {d}</w>" for d in digits] + ["w 1"] + [f"w1 {d}</w>" for d in digits]
        (self.data / "codes").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")

    def translate(self, folder: Path | None = None, **settings: Any) -> list[str]:
        """What inference says, with this pair or with the one in ``folder``."""
        paths = [self.drafter, self.verifier]
        if folder is not None:
            paths = [folder / "drafter.pt", folder / "verifier.pt"]
        translator = load_translator(
            Settings(
                str(self.data),
                path=str(paths[0]),
                ar_path=str(paths[1]),
                source_lang="en",
                target_lang="de",
                limits=GenerationLimits(max_len_b=12),
                batch=4,
                **settings,
            )
        )
        return [translation.text for translation in translator.translate(self.source)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def run(command: str, arguments: str, stdin: str = "", cwd: Path = ROOT) -> str:
    """What one of fairseq's commands prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"fairseq_cli.{command}", *arguments.split()],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_generate(arguments: str, results: Path) -> str:
    """What ``fairseq-generate`` writes, run in this process."""
    arguments += f" --results-path {results}"
    args = options.parse_args_and_arch(options.get_generation_parser(), arguments.split())
    generate.main(convert_namespace_to_omegaconf(args))
    return (results / "generate-valid.txt").read_text("utf-8")


def json_lines(output: str) -> list[dict[str, Any]]:
    """What fairseq's JSON progress bar says, in its logs."""
    ends = (line.split(" | ")[-1] for line in output.splitlines())
    return [json.loads(end) for end in ends if end.startswith('{"')]


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
def flags(pair: Pair) -> str:
    """Flags of ``fairseq-generate`` for the valid set."""
    return (
        f"{pair.data} --task translation_specdec -s en -t de --gen-subset valid --cpu "
        "--num-workers 0 --max-len-b 12"
    )


def check_output(output: str, pair: Pair, expected: list[str], beam: int = 5) -> None:
    lines = by_letter(output)
    assert in_order(lines["S"]) == pair.source
    assert in_order(lines["T"]) == pair.reference
    assert in_order(lines["H"]) == in_order(lines["D"]) == expected
    for name, (score, text) in lines["H"].items():
        scores = [float(part) for part in lines["P"][name][0].split()]
        assert len(scores) == len(text.split()) + 1
        assert float(score) == pytest.approx(sum(scores) / len(scores), abs=1e-4)
        steps = int(lines["I"][name][0])
        committed = [lines["E"][f"{name}_{step}"][0] for step in range(steps)]
        assert " ".join(part for part in committed if part) == text
        assert f"{name}_{steps}" not in lines["E"]
    assert re.search(rf"Generate valid with beam={beam}: BLEU = \d", output)


SHOW = "--scoring sacrebleu --print-step --retain-iter-history"


def test_generate(pair: Pair, flags: str) -> None:
    files = f"{pair.drafter}:{pair.verifier}"
    output = run("generate", f"{flags} --user-dir {PACKAGE} --path {files} {SHOW} --max-tokens 60")
    check_output(output, pair, pair.translate())


def test_generate_relaxed_with_the_verifier_first(pair: Pair, flags: str, tmp_path: Path) -> None:
    relaxed = "--batch-size 3 --beta 3 --tau 2"
    files = f"{pair.verifier}:{pair.drafter}"
    output = run_generate(f"{flags} --path {files} {SHOW} {relaxed}", tmp_path)
    check_output(output, pair, pair.translate(rule=AcceptanceRule(3, 2.0)))


@pytest.mark.parametrize("controller", ["constant", "tree"])
def test_generate_by_sampling(pair: Pair, flags: str, tmp_path: Path, controller: str) -> None:
    """From the best token alone it is greedy; else the seed decides."""
    flags += f" --path {pair.drafter}:{pair.verifier} {SHOW} --controller {controller}"
    flags += " --sampling --beam 1"
    greedy = run_generate(f"{flags} --sampling-topk 1 --temperature 3", tmp_path / "best")
    check_output(greedy, pair, pair.translate(), beam=1)
    outputs = [
        in_order(by_letter(run_generate(f"{flags} --seed {seed}", tmp_path / str(run)))["H"])
        for run, seed in enumerate([1, 1, 2])
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_generate_in_shards(pair: Pair, flags: str, tmp_path: Path) -> None:
    """Of which stock fairseq 0.12 makes nothing: every shard is the whole set there."""
    flags += f" --path {pair.drafter} --AR-path {pair.verifier} --batch-size 2 --num-shards 2"
    shards = []
    for shard in (0, 1):
        output = run_generate(f"{flags} --shard-id {shard}", tmp_path / str(shard))
        shards.append(by_letter(output)["H"])
    assert shards[0]
    assert shards[1]
    assert not shards[0].keys() & shards[1].keys()
    assert in_order({**shards[0], **shards[1]}) == pair.translate()


def test_generate_refuses_alignments(pair: Pair, flags: str, tmp_path: Path) -> None:
    flags += f" --path {pair.drafter}:{pair.verifier} --print-alignment"
    with pytest.raises(ValueError, match="--print-alignment hard: not supported by speculative"):
        run_generate(flags, tmp_path)


def test_a_drafter_in_another_task_is_told_where_it_belongs(
    pair: Pair, flags: str, tmp_path: Path
) -> None:
    flags = flags.replace("translation_specdec", "translation")
    with pytest.raises(ValueError, match="a drafter needs --task translation_specdec"):
        run_generate(f"{flags} --path {pair.drafter}:{pair.verifier}", tmp_path)


def test_interactive(pair: Pair) -> None:
    text = "".join(line + "\n" for line in pair.source)
    output = run(
        "interactive",
        f"{pair.data} --user-dir {PACKAGE} --task translation_specdec -s en -t de --cpu "
        f"--path {pair.drafter}:{pair.verifier} --tokenizer moses --bpe subword_nmt "
        f"--bpe-codes {pair.data}/codes --max-len-b 12 --buffer-size 5 --batch-size 4",
        stdin=text,
    )
    lines = by_letter(output)
    assert in_order(lines["D"]) == pair.translate()
    assert len(lines["P"]) == len(lines["W"]) == len(pair.source)


@pytest.mark.parametrize("exported", [False, True])
def test_hub(pair: Pair, tmp_path: Path, exported: bool) -> None:
    for name in ("verifier", "drafter"):
        trained = getattr(pair, name)
        if exported:
            export_checkpoint(str(trained), str(tmp_path / f"{name}.pt"))
        else:
            (tmp_path / f"{name}.pt").symlink_to(trained)
    for name in ("dict.en.txt", "dict.de.txt", "codes"):
        (tmp_path / name).symlink_to(pair.data / name)
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
    assert hub.task.controller.controller == "tree"
    expected = pair.translate(tmp_path)
    assert hub.translate(pair.source, max_len_b=12) == expected
    assert hub.translate(pair.source[0], max_len_b=12) == expected[0]


def test_eval_bleu(pair: Pair, tmp_path: Path) -> None:
    """BLEU and acceptance length are those of the speculative output, of every sentence."""
    settings = json.dumps({"max_len_b": 12}).replace(" ", "")
    flags = (
        f"{pair.flags} --beta 3 --tau 2 --eval-bleu --eval-bleu-args {settings} "
        "--eval-bleu-remove-bpe --best-checkpoint-metric bleu --maximize-best-checkpoint-metric "
        f"--max-epoch 2 --max-tokens-valid 60 --user-dir {PACKAGE} --save-dir {tmp_path} "
        "--required-batch-size-multiple 8"
    )
    output = run("train", f"{pair.data} {COMMON} {flags}")
    valid = [log for log in json_lines(output) if "valid_bleu" in log]
    assert len(valid) == 2
    assert all(1.0 <= float(log["valid_acceptance_length"]) <= 5.0 for log in valid)
    best = load_state(tmp_path / "checkpoint_best.pt")
    assert best["extra_state"]["best"] == max(float(log["valid_bleu"]) for log in valid)


def test_hydra_train_and_validate(pair: Pair, tmp_path: Path) -> None:
    """The example config trains; ``fairseq-validate`` then says what training said."""
    small = " ".join(
        f"model.{name}={value}"
        for name, value in {
            "encoder_embed_dim": 16,
            "verifier_embed_dim": 16,
            "decoder_embed_dim": 16,
            "decoder_ffn_embed_dim": 32,
            "decoder_attention_heads": 2,
        }.items()
    )
    run(
        "hydra_train",
        f"--config-dir {ROOT / 'config'} --config-name drafter task.data={pair.data} "
        f"task.AR_path={pair.verifier} task.source_lang=en task.target_lang=de "
        f"common.user_dir={PACKAGE} checkpoint.save_dir={tmp_path}/out {small} common.cpu=true "
        "optimization.max_update=4 dataset.max_tokens=100 dataset.num_workers=0",
        cwd=tmp_path,
    )
    best = tmp_path / "out" / "checkpoint_best.pt"
    state = load_state(best)
    assert state["cfg"]["model"].block_size == 8
    output = run(
        "validate",
        f"{pair.data} --user-dir {PACKAGE} --task translation_specdec --path {best} --cpu "
        "--valid-subset valid --max-tokens 100 --num-workers 0 --log-format json",
    )
    found = json_lines(output)[-1]["valid_acceptance_length"]
    assert float(found) == pytest.approx(state["extra_state"]["best"], abs=1e-3)
