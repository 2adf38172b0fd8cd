"""Every flag of fairseq's generation is honoured, refused by name, or cannot change output."""

from __future__ import annotations

from argparse import Action
from pathlib import Path

import pytest
from fairseq import options
from fairseq.dataclass.configs import GenerationConfig

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.limits import OF_SEARCH, REFUSED, GenerationLimits
from specdec_plugins.decoding.options import option_fields
from specdec_plugins.inference.drafts.base import DRAFTS, DraftKind
from specdec_plugins.inference.flags import NOT_OF_TEXT, TranslationParser, make_settings
from specdec_plugins.inference.settings import Settings

# By why they change no output of ours.
NOTHING = {
    "what is printed beside the output": "print_step retain_iter_history sacrebleu",
    "models of speech": "beam_mt max_len_a_mt max_len_b_mt lenpen_mt eos_token",
    "iterative refinement": "iter_decode_eos_penalty iter_decode_max_iter "
    "iter_decode_force_max_iter iter_decode_with_beam iter_decode_with_external_reranker "
    "decoding_format",
    "only with a flag that is refused": "lm_weight retain_dropout_modules",
    "fairseq itself ignores it": "no_early_stop no_beamable_mm",
    "draws are by --seed": "no_seed_provided",
}
HARMLESS = {name for names in NOTHING.values() for name in names.split()}
NAMES_REFUSED = {name for name, *_ in (*REFUSED, *NOT_OF_TEXT)} | {"nbest"}


def flags_of_fairseq() -> dict[str, Action]:
    """Of ``fairseq-generate`` and ``fairseq-interactive``, by name."""
    parser = options.get_interactive_generation_parser()
    return {action.dest: action for action in parser._actions if action.option_strings}


def test_the_generator_knows_what_to_do_with_every_option() -> None:
    """Options of ``fairseq-generate``, ``fairseq-interactive`` and the hub interface."""
    honoured = {*option_fields(GenerationLimits), "unnormalized", "beam"}
    honoured |= {"sampling", "sampling_topk", "sampling_topp", *(name for name, *_ in OF_SEARCH)}
    options = {name for name in vars(GenerationConfig()) if name != "_name"}
    assert len(options) > 30
    assert options - honoured - NAMES_REFUSED == options & HARMLESS


def argument(action: Action) -> list[str]:
    """A command line that gives a flag some value but its default."""
    flag = action.option_strings[0]
    if action.nargs == 0:
        return [flag]
    value = "3" if action.type in (int, float) else "{'a':1}"
    return [flag, action.choices[0] if action.choices else value]


@pytest.mark.parametrize("strategy", ["AR", "fairseq"])
def test_what_is_not_honoured_is_refused_by_name(strategy: str) -> None:
    flags = flags_of_fairseq()
    for name in sorted(NAMES_REFUSED - ({"nbest"} if strategy == "fairseq" else set())):
        action = flags[name]
        argv = ["data", "--AR-path", "verifier.pt", "--strategy", strategy, *argument(action)]
        args = TranslationParser(None, argv).parse(argv)
        with pytest.raises(ValueError, match=f"^{action.option_strings[0]}[ :]"):
            make_settings(args)


def settings_of(*flags: str) -> Settings:
    argv = ["data", "--AR-path", "verifier.pt", *flags]
    return make_settings(TranslationParser(None, argv).parse(argv))


