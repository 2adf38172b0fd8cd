"""The writer: greedy decoding in int8, a whole sentence in one compiled call.

A token's arithmetic is smaller than the call of a step, so this is the exception to pure steps. It
reads the verifier's own float32 keys and values of the source. It is checked against PyTorch when
it is built; what it cannot run, ONNX Runtime does.
"""
