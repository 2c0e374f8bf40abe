"""The small handwritten digits inside the package: 1,797 images of 8 by 8 pixels.

They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository 1998, doi:10.24432/C50P49, CC BY 4.0), and the same as scikit-learn's `load_digits`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILE = Path(__file__).with_name("digits.csv.gz")


@cache
def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images, with values from 0 to 1, and the digit of each.

    >>> images, digits = read_digits()
    >>> images.shape, digits[:3].tolist()
    ((1797, 8, 8), [0, 1, 2])
    """
    rows = np.loadtxt(_FILE, delimiter=",", dtype=np.int64)
    images = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)
    return images, rows[:, -1]
