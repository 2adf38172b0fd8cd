"""Verifiers as people have them, through each door: all give what stock fairseq gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from conftest import make_task
from fairseq.models.transformer import TransformerModel
from helpers.models.drafters import make_causal, save_checkpoint
from helpers.models.stand_ins import STAND_INS, StandIn, read_by_fairseq
from helpers.runs.scripts_here import run
from test_fairseq_doors import PACKAGE, by_letter, in_order, run_generate, run_interactive

from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.cli import inference as script
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator

LINES = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9 w10", "w11 w1 w3 w0"]
LONGEST = "--max-len-b 12"
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


class World:
    """A folder with a stand-in, a random drafter, text, and what stock fairseq makes of it."""

    def __init__(self, kind: StandIn, folder: Path) -> None:
        self.folder, self.kind = folder, kind
        self.verifier = kind.save(folder / "verifier.pt")
        task = kind.task()
        load_verifier(self.verifier, task)
        names = make_task(task.source_dictionary)
        names.target_dictionary = task.target_dictionary
        trained = save_checkpoint(folder / "trained.pt", make_causal(names), task, **LANGUAGES)
        self.drafter = folder / "drafter.pt"
        export_checkpoint(str(trained), str(self.drafter))
        for language in LANGUAGES.values():
            (folder / f"valid.en-de.{language}").write_text("\n".join(LINES) + "\n", "utf-8")
        read_by_fairseq(self.verifier, kind.stock_task(folder))
        task_of_stock = f"translation_multi_simple_epoch {kind.languages}"
        # A sentence at a time: fairseq 0.12.2 itself fails on padding, since torch 2.
        self.expected = self.interactive(
            f"{task_of_stock if kind.languages else 'translation'} --path {folder}/stock.pt"
        )
        assert len(set(self.expected)) == len(LINES)

    def interactive(self, task: str) -> list[str]:
        """The output of ``fairseq-interactive``."""
        with redirect_stdout(StringIO()) as printed:
            run_interactive(
                f"{self.folder} --user-dir {PACKAGE} -s en -t de --cpu --beam 1 {LONGEST}"
                f" --input {self.folder}/valid.en-de.en --task {task}"
            )
        return in_order(by_letter(printed.getvalue())["H"])


QUICK = ["fused, joint", "multilingual"]
OTHERS = ["unknown, post-norm", "multilingual, in place of EOS"]
DOORS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


Worlds = Callable[[str], World]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Each made once."""
    return cache(lambda name: World(STAND_INS[name], tmp_path_factory.mktemp("world")))


@pytest.fixture(params=DOORS)
def world(request: pytest.FixtureRequest, worlds: Worlds) -> World:
    return worlds(request.param)


def translate(world: World, verifier: Path, strategy: str, **more: Any) -> list[str]:
    """By our Python interface."""
    given: Any = {"path": str(world.drafter), "ar_path": str(verifier), **LANGUAGES}
    given |= {"batch": 3, "limits": GenerationLimits(max_len_b=12), "strategy": strategy}
    given |= more
    settings = Settings(str(world.folder), **given)
    return [translation.text for translation in load_translator(settings).translate(LINES)]


def test_our_doors(world: World) -> None:
    """``specdec-translate`` and Python."""
    output = world.folder / "out.txt"
    flags = f"{world.folder} --path {world.drafter} --AR-path {world.verifier} {LONGEST}"
    flags += f" --input-path {world.folder}/valid.en-de.en --output-path {output} -s en -t de"
    assert script.main(flags.split()) == 0
    assert output.read_text("utf-8").splitlines() == world.expected
    for strategy in ("specdec", "AR"):
        assert translate(world, world.verifier, strategy) == world.expected
    beams = translate(world, world.verifier, "AR", beam=3)
    assert beams == translate(world, world.verifier, "fairseq", beam=3) != world.expected


def test_fairseqs_doors(world: World) -> None:
    """``fairseq-generate``, ``fairseq-interactive`` and the hub interface."""
    flags = f"{world.folder} --task translation_specdec -s en -t de --cpu --dataset-impl raw"
    flags += f" --path {world.drafter}:{world.verifier} {LONGEST} --num-workers 0 --beam 1"
    flags += " --gen-subset valid --required-batch-size-multiple 1"
    decoded = by_letter(run_generate(flags, world.folder / "ours"))["H"]
    assert in_order(decoded) == world.expected
    pair = f"{world.drafter}:{world.verifier}"
    assert world.interactive(f"translation_specdec --path {pair}") == world.expected
    hub = TransformerModel.from_pretrained(
        str(world.folder),
        checkpoint_file="drafter.pt:verifier.pt",
        user_dir=str(PACKAGE),
        **LANGUAGES,
    )
    printed = hub.translate(LINES, beam=1, max_len_b=12)
    assert [without_language(line) for line in printed] == world.expected
    assert (printed != world.expected) == (world.kind is STAND_INS["multilingual"])


def without_language(line: str) -> str:
    """fairseq's hub interface prints language tokens, and its commands do not."""
    return " ".join(word for word in line.split() if word != "__de__")


STOCK = """
import sys
from fairseq.models.transformer import TransformerModel
for folder in sys.argv[1].split(":"):
    hub = TransformerModel.from_pretrained(folder, checkpoint_file="exported.pt")
    # The last, which fairseq's own multilingual task does not take.
    build = hub.task.build_generator
    hub.task.build_generator = lambda *args, prefix_allowed_tokens_fn, build=build: build(*args)
    for line in sys.argv[2:]:
        print(hub.translate(line, beam=1, max_len_b=12))
assert not any(name.startswith("specdec") for name in sys.modules)
"""


@pytest.mark.parametrize("names", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_what_is_exported_needs_no_plugin(worlds: Worlds, names: list[str]) -> None:
    """Neither for fairseq, which torch has to be told to trust, nor for CTranslate2's converter."""
    made, expected = [worlds(name) for name in names], []
    for world in made:
        exported = world.folder / "exported.pt"
        export_checkpoint(str(world.verifier), str(exported), Training(("en", "de")))
        expected.append(translate(world, exported, "AR"))
    folders = ":".join(str(world.folder) for world in made)
    command, trusted = (sys.executable, "-c", STOCK), {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": 1}
    done = run(*command, folders, *LINES, folder=made[0].folder, **trusted)
    printed = [without_language(line) for line in done.stdout.splitlines()]
    assert printed == [line for lines in expected for line in lines], done.stderr[-2000:]
    for world, lines in zip(made, expected):
        forced = world.kind is STAND_INS["multilingual"]
        if forced or not world.kind.languages:  # CTranslate2 ends every source with EOS
            assert by_ctranslate2(world.folder, forced) == lines


def by_ctranslate2(folder: Path, forced: bool) -> list[str]:
    """Return its output by an exported checkpoint; ``forced``: with languages."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra [bench] is not installed")
    from ctranslate2.converters.fairseq import FairseqConverter

    model = str(folder / "ctranslate2")
    FairseqConverter(str(folder / "exported.pt"), str(folder)).convert(model, force=True)
    translator = ctranslate2.Translator(model, compute_type="float32")
    results = translator.translate_batch(
        [["__en__"] * forced + line.split() for line in LINES],
        target_prefix=[["__de__"] * forced] * len(LINES),
        beam_size=1,
        max_decoding_length=12,
        suppress_sequences=[["<blank>"]],  # its name for padding, which fairseq never puts out
    )
    # fairseq prints no <s>.
    words = [[word for word in result.hypotheses[0] if word != "<s>"] for result in results]
    return [without_language(" ".join(line)) for line in words]
