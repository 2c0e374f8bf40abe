"""What a frozen pretrained network and each algorithm add for pictures of a style that no site trained on.

Pictures of CIFAR-10's test set become a folder of four sites, one style each: photographs as they are, grey
ones, edges drawn dark on white, and posters (few colours, smoothed). No two sites share a picture. They have
32 x 32 pixels and are enlarged, so they are much blurrier than the backbone's own pictures were. Then two
studies are run, from scratch and with the backbone, and one table holds both: scores at the held-out style,
and differences from logistic regression of the pooled features with 95 % intervals over pictures and seeds.

    python -m benchmarks.picture_styles --out results/picture-styles      # needs FEDILC_DATA with CIFAR-10

Defaults are chosen on other pictures than those that are reported: `--classes bird,cat,dog,frog,truck`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from fedilc.data.download import data_folder
from fedilc.evaluation.intervals import mean_interval
from fedilc.paper.image_benchmarks import read_cifar10
from fedilc.seeds import numpy_generator
from fedilc.studies.study.data import study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import usual_settings

NAMES = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # of CIFAR-10
CLASSES = "airplane,car,deer,horse,ship"
SCORES = ("accuracy", "auroc", "log_loss")
BASELINE = "pooled logistic"
STYLES = ("photo", "grey", "sketch", "poster")
PIXELS = 128


def styled(picture: Image.Image, style: str) -> Image.Image:
    """Return a picture, enlarged, in a style."""
    large = picture.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    if style == "grey":
        return ImageOps.grayscale(large)
    if style == "sketch":
        edges = ImageOps.grayscale(large).filter(ImageFilter.GaussianBlur(1.5)).filter(ImageFilter.CONTOUR)
        return ImageOps.autocontrast(edges)
    if style == "poster":
        return ImageOps.posterize(large.filter(ImageFilter.ModeFilter(7)), 2)
    return large


def make_pictures(folder: Path, names: Sequence[str], each: int) -> None:
    """Write so many pictures per class and style, as STYLE/CLASS/number.png."""
    _, _, images, labels = read_cifar10(data_folder())
    pixels: NDArray[np.uint8] = images.transpose(0, 2, 3, 1)
    for name in names:
        random = numpy_generator(0, "picture styles", name)
        rows = random.permutation(np.flatnonzero(labels == NAMES.index(name)))
        for place, style in enumerate(STYLES):
            target = folder / style / name
            target.mkdir(parents=True, exist_ok=True)
            for row in rows[place * each : (place + 1) * each]:
                styled(Image.fromarray(pixels[row]), style).save(target / f"{row}.png")


def study(
    folder: Path, out: Path, options: Mapping[str, Any], given: Mapping[str, Any], jobs: int
) -> dict[str, Any]:
    """Return scores by method, their differences from the baseline, and the seconds of features and all."""
    started = time.perf_counter()
    data = study_data([str(folder)], **options)
    read = time.perf_counter() - started
    plan = StudyPlan(data, usual_settings(data, given).with_given(given))
    result = run_study(plan, out, jobs=jobs)
    methods = list(result.scores[plan.held_out[0]])
    return {
        "reading": read,
        "seconds": time.perf_counter() - started,
        "taken": result.chosen,
        "settings": {
            site: {method: {**choice.options, "round": choice.round} for method, choice in found.items()}
            for site, found in result.choices.items()
        },
        "sites": {
            method: {site: result.scores[site][method]["accuracy"].value for site in plan.held_out}
            for method in methods
        },
        "means": {
            method: {score: result.mean(method, score).value for score in SCORES} for method in methods
        },
        "apart": {
            method: {score: apart(result, method, score) for score in SCORES}
            for method in methods
            if BASELINE in methods
        },
    }


def apart(result: StudyResult, method: str, score: str) -> str:
    """Return the mean difference from the baseline over held-out styles, with its interval."""
    found = [result.difference(site, method, BASELINE, score) for site in result.sites]
    return str(mean_interval([one for one in found if one is not None]))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return both studies as a Markdown table."""
    scores = ("accuracy", "AUROC", "log loss")
    heads = ["inputs", "method", *STYLES, *scores, *(f"{name}, difference" for name in scores)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for inputs, result in results.items():
        for method, by_site in result["sites"].items():
            cells = [f"{by_site[site]:.3f}" for site in STYLES]
            cells += [f"{result['means'][method][score]:.3f}" for score in SCORES]
            cells += [result["apart"].get(method, {}).get(score, "-") for score in SCORES]
            lines.append(f"| {inputs} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture_styles")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=24, help="pictures per class and style")
    parser.add_argument("--classes", default=CLASSES, help="classes of CIFAR-10, with commas between")
    parser.add_argument("--algorithms", help="with commas between; none given are those of a study")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--image-size", type=int, default=PIXELS)
    parser.add_argument("--only", choices=["features", "pixels"], help="one of the two studies")
    arguments = parser.parse_args()
    jobs, work = arguments.jobs, arguments.out.with_name(f"{arguments.out.name}-study")
    pictures = work / "pictures"
    shutil.rmtree(pictures, ignore_errors=True)
    make_pictures(pictures, arguments.classes.split(","), arguments.each)
    given: dict[str, Any] = {"seeds": arguments.seeds}
    if arguments.algorithms:
        given["algorithms"] = tuple(arguments.algorithms.split(","))
    frozen = {"backbone": arguments.backbone, "image_size": arguments.image_size}
    results = {}
    if arguments.only != "pixels":
        results[arguments.backbone] = study(pictures, work / "features", frozen, given, jobs)
    if arguments.only != "features":
        scratch = {**given, "choose_by": "validation", "references": False}
        results["pixels"] = study(pictures, work / "pixels", {}, scratch, jobs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "styles.json").write_text(json.dumps(results, indent=2) + "\n")
    lines = [f"python -m benchmarks.picture_styles {' '.join(sys.argv[1:])}".rstrip(), "", table(results), ""]
    for inputs, result in results.items():
        times = f"{result['seconds']:.0f} s, of which {result['reading']:.0f} s to read pictures"
        lines.append(f"{inputs}: {times}")
    text = "\n".join(lines)
    (arguments.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
