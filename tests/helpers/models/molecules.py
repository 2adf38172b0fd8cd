"""ANNalog: the published weights of the package ``annalog`` (MIT), as a fairseq checkpoint.

``pip install annalog --no-deps`` is enough: of its code only the network runs, which is a fairseq
Transformer with other names, one norm's weights after each part, and a bias of the output.
"""

from __future__ import annotations

import pickle
import re
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import torch
from fairseq.models.transformer import base_architecture

from helpers.models.drafters import trainer_state

#: Tokens of a molecule, a line of SMILES.
TOKEN = re.compile(r"\[[^]]+\]|Br|Cl|%\d\d|.")
#: Molecules of medicines and the like.
MOLECULES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CC(=O)Nc1ccc(O)cc1",
    "CN1CCC[C@H]1c1cccnc1",
    "OC(=O)c1ccccc1O",
    "COc1ccc2cc(ccc2c1)C(C)C(=O)O",
    "CN(C)CCOC(c1ccccc1)c1ccccc1",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "Nc1ccc(cc1)S(=O)(=O)Nc1ccccn1",
    "CCN(CC)CC(=O)Nc1c(C)cccc1C",
    "OCC1OC(O)C(O)C(O)C1O",
    "CN(C)C(=N)NC(=N)N",
    "Clc1ccc(cc1)C(c1ccccc1)N1CCNCC1",
    "CCOC(=O)c1ccc(N)cc1",
    "CC(N)Cc1ccccc1",
    "NCCc1ccc(O)c(O)c1",
    "COc1ccc(CCN)cc1OC",
    "Cc1ccc(cc1)S(=O)(=O)NC(=O)NN1CC2CCCC2C1",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O",
    "FC(F)(F)c1ccc(OC(CCNC)c2ccccc2)cc1",
    "Cc1cnc(C)c(OC)c1",
    "OC(Cn1cncn1)(Cn1cncn1)c1ccc(F)cc1F",
    "NC(=O)c1cccnc1",
    "O=C1NC(=O)C(c2ccccc2)(c2ccccc2)N1",
    "CCCCC(=O)OCC",
    "CN1CCN(CC1)c1ccccc1Br",
    "NS(=O)(=O)c1cc(C(=O)O)c(NCc2ccco2)cc1Cl",
    "C/C=C/c1ccc(OC)cc1",
    "N#Cc1ccccc1-c1ccc(C)cc1",
]
#: fairseq's names of parts.
NAMES = {
    r"self_attention\.": "self_attn.",
    r"encoder_attention\.": "encoder_attn.",
    r"\.fc_o\.": ".out_proj.",
    r"\.fc_([qkv])\.": r".\1_proj.",
    "enc_attn_layer_norm": "encoder_attn_layer_norm",
    "ff_layer_norm": "final_layer_norm",
    r"positionwise_feedforward\.fc_": "fc",
    "tok_embedding": "embed_tokens",
    "pos_embedding": "embed_positions",
    "fc_out": "output_projection",
}
#: Layers, heads, channels within the FFN, and positions.
SIZES = (3, 8, 512, 102)
UNK, PAD, BOS, EOS = range(4)


def package() -> Path | None:
    """The folder of the package, if it is installed."""
    spec = find_spec("annalog")
    return None if spec is None else Path(str(spec.origin)).parent


class Published:
    """The package's weights and network."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        try:
            from model_files import seq2seq_attention as code
        finally:
            sys.path.remove(str(folder))
        files = folder / "ckpt_and_vocab"
        self.weights = torch.load(files / "Lev_extended.pt", "cpu", weights_only=True)
        self.tokens = pickle.loads((files / "stereo_experiment_vocab_ttf.pkl").read_bytes())["itos"]
        layers, heads, inner, positions = SIZES
        options = len(self.tokens), 256, layers, heads, inner, 0.0, "cpu", positions
        sides = code.Encoder(*options), code.Decoder(*options)
        self.network = code.Seq2Seq(*sides, PAD, PAD, "cpu").eval()
        self.network.load_state_dict(self.weights)

    @torch.no_grad()
    def greedy(self, molecule: str) -> str:
        """Return the greedy output of the network."""
        words = [self.tokens.index(token) for token in TOKEN.findall(molecule)]
        source = torch.tensor([[BOS, *words, EOS]])
        output = [BOS]
        while output[-1] != EOS and len(output) < SIZES[-1]:
            logits, _ = self.network(source, torch.tensor([output]))
            output.append(int(logits[0, -1].argmax()))
        return "".join(self.tokens[token] for token in output[1:] if token != EOS)

    def save(self, folder: Path) -> None:
        """Write it as a fairseq checkpoint, with its dictionaries."""
        words = self.tokens[4:]
        for language in ("smi", "ana"):
            text = "".join(f"{word} 1\n" for word in words)
            (folder / f"dict.{language}.txt").write_text(text, "utf-8")
        layers, heads, inner, positions = SIZES
        sizes = {"layers": layers, "attention_heads": heads, "ffn_embed_dim": inner}
        sizes |= {"embed_dim": 256, "learned_pos": True, "normalize_before": False}
        sides = ("encoder", "decoder")
        args = Namespace(**{f"{side}_{n}": value for side in sides for n, value in sizes.items()})
        args.max_source_positions = args.max_target_positions = positions
        base_architecture(args)
        plain = (str, int, float, bool, type(None))
        options = {n: value for n, value in vars(args).items() if isinstance(value, plain)}
        languages = {"source_lang": "smi", "target_lang": "ana"}
        cfg = {"model": {**options, "_name": "transformer", "arch": "transformer"}}
        cfg["task"] = {"_name": "translation", **languages}
        weights = {name: torch.tensor([3.0]) for name in ("encoder.version", "decoder.version")}
        model = Namespace(state_dict=lambda: {**weights, **self.renamed()})
        torch.save(trainer_state(cfg, model), folder / "verifier.pt")

    def renamed(self) -> dict[str, object]:
        """Return the weights by fairseq's names, with its tokens."""
        rest = range(4, len(self.tokens))
        order = torch.tensor([BOS, PAD, EOS, UNK, *rest])
        # Targets begin with BOS here, and with EOS there.
        read = torch.tensor([EOS, PAD, BOS, UNK, *rest])
        weights = {}
        for name, tensor in self.weights.items():
            for pattern, new in NAMES.items():
                name = re.sub(pattern, new, name)
            if name == "decoder.embed_tokens.weight":
                tensor = tensor[read]
            elif "embed_tokens" in name or "output_projection" in name:
                tensor = tensor[order]
            elif "embed_positions" in name:
                # fairseq's begin after its PAD.
                tensor = torch.cat([tensor.new_zeros(2, tensor.size(1)), tensor])
            weights[name] = tensor
        return weights
