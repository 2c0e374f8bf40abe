"""
The mean is not the next site
=============================

AUROCs at held-out sites, drawn around .80 with a standard deviation of .055 between sites. The more
sites, the surer the mean; the next site stays as uncertain as sites differ. The interval of the mean
must not be read as that of the next site.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedilc.evaluation.next_site import next_integrated, random_effects

random = np.random.default_rng(9)
sites = 20
variances = random.uniform(0.02, 0.06, sites)
logits = (
    np.log(0.8 / 0.2) + random.normal(0, 0.055 / (0.8 * 0.2), sites) + random.normal(0, np.sqrt(variances))
)


def auroc(logit: np.ndarray | float) -> np.ndarray:
    """Return an AUROC from its logit."""
    return 1 / (1 + np.exp(-np.asarray(logit)))


figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for place, count in enumerate((3, 5, 10, 20)):
    found = random_effects(logits[:count], variances[:count])
    following = auroc(next_integrated(logits[:count], variances[:count]))
    axes.plot(auroc(logits[:count]), np.full(count, place) + 0.22, "|", color="grey", markersize=10)
    axes.plot(
        following, [place, place], color="C1", linewidth=3, label="next site, 95 %" if not place else None
    )
    axes.plot(auroc([found.low, found.high]), [place - 0.15] * 2, color="C0", linewidth=3,
              label="mean of the sites, 95 %" if not place else None)  # fmt: skip
axes.set(xlabel="AUROC", yticks=range(4), yticklabels=["3 sites", "5 sites", "10 sites", "20 sites"])
axes.set_xlim(0.3, 1)
axes.legend(loc="upper left")
plt.show()
