"""A GPU that is not there: tensors that say ``gpu:0`` and are computed on the CPU.

Code takes the branches that it would take on a GPU, with real numbers; what mixes devices fails, as
it would there; and what would be launched, waited for and copied is counted. Streams, events,
kernels' own arithmetic and times are beyond it. It stands on private parts of torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

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

KERNELS = {
    "logsumexp": 8, "topk": 2, "sort": 2, "constant_pad_nd": 2, "masked_fill": 2, "scatter": 2,
    "scatter_add": 2, "index_copy": 2,
}  # fmt: skip
"""Kernels that an operation launches on CUDA, if not a single one; by ATen's sources."""
NOTHING = (
    "empty", "empty_strided", "empty_like", "new_empty", "detach", "alias", "lift_fresh",
    "_unsafe_view", "_reshape_alias",
)  # fmt: skip
"""Operations that launch nothing, beside views."""
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
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{func}: outside of the emulation")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a tensor of a GPU is no array; copy it to the host first")


class Emulation(TorchDispatchMode):
    """Runs on the CPU what would run there; ``counts`` are ``launches``, ``waits`` (calls in
    which the host waits), ``copies to host``, ``copies to device``, and those ``in passing``, for
    which nobody waits."""

    device = torch.device(NAME, 0) if IS_HERE else torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def clear(self) -> None:
        self.counts.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        self._check(name, flat)
        if makes:
            named["device"] = torch.device("cpu")
        if name in WAITING or (name.startswith("index") and _has_mask(given)):
            self.counts["waits"] += 1
            self.counts["copies to host"] += 1
        if name == "_local_scalar_dense":
            return func(*given, **named)
        return self._launched(func, name, func(*given, **named), args)

    def _check(self, name: str, flat: list[Any]) -> None:
        """
        Raises:
            RuntimeError: tensors of two devices, of which a GPU takes only single numbers.
        """
        strangers = [
            x for x in flat if isinstance(x, Tensor) and not isinstance(x, GpuTensor) and x.dim()
        ]
        if strangers and name.startswith("index"):
            # An index on the host is copied, and waited for.
            self.counts["copies to device"] += len(strangers)
            self.counts["waits"] += len(strangers)
        elif strangers:
            raise RuntimeError(f"{name}: expected all tensors on {NAME}:0, found one on the CPU")

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
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

    def _copy(self, func: Any, name: str, args: Any, kwargs: Any, given: Any, named: Any) -> Any:
        """A copy from one device to another or to the same one."""
        into, source = args[0], args[1] if name == "copy_" else args[0]
        asked = kwargs.get("device")
        target = into.device if name == "copy_" or asked is None else torch.device(asked)
        passing = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2))
        if source.device.type == target.type:
            named.pop("device", None)
            return self._launched(func, name, func(*given, **named), args)
        if target.type == "cpu":
            self.counts["copies to host"] += 1
            self.counts["waits"] += 1
        else:
            self.counts["copies in passing" if passing else "copies to device"] += 1
            self.counts["waits"] += not passing
        if name == "copy_":
            given[0].copy_(given[1])
            return into
        made = func(*given, **{**named, "device": torch.device("cpu")}).clone()
        return made if target.type == "cpu" else GpuTensor(made)

    def _launched(self, func: Any, name: str, result: Any, args: Any) -> Any:
        """The result on the device, and its operation counted."""
        if not func.is_view and name not in NOTHING:
            self.counts["launches"] += KERNELS.get(name, 1)
        for place, argument in enumerate(func._schema.arguments):
            about = argument.alias_info
            if about is not None and about.is_write and place < len(args):
                # What was changed in place is what there was.
                return args[place]
        return tree_map_only(Tensor, GpuTensor, result)


class _Attention(TorchFunctionMode):
    """Attention is one operation, which torch would take to pieces before they are dispatched."""

    def __init__(self, counts: Emulation) -> None:
        super().__init__()
        self._emulation = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not isinstance(args[0], GpuTensor):
            return func(*args, **kwargs)
        mask = kwargs.pop("attn_mask", None)
        there = [None if x is None else x.elem for x in (*args, mask)]
        out = func(*there, **kwargs)
        # The kernel pads a mask whose rows are not whole eights.
        padded = mask is not None and mask.size(-1) % 8 != 0
        self._emulation.counts["launches"] += 1 + 2 * padded
        # A GPU's kernel has slots before heads.
        return GpuTensor(out.transpose(1, 2).contiguous().transpose(1, 2))


@contextmanager
def emulated() -> Iterator[Emulation]:
    """The device is there; what it does is counted."""
    emulation = Emulation()
    with _Attention(emulation), emulation:
        yield emulation


def _has_mask(given: Any) -> bool:
    indices = given[1] if len(given) > 1 and isinstance(given[1], (list, tuple)) else []
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def on_gpu(*modules: nn.Module) -> None:
    """Move weights and buffers there; what is tied stays so. In an emulation, once."""
    moved: dict[int, Any] = {}
    for module in modules:
        for part in module.modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if tensor is None or isinstance(tensor.data, GpuTensor):
                        continue
                    if id(tensor) not in moved:
                        there: Any = GpuTensor(tensor.detach().clone())
                        if isinstance(tensor, nn.Parameter):
                            there = nn.Parameter(there, requires_grad=False)
                        moved[id(tensor)] = there
                    held[name] = moved[id(tensor)]  # type: ignore[assignment]


def to_gpu(batch: Any) -> Any:
    """A batch there."""
    return tree_map_only(Tensor, lambda x: GpuTensor(x.clone()), batch)
