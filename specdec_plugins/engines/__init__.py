"""Engines run pure steps: PyTorch as it is, OpenVINO, CUDA graphs. No fairseq in here."""
