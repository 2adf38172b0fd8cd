"""The published project's commands as its documentation has them, in ``scripts/``.

Only sizes and lengths are changed, ``--cpu`` is added in place of ``--fp16``, which fairseq trains
with on GPUs alone, and no process loads data.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from helpers.models.trained import Trained
from helpers.runs.scripts_here import SCRIPTS, run

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import encoder_initial, inference

TRAIN = """
    --arch block --noise block_mask --share-all-embeddings --criterion glat_loss
    --label-smoothing 0.1 --lr 5e-4 --warmup-init-lr 1e-7 --stop-min-lr 1e-9
    --lr-scheduler inverse_sqrt --warmup-updates 10000 --optimizer adam
    --adam-betas (0.9,0.999) --adam-eps 1e-6 --task translation_lev_modified --max-tokens 200
    --weight-decay 0.01 --dropout 0.1 --encoder-layers 1 --encoder-embed-dim 16
    --decoder-layers 1 --decoder-embed-dim 16 --encoder-ffn-embed-dim 32
    --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2
    --max-source-positions 1000 --max-target-positions 1000 --max-update 4 --seed 1 --clip-norm 5
    --mse-lambda 10 --src-embedding-copy --log-interval 2 --block-size 25 --total-up 4
    --update-freq 2 --decoder-learned-pos --encoder-learned-pos --apply-bert-init
    --activation-fn gelu --reset-optimizer --reset-meters --reset-lr-scheduler
    --reset-dataloader --user-dir specdec_plugins --cpu --num-workers 0
"""
INFERENCE = """
    --user-dir specdec_plugins --task translation_lev_modified --remove-bpe --max-sentences 20
    --source-lang en --target-lang de --iter-decode-max-iter 0 --iter-decode-eos-penalty 0
    --iter-decode-with-beam 1 --gen-subset test --batch 1 --beam 1 --strategy specdec
    --block-size 25 --beta 5 --tau 3.0 --cpu --stats
"""


def test_the_whole_workflow(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Initialise, train, translate, score."""
    monkeypatch.chdir(SCRIPTS)
    monkeypatch.syspath_prepend(SCRIPTS)
    initial, save_dir = tmp_path / "initial_checkpoint.pt", tmp_path / "drafter"
    assert encoder_initial.main([str(trained.verifier), str(initial)]) == 0
    files = f"{trained.data} --save-dir {save_dir} --restore-file {initial}"
    monkeypatch.setattr("sys.argv", ["train.py", *files.split(), *TRAIN.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path("train.py", run_name="__main__")
    assert not ended.value.code
    assert "--mse-lambda does nothing" in caplog.text
    drafter = save_dir / "checkpoint_last.pt"
    assert load_state(drafter)["num_updates"] == 4

    output, source = tmp_path / "found.de", trained.folder / "valid.en"
    pair = [str(trained.data), "--path", str(drafter), "--AR-path", str(trained.verifier)]
    pair += ["--input-path", str(source), "--output-path", str(output)]
    capsys.readouterr()
    assert inference.main([*pair, *INFERENCE.split()]) == 0
    assert len(output.read_text("utf-8").splitlines()) == 14
    captured = capsys.readouterr()
    assert captured.out == ""
    said = {"settings.block_size: 25", "settings.rule.beta: 5", "settings.rule.tau: 3.000"}
    assert said <= {*captured.err.splitlines()}
    done = run("./ref.sh", output, trained.folder / "valid.de", folder=SCRIPTS, status=0)
    assert "BLEU4 = " in done.stdout
