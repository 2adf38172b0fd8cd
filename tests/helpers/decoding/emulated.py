"""A GPU that is not there: tensors that say ``gpu:0`` and are computed on the CPU.

Code takes the branches that it would take on a GPU, with real numbers; what mixes devices fails, as
it would there; waits and copies are counted. Streams, events, kernels' own arithmetic and times are
beyond it. It stands on private parts of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from specdec_plugins.host.fairseq_types import Sample

aten = torch.ops.aten
NAME = "gpu"
LACKING = "this torch cannot emulate a device (_setup_privateuseone_for_python_backend)"

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    # It stays as long as the process; data loaders would pin memory for it, which it cannot.
    torch.accelerator.is_available = lambda: False
    # A number becomes a tensor on the host first, and is then copied.
    torch._C._set_only_lift_cpu_tensors(True)
    IS_HERE = True
except ImportError:
    IS_HERE = False

WAITING = (
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_consecutive",
)  # fmt: skip
"""Operations that tell the host something."""


class GpuTensor(torch.Tensor):
    """A tensor of that device; its numbers are those of ``elem``."""

    elem: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, elem: Tensor) -> GpuTensor:
        # A view of an ordinary tensor is one, in inference mode, too.
        with torch.inference_mode(elem.is_inference()):
            made: GpuTensor = torch.Tensor._make_wrapper_subclass(
                cls, elem.size(), strides=elem.stride(), storage_offset=elem.storage_offset(),
                dtype=elem.dtype, layout=elem.layout, device=torch.device(NAME, 0),
            )  # fmt: skip
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: object, **__: Any) -> object:
        raise RuntimeError(f"{func}: outside of the emulation")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: object, **__: object) -> Any:
        raise TypeError("a tensor of a GPU is no array; copy it to the host first")


class Emulation(TorchDispatchMode):
    """Runs on the CPU what would run there; ``counts`` are ``waits`` (calls in which the host
    waits), ``copies to host``, and those ``to device`` for which it waits."""

    device = torch.device(NAME, 0) if IS_HERE else torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        flat, spec = tree_flatten((args, kwargs))
        makes = any(isinstance(x, torch.device) and x.type == NAME for x in flat)
        if not makes and not any(isinstance(x, GpuTensor) for x in flat):
            return func(*args, **kwargs)
        name = str(func).removeprefix("aten.").split(".")[0]
        if name == "to":
            return self._to(func, args, kwargs)
        if func._can_decompose() and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ):
            with self:
                return func.decompose(*args, **kwargs)
        there = [x.elem if isinstance(x, GpuTensor) else x for x in flat]
        given, named = tree_unflatten(there, spec)
        if name in ("_to_copy", "copy_"):
            return self._copy(func, name, args, kwargs, given, named)
        # Of another device's tensors a GPU takes single numbers alone.
        strangers = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, GpuTensor)]
        if count := sum(x.dim() > 0 for x in strangers):
            if not name.startswith("index"):
                raise RuntimeError(f"{name}: expected all tensors on {NAME}:0, not on the CPU")
            # An index on the host is copied, and waited for.
            self.counts.update({"copies to device": count, "waits": count})
        if makes:
            named["device"] = torch.device("cpu")
        if name in WAITING or (name.startswith("index") and _has_mask(given)):
            self.counts.update(["waits", "copies to host"])
        if name == "_local_scalar_dense":
            return func(*given, **named)
        return _on_gpu(func, func(*given, **named), args)

    def _to(self, func: OpOverload, args: Any, kwargs: Any) -> object:
        """``to``, which is nothing where nothing changes, else a copy."""
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args)), **kwargs}
        x, like = given["self"], given.get("other", given["self"])
        device = torch.device(given.get("device") or like.device)
        dtype = given.get("dtype") or (like.dtype if "other" in given else x.dtype)
        if (device.type, dtype) == (x.device.type, x.dtype) and not given.get("copy"):
            return x
        passing = bool(given.get("non_blocking"))
        with self:
            return aten._to_copy(x, dtype=dtype, device=device, non_blocking=passing)

    def _copy(
        self, func: OpOverload, name: str, args: Any, kwargs: Any, given: Any, named: Any
    ) -> object:
        """A copy from one device to another or to the same one."""
        into, source = args[0], args[1] if name == "copy_" else args[0]
        asked = kwargs.get("device")
        target = into.device if name == "copy_" or asked is None else torch.device(asked)
        passing = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2))
        if source.device.type == target.type:
            named.pop("device", None)
            return _on_gpu(func, func(*given, **named), args)
        if target.type == "cpu" or not passing:
            self.counts.update(
                ["waits", f"copies to {'host' if target.type == 'cpu' else 'device'}"]
            )
        if name == "copy_":
            given[0].copy_(given[1])
            return into
        made = func(*given, **{**named, "device": torch.device("cpu")}).clone()
        return made if target.type == "cpu" else GpuTensor(made)


def _on_gpu(func: OpOverload, result: object, args: Any) -> object:
    """The result on the device; of an operation in place, its argument."""
    for index, argument in enumerate(func._schema.arguments):
        about = argument.alias_info
        if about is not None and about.is_write and index < len(args):
            return args[index]
    return tree_map_only(Tensor, GpuTensor, result)


class _Attention(TorchFunctionMode):
    """Attention as a GPU's kernel returns it, which has slots before heads."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not isinstance(args[0], GpuTensor):
            return func(*args, **kwargs)
        there = [None if x is None else x.elem for x in (*args, kwargs.pop("attn_mask", None))]
        out = func(*there, **kwargs)
        return GpuTensor(out.transpose(1, 2).contiguous().transpose(1, 2))


@contextmanager
def emulated() -> Iterator[Emulation]:
    """The device is there; what it does is counted."""
    emulation = Emulation()
    with _Attention(), emulation:
        yield emulation


def _has_mask(given: Any) -> bool:
    indices = given[1] if len(given) > 1 and isinstance(given[1], (list, tuple)) else []
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def on_gpu(*modules: nn.Module) -> None:
    """Move weights and buffers there; what is tied stays so. In an emulation, once."""
    moved: dict[int, object] = {}
    for part in (part for module in modules for part in module.modules()):
        for stored in (part._parameters, part._buffers):
            for name, tensor in stored.items():
                if tensor is None or isinstance(tensor.data, GpuTensor):
                    continue
                if id(tensor) not in moved:
                    there: Any = GpuTensor(tensor.detach().clone())
                    is_weight = isinstance(tensor, nn.Parameter)
                    moved[id(tensor)] = nn.Parameter(there, False) if is_weight else there
                stored[name] = moved[id(tensor)]  # type: ignore[assignment]


def to_gpu(batch: Sample) -> Sample:
    """A batch there."""
    return tree_map_only(Tensor, lambda x: GpuTensor(x.clone()), batch)
