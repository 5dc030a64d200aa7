"""Whether something is of a class of transformers, without importing it.

That takes two seconds, and who has such an object has done it. The models that come with the
package need none of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel


def is_pretrained(model: object) -> TypeGuard[PreTrainedModel]:
    """Return whether it is a model of the library."""
    return _is_a("PreTrainedModel", "transformers.modeling_utils", model)


def is_cache(argument: object) -> TypeGuard[Cache]:
    """Return whether it is a cache of keys and values."""
    return _is_a("Cache", "transformers.cache_utils", argument)


def _is_a(name: str, module: str, value: object) -> bool:
    # Another thread may be importing it: there is nothing of a class that is not there yet.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)