def test_what_only_search_honours_is_searched() -> None:
    """With a beam or without one; the values are fairseq's."""
    assert not settings_of("--lenpen", "0.6").searched
    assert settings_of("--beam", "4", "--nbest", "3", "--sampling").searched
    flags = flags_of_fairseq()
    for name, *_, nothing in OF_SEARCH:
        settings = settings_of(*argument(flags[name]))
        assert settings.search_options.keys() == {name}
        assert settings.search_options[name] not in (None, nothing)
        assert settings.searched
        assert settings.kind is None
        assert settings.policy == "beam"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--beam 5 --drafts copy", "--drafts copy --beam 5: fairseq's search takes no drafts"),
        ("--beam 5 --controller tree", "--controller tree: does not work with --beam 5"),
        ("--beam 5 --beta 3", "--beta 3 --tau 0.0: does not work with --beam 5"),
        (
            "--beam 5 --repetition-penalty 2",
            "penalty 2.0 .or generation_config.json's; specdec-translate",
        ),
        ("--beam 3 --nbest 4", "--nbest 4 --beam 3: does not work"),
        ("--nbest 2", "--nbest 2 --beam 1: does not work"),
        ("--strategy drafter --path d.pt --beam 2 --nbest 3", "--nbest 3 --beam 2: does not work"),
    ],
)
def test_what_does_not_go_with_a_beam(flags: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        settings_of(*flags.split())


@pytest.mark.parametrize("drafts", ["copy", "source"])
@pytest.mark.parametrize("controller", ["tree", "acceptance-head", "oracle"])
def test_chains_without_a_drafter_take_their_controllers(controller: str, drafts: str) -> None:
    with pytest.raises(ValueError, match=f"^--controller {controller}: does not work with --draft"):
        settings_of("--drafts", drafts, "--controller", controller)
    for fits in ("auto", "constant", "heuristic", "confidence"):
        assert settings_of("--drafts", drafts, "--controller", fits).kind is not None


def test_a_text_without_its_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([__file__], ["--no-such-flag"]):
        with pytest.raises(SystemExit):
            TranslationParser("", []).parse(["pair", *words])
        told = capsys.readouterr().err
        assert words[0] in told
        assert ("a text is given by --input-path" in told) == (words == [__file__])


def test_settings_that_are_no_such_thing() -> None:
    for drafts in ("", "cpoy", DRAFTS["copy"]):
        with pytest.raises(ValueError, match=r"--drafts .*: is neither a file nor one of .*copy"):
            Settings("data", "verifier.pt", drafts=drafts)  # type: ignore[arg-type]
    for controller in ("tree", None, 3):
        with pytest.raises(TypeError, match=r"controller: is .*give an object"):
            Settings("data", "verifier.pt", controller=controller)  # type: ignore[arg-type]


def test_a_rule_without_options() -> None:
    """Somebody's own, from Python: it decodes greedily, and no beam takes it."""

    class Anything(AcceptanceRule):
        name = "anything"
        lossless = False

    assert Settings("data", "verifier.pt", rule=Anything()).rule.values == {}
    with pytest.raises(ValueError, match=r"^anything: does not work with --beam 5"):
        Settings("data", "verifier.pt", rule=Anything(), beam=5)


def test_the_help_names_all_kinds_of_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those, too, that registered themselves after the settings were imported."""

    class Own(DraftKind):
        name = "own"
        help = "own: of a file of mine"

    monkeypatch.setitem(DRAFTS, "own", Own())
    (drafts,) = (a for a in TranslationParser("", [])._actions if a.dest == "drafts")
    assert drafts.help is not None
    assert drafts.help.endswith("; own: of a file of mine")
    assert drafts.help.startswith(DRAFTS["copy"].help)


def test_a_folder_without_a_pair_needs_flags(tmp_path: Path) -> None:
    argv = [str(tmp_path)]
    with pytest.raises(ValueError, match="lacks a checkpoint; give the verifier's by --AR-path"):
        make_settings(TranslationParser(None, argv).parse(argv))


@pytest.mark.parametrize("model", ["verifier.pt", "."])
def test_a_verifier_decodes_with_the_drafter_that_is_named(model: str, world: Path) -> None:
    """Or the verifier of a pair's folder."""
    drafter = str(world / "drafter.pt")
    argv = [str(world / model), "--path", drafter]
    settings = make_settings(TranslationParser(None, argv).parse(argv))
    assert (settings.path, settings.ar_path) == (drafter, str(world / "verifier.pt"))
    assert settings.bpe == "subword_nmt"
    assert settings.has_drafter


def test_dictionaries_are_taken_beside_named_models(tmp_path: Path) -> None:
    """With the segmentation that lies beside them."""
    (tmp_path / "segmentation.json").write_text('{"tokenizer": "moses"}')
    settings = settings_of("--dictionaries", str(tmp_path))
    assert (settings.data, settings.tokenizer) == (str(tmp_path), "moses")
    assert (settings_of().data, settings_of().tokenizer) == ("data", None)
