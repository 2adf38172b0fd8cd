"""Engines run pure steps: PyTorch as it is, ONNX Runtime, CUDA graphs. No fairseq in here."""
