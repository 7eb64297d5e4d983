"""`add_classes`: further classes for a trained classifier, from a few pictures of each, without training."""

from __future__ import annotations

import numpy as np
import torch

from classifier.config import AddConfig
from classifier.data import image_errors
from classifier.examples import class_means, embed
from classifier.images.pictures import open_pictures
from classifier.trained import CLASSES, open_trained
from sqrtvocab.atomic import new_folder, require_space, sealed, write_json
from sqrtvocab.cache import default_cache
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.settings import read_config
from sqrtvocab.training import open_runtime
from sqrtvocab.training.checkpoint import save_checkpoint


def add(config: AddConfig) -> None:
    """Run `add_classes`: write a run folder whose model knows the new classes too.

    Raises:
        UserError: a run whose classes are no examples, or pictures that cannot be used.
        RunError: if the new run cannot be written.
    """
    opened = open_trained(config.run, config.checkpoint)
    trained, model = opened.config, opened.model
    if not model.head.from_examples:
        raise UserError(
            f"{config.run}: --head {trained.head} learns its classes by training; train a run whose classes "
            "are examples, such as --head prototype"
        )
    if opened.own_classes is None:
        raise UserError(f"{config.run}: its classes are shapes; add_classes is for runs on your own pictures")
    out = config.out or config.run.with_name(f"{config.run.name}-more")
    if out.exists():
        raise UserError(f"--out {out}: is there already; name another folder")
    with image_errors(config.folder), open_runtime(config.device, config.precision, trained.seed) as runtime:
        source = open_pictures(
            config.folder,
            size=opened.image_size,
            grey=trained.grey,
            cache=(trained.cache or default_cache()) / "images",
            cache_limit=trained.cache_limit,
            image_column=config.image_column,
            label_column=config.label_column,
            valid_fraction=0.0,
            test_fraction=0.0,
            skip_damaged=config.skip_damaged,
            fewest=1,
            say=runtime.say,
        )
        images = source["train"]
        for note in source.notes:
            print(note)
        model.to(runtime.device)
        rows = np.arange(len(images))
        hidden = embed(model, images, rows, "new classes", config.workers, runtime)
    means = class_means(hidden, torch.from_numpy(images.labels), len(images.classes))
    try:
        model.head = model.head.cpu().add_classes(means, list(images.classes), opened.own_classes)
    except ValueError as error:  # a name that exists
        raise UserError(f"{config.folder}: {error}") from error
    names = [*opened.own_classes, *images.classes]
    require_space(out, 2 * sum(tensor.nbytes for tensor in model.state_dict().values()) + (16 << 20))
    # Groups only report; those there were say nothing of the new classes.
    regrouped = {"num_classes": len(names), "grouping": "index", "num_groups": None}
    state = {key: value for key, value in opened.checkpoint.state.items() if key not in ("sha256", "seal")}
    try:
        with new_folder(out) as run:
            write_json(run / "config.json", sealed({**read_config(config.run), **regrouped}))
            save_checkpoint(run, "best", model, state, documents={CLASSES: names})
    except (OSError, RunError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"--out {out}: cannot be written ({reason})") from error
    print(
        f"{len(images.classes):,} classes from {len(images):,} pictures added, {len(names):,} in all; "
        f"saved in {out}: eval_classifier {out} --image PICTURE names one"
    )
