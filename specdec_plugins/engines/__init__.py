"""How pure steps are run: by PyTorch as they are, or by an engine that compiles them. No fairseq in
here."""
