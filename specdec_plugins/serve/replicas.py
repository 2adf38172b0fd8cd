"""The service on more than one machine, by Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_plugins.serve.app import Limits, make_service

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.applications import Starlette


#: Arguments of the application beside its models, named as flags of specdec-serve.
ARGUMENTS = {
    "replicas": int,
    "precision": str,
    "beam": int,
    "api_key_file": Path,
    "dictionaries": Path,
    "source_lang": str,
    "target_lang": str,
}


def app(args: Mapping[str, str]) -> Application:
    """Build the service as an application of Ray Serve, which divides requests among replicas.

        serve run specdec_plugins.serve.replicas:app models=/models/wmt.en-de replicas=2

    Args:
        args: ``models``, the paths of pairs or verifiers with commas between them, which every
            machine has; ``replicas`` (1), each with a worker of its own; and those of
            :data:`ARGUMENTS`. Paths are absolute, for replicas may run in other folders.
    """
    if "models" not in args:
        raise ValueError("models=PATH: is missing")
    models = [Path(path) for path in args["models"].split(",")]
    options = {}
    for name in args.keys() - {"models"}:
        if name not in ARGUMENTS:
            raise ValueError(f"{name}=: is none of models, {', '.join(ARGUMENTS)}")
        options[name] = ARGUMENTS[name](args[name])
    replicas = options.pop("replicas", 1)

    from ray import serve  # which only this needs

    def build() -> Starlette:
        return make_service(models, **options).app()

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="specdec",
        num_replicas=replicas,
        # The service's own limit decides, which answers those that come above it.
        max_ongoing_requests=2 * Limits().requests,
    )
    return deployment.bind()
