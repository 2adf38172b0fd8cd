"""What a processor is called."""

from __future__ import annotations

import pytest

from specdec_plugins.machine import _describe, processor_name

EPYC = "AMD EPYC 7763 64-Core Processor"
XEON = "Intel(R) Xeon(R) Platinum 8480 CPU @ 2.00GHz"


@pytest.mark.parametrize(
    ("brand", "flags", "size", "name"),
    [
        (EPYC, "fpu avx2 sse", "8192K", "AMD EPYC 7763 (avx2, L3 8 MiB)"),
        (EPYC, "avx2 avx512f", "", "AMD EPYC 7763 (avx512)"),
        (
            XEON,
            "avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16",
            "107520K",
            "Intel Xeon Platinum 8480 (amx, avx512_vnni, avx512_bf16, L3 105 MiB)",
        ),
        ("Old", "sse2", "", "Old"),
    ],
)
def test_a_processor_is_named_by_what_it_can_do(
    brand: str, flags: str, size: str, name: str
) -> None:
    entry = f"processor\t: 0\nmodel name\t: {brand}\nflags\t\t: {flags}\npower management:\n\n"
    assert _describe(entry * 2, size) == name


def test_of_this_machine() -> None:
    """Whatever it is: in a line, the same at every call."""
    assert processor_name().strip()
    assert "\n" not in processor_name()
    assert processor_name() == processor_name()
