"""Measure an acceptance head's predictions, fit temperature and bias, and write the head.

    scripts/calibrate_head.py SAVE_DIR/checkpoint_best.pt DRAFTER_DIR/acceptance_head.pt

It prints AUROC, expected calibration error (ECE) and Brier score on the valid set, for the
probabilities of single tokens and of survival (their running product).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.evaluation import calibration
from specdec_plugins.evaluation.plots import FORMATS, check_installed, save_figure
from specdec_plugins.evaluation.table import markdown
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.output import reserved


@command(failed=1)
def main(argv: Sequence[str]) -> None:
    """Fit the head, write it, and print how good its predictions are."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("checkpoint", help="a checkpoint of scripts/train_head.sh")
    add("output", help="the file to write: acceptance_head.pt beside its drafter")
    add("--data", help="binarised text, if not that of the training")
    add("--subset", default="valid", help="subset of it (valid)")
    add("--AR-path", help="the verifier, if not where it was in training")
    add("--drafter", help="the drafter, if not where it was in training")
    add(
        "--plot", metavar="NAME", type=Path, help="draw the reliability diagram: NAME.png, NAME.svg"
    )
    args = parser.parse_args(argv)
    if args.plot:
        check_installed("do without --plot")
    inputs = {"CHECKPOINT": args.checkpoint, "--AR-path": args.AR_path, "--drafter": args.drafter}
    outputs = [("OUTPUT", args.output)]
    if args.plot:
        outputs += [("--plot", f"{args.plot}.{kind}") for kind in FORMATS]
    with reserved(outputs, inputs.items()):
        trained = calibration.TrainedHead(
            args.checkpoint, data=args.data, AR_path=args.AR_path, drafter=args.drafter
        )
        predictions = trained.predict(args.subset)
        temperature, bias = calibration.fit_calibration(predictions)
        head = trained.head
        head.calibrate(temperature, bias)
        size = save_head(args.output, head)
        calibrated = predictions.at(temperature, bias)
        if args.plot:
            curves = {"uncalibrated": predictions, "calibrated": calibrated}
            save_figure(calibration.reliability(curves), args.plot)
    before = calibration.report(predictions)
    after = calibration.report(calibrated)
    rows = {f"uncalibrated {name}": before[name] for name in ("token", "survival")} | after
    names = ("observed", "predicted", "auroc", "ece", "brier")
    heads = ("", "slots", *names)
    cells = []
    for name, row in rows.items():
        figures = [f"{row[key]:.4f}" for key in names]
        cells.append([name, str(row["slots"]), *figures])
    put("\n".join(markdown(heads, cells)) + "\n")
    put(f"{args.output}: {size / 1e3:.0f} kB, temperature {temperature:.3f}, bias {bias:.3f}\n")
