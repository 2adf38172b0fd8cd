"""Check an acceptance head's predictions, fit temperature and bias, write it for use.

    scripts/calibrate_head.py SAVE_DIR/checkpoint_best.pt DRAFTER_DIR/acceptance_head.pt

Prints AUROC, expected calibration error (ECE) and Brier score on the valid set, of the
probabilities of single tokens and of survival (their running product).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.evaluation import calibration
from specdec_plugins.evaluation.table import markdown
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.output import JsonObject, reserved, write_json

PROG = program("calibrate_head.py")


@command(PROG, failed=1)
def main(argv: Sequence[str]) -> None:
    """Fit the head, write it, and print how good its predictions are."""
    parser = Parser(PROG, __doc__)
    add = parser.add_argument
    add("checkpoint", help="a checkpoint of scripts/train_head.sh")
    add("output", help="the file to write: acceptance_head.pt beside its drafter")
    add("--data", help="binarised text, if not that of the training")
    add("--subset", default="valid", help="of the data (default: valid)")
    add("--AR-path", help="the verifier, if not where it was in training")
    add("--drafter", help="the drafter, if not where it was in training")
    add("--no-fit", action="store_true", help="leave the head's logits as they are")
    add("--json", metavar="FILE", help="write all figures, by slot too")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    args = parser.parse_args(argv)
    outputs = [("OUTPUT", args.output), ("--json", args.json)]
    inputs = {"CHECKPOINT": args.checkpoint, "--AR-path": args.AR_path, "--drafter": args.drafter}
    with reserved(outputs, inputs.items()):
        models = {"data": args.data, "AR_path": args.AR_path, "drafter": args.drafter}
        trained = calibration.TrainedHead(args.checkpoint, **models)
        bar = sys.stderr.isatty() and not args.no_progress_bar
        predictions = trained.predict(args.subset, bar=bar)
        temperature, bias = (1.0, 0.0) if args.no_fit else calibration.fit_calibration(predictions)
        size = save_head(args.output, trained.calibrated(temperature, bias))
        results = {
            "temperature": temperature,
            "bias": bias,
            "uncalibrated": calibration.report(predictions),
            "calibrated": calibration.report(predictions.at(temperature, bias)),
        }
        if args.json:
            write_json(Path(args.json), results)
    put("".join(f"{line}\n" for line in table(results)))
    put(f"{args.output}: {size / 1e3:.0f} kB, temperature {temperature:.3f}, bias {bias:.3f}\n")


def table(results: JsonObject) -> Iterator[str]:
    """Yield a table of the metrics of tokens and of survival, and of survival by slot."""
    stages = ("uncalibrated", "calibrated")
    rows = {f"{s} {name}": results[s][name] for s in stages for name in ("token", "survival")}
    slots = enumerate(results["calibrated"]["survival_by_slot"])
    rows |= {f"survival of slot {slot}": metrics for slot, metrics in slots}
    names = ("observed", "predicted", "auroc", "ece", "brier")
    cells = ([n, str(row["slots"]), *(f"{row[k]:.4f}" for k in names)] for n, row in rows.items())
    yield from markdown(("", "slots", *names), cells)
