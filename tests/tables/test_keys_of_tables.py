"""Keys of settings that are data frames or tensors, which the core knows by what they say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from winsor.core.randomness import bound_key

LONG = np.arange(5000.0)
CHANGED = LONG.copy()
CHANGED[2500] += 1e-12

PAIRS = {
    "tables": (pd.DataFrame({"a": LONG}), pd.DataFrame({"a": CHANGED})),
    "names of columns": (pd.DataFrame({"a": LONG}), pd.DataFrame({"b": LONG})),
    "labels of rows": (pd.Series([1.0], index=["a"]), pd.Series([1.0], index=["b"])),
    "tensors": (torch.from_numpy(LONG), torch.from_numpy(CHANGED)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_no_two_settings_have_one_key(pair):
    one, other = PAIRS[pair]
    for bound in ((lambda x: (x,)), lambda x: ({"setting": x},), lambda x: ([x, 2],)):
        assert bound_key(bytes(32), *bound(one)) == bound_key(bytes(32), *bound(one))
        assert bound_key(bytes(32), *bound(one)) != bound_key(bytes(32), *bound(other))
