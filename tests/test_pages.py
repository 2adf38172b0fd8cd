"""README and the manual: figures, links, names and commands are those of the project."""

from __future__ import annotations

import hashlib
import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```\n", re.S | re.M)
COMMAND = re.compile(r"^(?:\./)?(?:scripts/(\w+)\.(py|sh)|specdec-([\w-]+))\b")


@cache
def text(page: Path) -> str:
    return page.read_text("utf-8")


def maker() -> ModuleType:
    module: ModuleType = load_script("pages")
    return module


CARDS = sorted((ROOT / "checkpoints").glob("*/README.md"))


@pytest.mark.parametrize("page", [*PAGES, *CARDS], ids=lambda page: page.parent.name + page.name)
def test_tables_are_those_of_their_figures(page: Path) -> None:
    """Else run scripts/pages.py."""
    assert maker().render(text(page)) == text(page)


def test_a_figure_that_parts_from_its_page_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    comparison: dict[str, Any] = {"compared": "a", "lines": 9, "differ": 2}
    machine = {"processor": "P", "cores": 2, "versions": {"v": "1"}, "last_run": "2026-01-02T"}
    about = {"machine": machine, "engine": "eager", "precision": "float32"}
    gaps = {"largest_gap": 0.5, "median_gap": None}
    figures = {**about, "comparisons": [{**comparison, **gaps}]}
    (tmp_path / "some.json").write_text(module.json.dumps(figures))
    page = "before\n<!-- table: some -->\nold\n<!-- end -->\nafter\n"
    made = module.render(page)
    assert "| a | 2 of 9 | 0.500 |  |" in made
    assert made.startswith("before\n<!-- table: some -->\n|")
    assert made.endswith("<!-- end -->\nafter\n")
    assert module.render(made) == made
    monkeypatch.setattr(module, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="there is no"):
        module.render(page.replace("some", "none"))


def test_figures_of_models_that_were_replaced_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of shipped ones; not those of another drafter, which was meant to be another."""
    module = maker()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    pair = tmp_path / "checkpoints" / "pair"
    pair.mkdir(parents=True)
    digests = {}
    for name in ("verifier", "drafter"):
        (pair / f"{name}.pt").write_bytes(name.encode())
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    machine = {"processor": "P", "cores": 2, "versions": {"v": "1"}, "last_run": "2026-01-02T"}
    named = "--AR-path checkpoints/pair/verifier.pt --path "
    for changed, path, said in (
        ((), "checkpoints/pair/drafter.pt", ""),
        (("drafter",), "checkpoints/pair/drafter.pt", "; of an earlier drafter"),
        (("drafter",), "runs/part/checkpoint_last.pt", ""),
        (("verifier",), "runs/part/checkpoint_last.pt", "; of an earlier verifier"),
        (("drafter", "verifier"), None, "; of an earlier verifier and drafter"),
    ):
        flags = named + path if path else ""
        models = {**digests, **dict.fromkeys(changed, "0" * 64)}
        figures = {"machine": machine, "models": models}
        made = module.made_with({**figures, "command": f"x.py checkpoints/pair {flags}"})
        assert made == f"P, 2 cores; v 1; 2026-01-02{said}"
    assert module.made_with({"machine": machine}) == "P, 2 cores; v 1; 2026-01-02"


def spread(value: float, rounds: int = 5) -> dict[str, float]:
    return {"median": value, "mean": value, "low": value, "high": value, "rounds": rounds}


def benchmark(batch: int, milliseconds: dict[str, float]) -> dict[str, Any]:
    """As specdec-benchmark writes it, in short."""
    about = {"text": None, "strategy": "CTranslate2", "engine": "CTranslate2", "precision": "int8"}
    about |= {"batch": batch, "threads": 2, "sentences": 7, "seeds": None, "rule": None}
    about |= {"bleu": spread(17.04, 1), "tokenised_bleu": spread(16.04, 1), "options": None}
    systems = [
        {
            "system": name,
            **about,
            "milliseconds_a_sentence": spread(ms),
            "speed_over_baseline": {**spread(20 / ms), "low": 1, "high": 9},
            "memory_mib": 10 * ms,
        }
        for name, ms in milliseconds.items()
    ]
    return {
        "machine": {"processor": "P", "cores": 2, "versions": {}, "last_run": "2026-01-02T"},
        "baseline": "slow",
        "bleu_signature": "signed",
        "groups": [{"conditions": f"cpu, batch {batch}", "systems": systems}],
    }


def first_page(unlike: int) -> list[dict[str, Any]]:
    """Figures of speed and of quality that README's first lines are made of."""
    kinds: dict[str, tuple[str, str, int | None, str | None]] = {
        "fairseq beam 5": ("fairseq", "float32", 5, None),
        "fairseq beam 1": ("fairseq", "float32", 1, None),
        "CTranslate2 int8": ("CTranslate2", "int8", 1, None),
        "CTranslate2 int8:avx512": ("CTranslate2", "int8", 1, None),
        "AR float32": ("AR", "float32", 1, None),
        "strict float32": ("specdec", "float32", 1, "strict"),
        "relaxed float32": ("specdec", "float32", 1, "relaxed"),
        "AR int8": ("AR", "int8", 1, None),
        "strict int8": ("specdec", "int8", 1, "strict"),
    }
    run = benchmark(1, dict(zip(kinds, (80, 40, 9, 8, 20, 10, 5, 6, 7))))
    run |= {"baseline": "fairseq beam 1"}
    for system in run["groups"][0]["systems"]:
        strategy, precision, beam, rule = kinds[system["system"]]
        system |= {"strategy": strategy, "precision": precision, "beam": beam, "rule": rule}
        system |= {"drafter_precision": "int8" if system["system"] == "strict float32" else None}
        system |= {"lines_unlike_CTranslate2_float32": unlike}
    return [run, run]


@pytest.mark.parametrize(
    ("unlike", "words"),
    [(0, "the same words: one"), (3, "the same words in all but 3 of 7 lines: one")],
)
def test_the_claim_and_the_table_of_readme_are_of_the_fastest_of_each_kind(
    unlike: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relaxed output is none of them; that words are the same is claimed as it was counted."""
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    for name, run in zip(("speed", "quality"), first_page(unlike)):
        (tmp_path / f"{name}.json").write_text(module.json.dumps(run))
    claim = " ".join(module.table("speed", ["view=claim", "quality=quality"]).split())
    assert claim.startswith("**specdec runs a fairseq translation model 2.0 times as fast as")
    assert f"{words} sentence at a time, on 2 cores of an P.**" in claim
    _, _, *lines = module.table("speed", ["view=first", "quality=quality"]).splitlines()
    assert lines[:5] == [
        "| fairseq, beam 5 | 80.0 | 0.2 | 17.0 |",
        "| fairseq, beam 1 | 40.0 | 0.5 | 17.0 |",
        "| CTranslate2, int8 | 8.0 | 2.5 | 17.0 |",
        "| specdec, same words, int8 drafts | 10.0 | 2.0 | 17.0 |",
        "| specdec, int8, no drafts | 6.0 | 3.3 | 17.0 |",
    ]
    assert lines[-1].startswith("*P, 2 threads; time: medians over 7 lines, BLEU: 7 lines")
    speed = module.read_figures("speed")
    picture = module.first_page.chart([("<P>", "one & two", module.first_page.rows(speed))])
    assert picture.count("<rect") == 1 + 5
    assert "&lt;P&gt;" in picture


def test_what_the_first_page_cannot_be_made_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    speed, quality = first_page(0)

    def made(*changed: dict[str, Any], **about: str) -> str:
        figures = {**speed, **about, "groups": [{**speed["groups"][0], "systems": list(changed)}]}
        (tmp_path / "speed.json").write_text(module.json.dumps(figures))
        (tmp_path / "quality.json").write_text(module.json.dumps({**quality, "groups": []}))
        words: str = module.table("speed", ["view=claim", "quality=quality"])
        return words

    systems = speed["groups"][0]["systems"]
    with pytest.raises(ValueError, match="speed: no quality of strict float32"):
        made(*systems)
    with pytest.raises(ValueError, match="speed: the first page wants speeds over fairseq beam 1"):
        made(*systems, baseline="AR")
    with pytest.raises(ValueError, match="speed: the first page wants one batch size and thread"):
        made(*systems[1:], {**systems[0], "threads": 1})


def test_lines_that_differ_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    run = benchmark(1, {"AR": 20, "strict": 5})
    for system, count in zip(run["groups"][0]["systems"], (0, 3)):
        system |= {"lines_unlike_AR": count, "lines_unlike_CTranslate2_float32": 4}
    (tmp_path / "whole.json").write_text(module.json.dumps(run))
    head, _, *lines = module.table("whole", ["view=quality"]).splitlines()
    # Nothing is said of CTranslate2, which is not in the table.
    assert head == "| system | BLEU | tokenised BLEU | lines unlike AR |"
    assert lines[:2] == ["| AR | 17.0 | 16.0 | 0 |", "| strict | 17.0 | 16.0 | 3 |"]
    assert "unlike" not in module.table("whole", ["view=short"])
    with pytest.raises(ValueError, match="table whole: there is no view=long"):
        module.table("whole", ["view=long"])


def test_texts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)

    def group(text: str, bleu: float, length: float) -> dict[str, Any]:
        every = {"text": text, "sentences": 9, "bleu": spread(bleu, 1)}
        systems = [
            {**every, "system": "AR", "controller": None, "acceptance_length": 1.0},
            {**every, "system": "tree 8", "controller": "tree", "acceptance_length": length},
        ]
        return {"conditions": f"{text}: cpu, strict", "systems": systems}

    machine = {"processor": "P", "cores": 2, "versions": {}, "last_run": "2026-01-02T"}
    figures = {"machine": machine, "groups": [group("one", 17.04, 2.5), group("two", 30, 4)]}
    figures |= {"baseline": "AR", "bleu_signature": None}
    (tmp_path / "texts.json").write_text(module.json.dumps(figures))
    head, _, *lines = module.table("texts", ["view=texts"]).splitlines()
    assert head == "| text | BLEU of AR | tree 8 |"
    assert lines[:2] == ["| one | 17.0 | 2.50 |", "| two | 30.0 | 4.00 |"]
    assert lines[-1].startswith("*9 lines; cpu, strict; P, 2 cores; ")


def test_drafters_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = maker()
    monkeypatch.setattr(module, "FIGURES", tmp_path)

    def write(name: str, length: float, rule: str = "strict", *texts: str, rounds: int = 1) -> None:
        def group(text: str | None, length: float) -> dict[str, Any]:
            speed = {**spread(length / 2, rounds), "low": 1.0, "high": length}
            every = {"text": text, "sentences": 9, "speed_over_baseline": speed}
            systems = [
                {**every, "system": "AR", "controller": None, "acceptance_length": 1.0},
                {**every, "system": "tree 8", "controller": "tree", "acceptance_length": length},
                {**every, "system": "k 8", "controller": "k", "acceptance_length": length + 1},
            ]
            how = f"cpu, {rule}"
            return {"conditions": f"{text}: {how}" if text else how, "systems": systems}

        groups = [group(text, length + i) for i, text in enumerate(texts or [None])]
        machine = {"processor": "P", "cores": 2, "versions": {}, "last_run": "2026-01-02T"}
        run = {"machine": machine, "baseline": "AR", "groups": groups}
        (tmp_path / f"{name}.json").write_text(module.json.dumps(run))

    write("a", 3)
    write("a-depth-1", 2)
    write("a-no-head", 1)
    head, _, *lines = module.table("a", ["drafters=depth-1,no-head"]).splitlines()
    assert head == "| drafter | tree 8 | k 8 |"
    assert lines[:3] == [
        "| as in the recipe | 3.00 | 4.00 |",
        "| depth 1 | 2.00 | 3.00 |",
        "| no head | 1.00 | 2.00 |",
    ]
    assert lines[-1].startswith("*9 lines; cpu, strict; P, 2 cores; ")
    write("a-no-head", 1, "relaxed")
    with pytest.raises(ValueError, match="no head: has parted from what it is compared with"):
        module.table("a", ["drafters=depth-1,no-head"])
    # Of several texts, in several rounds.
    write("a", 3, "strict", "one", "two", rounds=5)
    write("a-few", 2, "strict", "one", "two", rounds=5)
    head, _, *lines = module.table("a", ["drafters=few", "own=all-of-them"]).splitlines()
    assert head.startswith("| drafter | one, tree 8 | one, tree 8, x AR | one, k 8 |")
    assert lines[0].startswith("| all of them | 3.00 | 1.50 (1.00 to 3.00) | 4.00 |")
    assert lines[1].endswith("| 3.00 | 1.50 (1.00 to 3.00) | 4.00 | 1.50 (1.00 to 3.00) |")
    head = module.table("a", ["drafters=few", "controller=k"]).splitlines()[0]
    assert head == "| drafter | one, k 8 | one, k 8, x AR | two, k 8 | two, k 8, x AR |"
    assert lines[-1].startswith("*9 lines; cpu, strict; P, 2 cores; ")
    write("a-few", 2, "strict", "one")
    with pytest.raises(ValueError, match="few: has parted"):
        module.table("a", ["drafters=few"])


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [*PAGES, *CARDS], ids=lambda page: page.parent.name + page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(text(page)):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_can_be_read(page: Path) -> None:
    """Tables, which cannot be broken, apart."""
    prose = [line for line in text(page).splitlines() if not line.startswith(("|", "*", "!["))]
    assert [line for line in prose if len(line) > 120] == []


def test_the_readme_is_short() -> None:
    """In lines, and in numbers before somebody knows what it is."""
    lines = text(PAGES[0]).splitlines()
    assert len(lines) <= 130
    seen = [line for line in lines[:40] if not line.startswith("<!--")]
    assert len(re.findall(r"\d+(?:[.,]\d+)*", "\n".join(seen))) <= 45


def test_pictures_are_those_of_their_figures() -> None:
    """Else run scripts/pages.py."""
    module = maker()
    for name, draw in module.PICTURES.items():
        assert draw() == (module.FIGURES / name).read_text("utf-8"), name


def test_every_page_is_in_the_readme() -> None:
    for page in PAGES[1:]:
        assert f"](docs/{page.name})" in text(PAGES[0]), page.name


def commands(page: Path) -> list[list[str]]:
    """The indented commands of a page, as words."""
    lines = [line[4:] for line in text(page).splitlines() if line.startswith("    ")]
    whole = re.sub(r" \\\n\s*", " ", "\n".join(lines)).splitlines()
    return [shlex.split(line, comments=True) for line in whole if COMMAND.match(line)]


@cache
def known_flags(name: str, kind: str) -> str:
    """What a command says of its flags."""
    if kind == "sh":
        return (ROOT / f"scripts/{name}.sh").read_text("utf-8")
    command = ROOT / f"specdec_plugins/cli/{name}.py"
    # Some scripts are no doors to a command.
    script = command if command.is_file() else ROOT / f"scripts/{name}.py"
    source = script.read_text("utf-8")
    if "TranslationParser(" not in source:
        return source
    if "import INTERRUPTED" in source:
        source += (ROOT / "specdec_plugins/cli/experiment.py").read_text("utf-8")
    from specdec_plugins.inference.flags import TranslationParser

    parser = TranslationParser(name, None, [])
    parser._add_fairseq_flags()
    return source + " ".join(parser._option_string_actions)


def test_commands_and_their_flags_exist() -> None:
    """Of our own commands. Those of fairseq are run by tests of its doors, and what extending.md
    adds by a test of its own."""
    found = 0
    for page in (page for page in PAGES if page.name != "extending.md"):
        for first, *rest in commands(page):
            match = COMMAND.match(" ".join([first, *rest]))
            assert match is not None
            script, kind, installed = match.groups()
            if installed:
                name = {"translate": "inference", "export": "export_checkpoint"}.get(
                    installed, installed.replace("-", "_")
                )
                kind = "py"
                assert f'"specdec-{installed}": "{name}"' in (ROOT / "setup.py").read_text("utf-8")
            else:
                name = script
            path = ROOT / f"scripts/{name}.{kind}"
            assert path.is_file(), f"{page.name}: {first}"
            found += 1
            own = known_flags(name, kind)
            for word in rest:
                if (
                    word.startswith("--")
                    and name not in ("train", "distill")
                    and (not name.startswith("train_"))
                ):
                    flag = word.split("=")[0]
                    assert flag in own, f"{page.name}: {name} has no {flag}"
    assert found > 30


SOURCES = [*(ROOT / "specdec_plugins").rglob("*.py"), *(ROOT / "scripts").glob("*")]


@cache
def said() -> str:
    """All that the project says, adjacent strings joined."""
    whole = "\n".join(p.read_text("utf-8") for p in SOURCES if p.is_file())
    return re.sub(r"\"\s*\n\s*f?\"", "", whole)


def test_messages_of_the_troubleshooting_page_are_said() -> None:
    page = text(ROOT / "docs/troubleshooting.md")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    for row in rows:
        for message in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            for part in re.split(r"\.\.\.|\b[NM]\b|\(No space[^)]*\)", message):
                words = part.strip(" :;,()")
                if len(words) > 7:
                    assert words in said(), f"{words!r} of {message!r}"
