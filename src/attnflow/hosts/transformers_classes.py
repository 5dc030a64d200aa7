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
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def is_cache(argument: object) -> TypeGuard[Cache]:
    """Return whether it is a cache of keys and values."""
    library = sys.modules.get("transformers.cache_utils")
    return library is not None and isinstance(argument, library.Cache)
