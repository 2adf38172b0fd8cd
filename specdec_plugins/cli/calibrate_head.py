"""Check an acceptance head's predictions, fit temperature and bias, write it for use.

    scripts/calibrate_head.py SAVE_DIR/checkpoint_best.pt DRAFTER_DIR/acceptance_head.pt

Prints AUROC, expected calibration error (ECE) and Brier score on the valid set, of the
probabilities of single tokens and of survival (their running product). Data and models are those
of the training, unless named again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.evaluation.calibration import (
    TrainedHead,
    fit_calibration,
    plot_reliability,
    report,
)
from specdec_plugins.evaluation.plots import check_plotting
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.lock import NamedPaths, check_paths, reserved
from specdec_plugins.files.output import JsonObject, write_json

PROG = program("calibrate_head.py")


@command(PROG, failed=1)
def main(argv: Sequence[str]) -> None:
    parser = Parser(PROG, __doc__)
    parser.add_argument("checkpoint", help="a checkpoint of scripts/train_head.sh")
    parser.add_argument("output", help="the file to write: acceptance_head.pt beside its drafter")
    parser.add_argument("--data", help="binarised text, if not that of the training")
    parser.add_argument("--subset", default="valid", help="of the data (default: valid)")
    parser.add_argument("--AR-path", help="the verifier, if not where it was in training")
    parser.add_argument("--drafter", help="the drafter, if not where it was in training")
    parser.add_argument("--no-fit", action="store_true", help="leave the head's logits as they are")
    parser.add_argument("--plot", metavar="PNG", help="draw diagrams (needs matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write all figures, by slot too")
    parser.add_argument(
        "--no-progress-bar", action="store_true", help="no progress bar on a terminal"
    )
    args = parser.parse_args(argv)
    outputs = [("OUTPUT", args.output), ("--json", args.json), ("--plot", args.plot)]
    given = {"CHECKPOINT": args.checkpoint, "--AR-path": args.AR_path, "--drafter": args.drafter}
    if args.plot:
        check_plotting("or leave out --plot")
    with reserved(outputs, given.items()):
        calibrate(args, outputs)


def calibrate(args: argparse.Namespace, outputs: NamedPaths) -> None:
    """Fit the head, write it, and tell what its predictions are worth."""
    trained = TrainedHead(
        args.checkpoint, data=args.data, AR_path=args.AR_path, drafter=args.drafter
    )
    check_paths(outputs, trained.files)
    seen = sys.stderr.isatty() and not args.no_progress_bar
    predictions = trained.predict(args.subset, bar=seen)
    temperature, bias = (1.0, 0.0) if args.no_fit else fit_calibration(predictions)
    size = save_head(args.output, trained.calibrated(temperature, bias))
    calibrated = predictions.at(temperature, bias)
    results = {
        "temperature": temperature,
        "bias": bias,
        "uncalibrated": report(predictions),
        "calibrated": report(calibrated),
    }
    if args.json:
        write_json(Path(args.json), results, "--json")
    if args.plot:
        plot_reliability(calibrated, args.plot, args.output)
    show(results)
    put(f"{args.output}: {size / 1e3:.0f} kB, temperature {temperature:.3f}, bias {bias:.3f}\n")


def show(results: JsonObject) -> None:
    names = f"{'slots':>8}{'observed':>10}{'predicted':>10}{'AUROC':>8}{'ECE':>8}{'Brier':>8}"
    put(f"{'':24}{names}\n")
    for stage in ("uncalibrated", "calibrated"):
        for name in ("token", "survival"):
            row(f"{stage} {name}", results[stage][name])
    for slot, metrics in enumerate(results["calibrated"]["survival_by_slot"]):
        row(f"  survival of slot {slot}", metrics)


def row(name: str, metrics: dict[str, float]) -> None:
    figures = (f"{metrics[key]:.4f}" for key in ("observed", "predicted", "auroc", "ece", "brier"))
    observed, predicted, *rest = figures
    quality = "".join(f"{figure:>8}" for figure in rest)
    put(f"{name:24}{metrics['slots']:>8}{observed:>10}{predicted:>10}{quality}\n")
