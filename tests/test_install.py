"""The package as it is installed, as a wheel or editable: found by name from an empty folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import fairseq
import pytest
from helpers.models.trained import Trained
from helpers.runs.scripts_here import run as run_program

from specdec_plugins.checkpoints.loading import load_state

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('out'))"


def run(folder: Path, *command: object, path: Path | str = "", status: int = 0) -> Any:
    return run_program(sys.executable, *command, folder=folder, status=status, PYTHONPATH=path)


@pytest.fixture(
    scope="module", params=["build_wheel", pytest.param("build_editable", marks=pytest.mark.slow)]
)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages, with what pip puts there, beside fairseq."""
    pytest.importorskip("wheel")
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "specdec_plugins",
        source / "specdec_plugins",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    wheel = run(source, "-c", BUILD, request.param).stdout.splitlines()[-1]
    with ZipFile(source / "out" / wheel) as archive:
        assert archive.testzip() is None
        archive.extractall(site)
    # Its files are links, but the folder is not: fairseq looks for plugins beside it.
    (site / "fairseq").mkdir()
    for file in Path(fairseq.__file__).parent.iterdir():
        (site / "fairseq" / file.name).symlink_to(file)
    return site


REGISTERED = """
import sys
import specdec_plugins
assert "fairseq" not in sys.modules
specdec_plugins.register()
specdec_plugins.register()
from argparse import Namespace
from fairseq import utils
utils.import_user_module(Namespace(user_dir="specdec_plugins"))
import specdec_plugins.inference.loading
from specdec_plugins.host.fairseq_import import LIBRARIES
assert not set(LIBRARIES) & set(sys.modules)
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
for registry in (TASK_REGISTRY, MODEL_REGISTRY, CRITERION_REGISTRY):
    ours = (n for n, made in registry.items() if made.__module__.startswith("specdec_plugins."))
    print(*sorted(ours))
print("quiet so far", file=sys.stderr)
from importlib.metadata import distribution
sys.argv = ["/bin/specdec-translate", "nowhere"]
mains = {e.name: e.load() for e in distribution("specdec-plugins").entry_points}
assert len(mains) >= 10
sys.exit(mains["specdec-translate"]())
"""


def test_all_is_found_by_name_and_registered_once_it_is_asked_for(
    site: Path, tmp_path: Path
) -> None:
    """And nothing of fairseq is imported before, nor what only others' tasks need; to ask again,
    or by ``--user-dir``, does nothing. Messages name a command as it was called."""
    done = run(tmp_path, "-c", REGISTERED, path=site, status=1)
    first, *_, last = done.stderr.splitlines()
    assert first == "quiet so far"
    assert last == "specdec-translate: nowhere: no such file or folder"
    assert done.stdout.splitlines() == [
        "translation_lev_modified translation_specdec",
        "acceptance_head block block_causal",
        "acceptance_loss glat_loss",
    ]


@pytest.mark.slow
def test_a_recipe_trains_by_hydra(trained: Trained, tmp_path: Path) -> None:
    """By its own command, from any folder, with the package that is installed here."""
    names = ("encoder_embed_dim", "verifier_embed_dim", "decoder_embed_dim")
    small = dict.fromkeys(names, 16) | {"decoder_ffn_embed_dim": 32, "decoder_attention_heads": 2}
    (tmp_path / "empty").mkdir()
    run(
        tmp_path / "empty",
        *("-m", "fairseq_cli.hydra_train", "--config-dir", ROOT / "config"),
        *("--config-name", "multi30k_drafter", f"task.data={trained.data}"),
        f"task.AR_path={trained.verifier}",
        *(f"checkpoint.save_dir={tmp_path}/out", *(f"model.{n}={v}" for n, v in small.items())),
        *("common.cpu=true", "optimization.max_update=4", "dataset.max_tokens=100"),
        "dataset.num_workers=0",
    )
    state = load_state(tmp_path / "out" / "checkpoint_best.pt")
    assert state["cfg"]["model"].block_size == 12
