"""What needs no fairseq works where there is none."""

from __future__ import annotations

import sys

from scripts_here import SCRIPTS, run

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            raise ImportError(f"{name}: is not to be imported here")

sys.meta_path.insert(0, Blocked())
"""

CORE = """
import importlib
import pkgutil

import torch

import specdec_plugins.decoding.acceptance
import specdec_plugins.decoding.controllers
import specdec_plugins.decoding.drafts
import specdec_plugins.decoding.steps.cache
import specdec_plugins.decoding.steps.prefixes

names = "batch", "kernels", "limits", "options", "statistics", "step_result"
for name in names:
    importlib.import_module(f"specdec_plugins.decoding.{name}")
for package in ("acceptance", "controllers", "drafts"):
    found = importlib.import_module(f"specdec_plugins.decoding.{package}")
    for module in pkgutil.iter_modules(found.__path__):
        importlib.import_module(f"{found.__name__}.{module.name}")

from specdec_plugins.decoding.acceptance import Verification, choose_rule
from specdec_plugins.decoding.controllers.simple import Confidence
from specdec_plugins.decoding.drafts import ChainDraft, LatticeTrees
from specdec_plugins.models.lattice import Lattice

# A step of a chain and one of a tree, by a controller.
controller = Confidence(confidence_threshold=0.5).ready(2)
tokens, states = torch.tensor([[3, 4]]), torch.zeros(1, 2, 1)
likely = torch.tensor([[0.9, 0.1]])
draft = ChainDraft(tokens, controller.start(1), torch.tensor([2]), states, likely)
draft = draft.cut(controller.verify_lengths(draft))
scores = torch.nn.functional.one_hot(torch.tensor([[3, 4, 5]]), 6).float().log_softmax(-1)
rule = choose_rule({})
print(draft.accept(rule, Verification(scores[:, :2], eos=2), None).tokens.tolist())
lattice = Lattice(tokens[..., None], torch.zeros(1, 1), torch.zeros(1, 1, 1, 1))
tree = LatticeTrees(lattice, eos=2, pad=1).grow(2, [2], [True])
print(tree.accept(rule, Verification(scores, eos=2), None).tokens.tolist())
assert not any(name.partition(".")[0].startswith("fairseq") for name in sys.modules)
"""


def test_the_core_needs_no_fairseq() -> None:
    found = run(sys.executable, "-c", BLOCKED + CORE, status=0, PYTHONPATH=SCRIPTS.parent)
    assert found.stdout.splitlines() == ["[[3, 4]]", "[[3, 4, 5]]"]
