"""How many bytes of tensors are alive while something runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of all storages that operators make, from their first tensor to the end of their last.

    Views share a storage and count once; what autograd keeps for the backward pass is alive until autograd lets go.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._fused_sgd_.default:  # in place, and torch cannot run it on shapes alone
            return None
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._follow(tensor)
        self.peak = max(self.peak, self.now)
        return made

    def unseen(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns; its temporary tensors do not count for the peak."""
        peak = self.peak
        made = function(*arguments)
        self.peak = max(peak, self.now)
        return made

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._held:
            self._held[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.now += size

    def _forget(self, key: int, size: int) -> None:
        del self._held[key]
        self.now -= size
