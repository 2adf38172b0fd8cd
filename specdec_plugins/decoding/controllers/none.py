"""``none``: plain AR."""

from specdec_plugins.decoding.controllers.base import NoDrafts
from specdec_plugins.decoding.controllers.registry import Policy, register_policy

register_policy(
    Policy(
        "none",
        "draft nothing",
        build=lambda options, parts: NoDrafts(),
        bounded=False,
        variants=lambda options: iter(()),
        rank=80,
    )
)
