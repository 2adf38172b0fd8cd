"""From a verifier and text of its source language to a pair, in stages that can be stopped anywhere
and gone on with."""
