"""What a base model can be called with, by the names of its parameters: the most at once first, then less."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

BATCH, LENGTH, SOUND, FRAMES = 2, 12, 6400, 8
Inputs = dict[str, Any]
DATA = (
    "input_ids",
    "pixel_values",
    "pixel_values_videos",
    "input_values",
    "input_features",
)  # in words, pictures, sound
BESIDE = ("decoder_input_ids", "bbox")  # taken with any of them


def candidates(model: torch.nn.Module, config: Any) -> Iterator[Inputs]:
    """Keyword arguments, which may not be valid: the model says which are."""
    forward = inspect.signature(model.forward).parameters
    required = [
        n for n, p in forward.items() if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    beside = [n for n in BESIDE if n in forward]
    everything = [n for n in DATA if n in forward]
    sets = [
        [n for n in everything if n != "pixel_values_videos"] + [*required, *beside], [*everything, *required, *beside],
        *([e, "input_ids", *required, *beside] for e in everything if e != "input_ids" and "input_ids" in everything),
        [main, *required, *beside], [main, *required], *([e, *required, *beside] for e in everything),
        ["inputs_embeds", *required],
    ]  # fmt: skip
    seen: list[set[str]] = []
    for chosen in sets:
        names = [n for n in dict.fromkeys(chosen) if n in forward]
        if {"input_ids", "decoder_input_ids"} <= {*names} and "attention_mask" in forward:
            names.append("attention_mask")  # some make it themselves, but not where they are compiled
        if not names or set(names) in seen:
            continue
        seen.append(set(names))
        made = Made(model, config, set(forward))
        choices = [made.choices(n) for n in names]
        if all(choices):
            for combination in itertools.islice(itertools.product(*choices), 24):
                inputs: Inputs = {}
                for part in combination:
                    inputs |= part
                yield from made.with_places(inputs)


class Made:
    """Inputs for one model, by parameter."""

    def __init__(self, model: torch.nn.Module, config: Any, forward: set[str]) -> None:
        self.model, self.config, self.forward = model, config, forward

    def field(self, *names: str, towers: tuple[str, ...] = (), default: Any = None) -> Any:
        """The first field of one of ``names``: in the configurations called ``towers``, in the model's, in any below it."""
        below = [self.config, *_below(self.config)]
        first = [getattr(self.config, t) for t in towers if getattr(self.config, t, None) is not None]
        for config in [*first, *below]:
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not (isinstance(value, str)):
                    return value
        return default

    def choices(self, name: str) -> list[Inputs]:
        """What ``name`` may be given, with what belongs to it."""
        make = getattr(self, name, None)
        if make is not None:
            return make()
        if name.endswith(("attention_mask", "_mask", "padding")):
            return [{name: torch.ones(BATCH, LENGTH, dtype=torch.long)}]
        if name.endswith("input_ids"):
            return [{name: self.words(LENGTH)}]
        if name.endswith(("_embeds", "hidden_states", "latents")):
            return [{name: torch.randn(BATCH, LENGTH, self.width())}, {name: torch.randn(BATCH, self.width(), LENGTH)}]
        return []

    def width(self) -> int:
        return int(self.field("hidden_size", "d_model", "n_embd", "dim", towers=("text_config",), default=64))

    def words(self, length: int) -> torch.Tensor:
        vocabulary = self.field("vocab_size", towers=("text_config",), default=100)
        return torch.randint(10, max(12, min(100, vocabulary)), (BATCH, length))

    def input_ids(self) -> list[Inputs]:
        return [{"input_ids": self.words(LENGTH)}]

    def decoder_input_ids(self) -> list[Inputs]:
        return [{"decoder_input_ids": self.words(LENGTH // 2)}]

    def bbox(self) -> list[Inputs]:
        return [{"bbox": torch.tensor([1, 2, 30, 40]).expand(BATCH, LENGTH, 4).contiguous()}]

    # --- pictures -------------------------------------------------------------------------------------------------

    def _picture(self) -> tuple[int, int, int]:
        towers = ("vision_config", "backbone_config", "encoder")
        size = self.field("image_size", "input_size", "img_size", towers=towers, default=64)
        size = [size["height"], size["width"]] if isinstance(size, dict) else size
        height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
        channels = self.field("num_channels", "in_channels", "in_chans", towers=towers, default=3)
        return channels if type(channels) is int else 3, int(height), int(width)

    def pixel_values(self) -> list[Inputs]:
        patches = self._patches("pixel_values", "grid_thw") or self._patches("pixel_values", "image_grid_thw")
        if patches:
            return patches
        channels, height, width = self._picture()
        found = [{"pixel_values": torch.randn(BATCH, channels, height, width)}]
        if "image_sizes" in self.forward:
            sizes = torch.tensor([[height, width]] * BATCH)
            found = [
                {"pixel_values": torch.randn(BATCH, 3, channels, height, width), "image_sizes": sizes},
                {**found[0], "image_sizes": sizes}, *found,
            ]  # fmt: skip
        frames = self.field("num_frames", "num_images", default=FRAMES)
        for images in (1, 2):
            found.append({"pixel_values": torch.randn(BATCH, images, channels, height, width)})
        found.append({"pixel_values": torch.randn(BATCH, frames, channels, height, width)})
        found.append({"pixel_values": torch.randn(BATCH * frames, channels, height, width)})
        found.append({"pixel_values": torch.randn(BATCH, channels, 256, 256)})
        return found

    def pixel_values_videos(self) -> list[Inputs]:
        channels, height, width = self._picture()
        frames = self.field("num_frames", "frames_per_clip", default=FRAMES)
        name = "pixel_values_videos"
        patches = self._patches(name, "video_grid_thw")
        return patches or [
            {name: torch.randn(BATCH, f, channels, height, width)} for f in dict.fromkeys((frames, FRAMES))
        ]

    def hidden_states(self) -> list[Inputs]:
        patches = self._patches("hidden_states", "grid_thw")
        return patches or [{"hidden_states": torch.randn(BATCH, self.width(), LENGTH)}]

    def grid_thw(self) -> list[Inputs]:
        return [{}]  # comes with its patches

    image_grid_thw = video_grid_thw = merge_sizes = pixel_position_ids = spatial_shapes = pixel_attention_mask = (
        grid_thw
    )

    def _patches(self, name: str, grid: str) -> list[Inputs]:
        """Pictures as rows of patches, with how many there are in each direction, two pictures in all."""
        towers = ("vision_config",)
        side = self.field("patch_size", "spatial_patch_size", towers=towers, default=14)
        channels = self.field("in_channels", "in_chans", "num_channels", towers=towers, default=3)
        if type(side) is not int or type(channels) is not int:
            return []
        if "spatial_shapes" in self.forward and name == "pixel_values":
            rows, shape = torch.randn(BATCH, 16, channels * side**2), torch.tensor([[4, 4]] * BATCH)
            mask = torch.ones(BATCH, 16, dtype=torch.long)
            return [{name: rows, "spatial_shapes": shape, "pixel_attention_mask": mask}]
        if "pixel_position_ids" in self.forward and name == "pixel_values":
            merge = self.field("pooling_kernel_size", towers=towers, default=1)
            n = 4 * merge
            places = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="xy"), -1).reshape(1, -1, 2)
            return [
                {name: torch.rand(BATCH, n * n, channels * side**2), "pixel_position_ids": places.repeat(BATCH, 1, 1)}
            ]
        if grid not in self.forward:
            return []
        times = self.field("temporal_patch_size", "patch_temporal", "patch_size_temporal", towers=towers, default=1)
        thw = torch.tensor([[1, 4, 4]] * BATCH)
        more = {"merge_sizes": torch.ones(BATCH, dtype=torch.long)} if "merge_sizes" in self.forward else {}
        flat = torch.randn(BATCH * 16, channels * times * side**2)
        return [
            {name: flat, grid: thw, **more},
            {name: torch.randn(BATCH * 16, channels, side, side), grid: thw, **more},
            {name: torch.randn(BATCH * 16, channels * side**2), grid: thw, **more},
            {name: torch.randn(BATCH * 16, self.width()), grid: thw, **more},
        ]

    # --- sound and series -----------------------------------------------------------------------------------------

    def input_values(self) -> list[Inputs]:
        mels = self.field("num_mel_bins", default=80)
        shapes = [
            (SOUND,),
            (1, SOUND),
            (1, 15360),
            (self.field("max_length", default=100), mels),
            (mels, 100),
            (100, mels),
        ]
        return [{"input_values": torch.randn(BATCH, *shape)} for shape in shapes]

    def input_features(self) -> list[Inputs]:
        names = (
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "input_feat_size",
            "feature_projection_input_dim",
            "input_dim",
            "n_mels",
        )
        mels = self.field(*names, towers=("audio_config", "encoder_config"), default=80)
        positions = self.field("max_source_positions", towers=("audio_config", "encoder_config"), default=64)
        shapes = [
            (mels, 2 * positions),
            (128, mels),
            (mels, 128),
            (1, 1001, mels),
            (1, self.field("spec_size", default=256) * 4, 64),
            (160, 2 * mels),
        ]
        found: list[Inputs] = []
        for shape in shapes:
            inputs: Inputs = {"input_features": torch.randn(BATCH, *shape)}
            for name in ("input_features_mask", "feature_attention_mask"):
                if name in self.forward:
                    found += [{**inputs, name: torch.ones(BATCH, n, dtype=torch.long)} for n in (shape[-1], shape[-2])]
            found.append(inputs)
        return found

    def input_features_mask(self) -> list[Inputs]:
        return [{}]

    def audio_mel(self) -> list[Inputs]:
        mels = self.field("input_feat_size", default=128)
        return [{"audio_mel": torch.randn(BATCH, 64, mels), "audio_mel_mask": torch.zeros(BATCH, 64, dtype=torch.bool)}]

    def audio_mel_mask(self) -> list[Inputs]:
        return [{}]

    def past_values(self) -> list[Inputs]:
        length, series = (
            self.field("context_length", default=32),
            self.field("num_input_channels", "input_size", default=1),
        )
        lags = self.field("lags_sequence", default=[0])
        past = length + max(lags)
        future = self.field("prediction_length", default=0) or 0
        time = self.field("num_time_features", default=1)
        dated = {
            "past_values": torch.randn(BATCH, past), "past_time_features": torch.randn(BATCH, past, time),
            "past_observed_mask": torch.ones(BATCH, past), "future_values": torch.randn(BATCH, future),
            "future_time_features": torch.randn(BATCH, future, time),
        }  # fmt: skip
        if "past_time_features" in self.forward:
            return [dated]
        return [{"past_values": torch.randn(BATCH, length, series)}, {"past_values": torch.randn(BATCH, length)}]

    def past_time_features(self) -> list[Inputs]:
        return [{}]

    past_observed_mask = past_time_features

    def past_values_padding(self) -> list[Inputs]:
        return [{"past_values_padding": torch.zeros(BATCH, self.field("context_length", default=32))}]

    def freq(self) -> list[Inputs]:
        return [{"freq": torch.zeros(BATCH, 1, dtype=torch.long)}]

    def query_embeds(self) -> list[Inputs]:
        seen = torch.randn(BATCH, LENGTH, self.field("encoder_hidden_size", default=64))
        return [{"query_embeds": torch.randn(BATCH, LENGTH, self.width()), "encoder_hidden_states": seen}]

    def inputs(self) -> list[Inputs]:
        return [{"inputs": torch.randn(BATCH, LENGTH, self.width())}]

    def states(self) -> list[Inputs]:
        state, action = self.field("state_dim", default=4), self.field("act_dim", default=2)
        made = {"states": state, "actions": action, "returns_to_go": 1}
        numbers = {name: torch.randn(BATCH, LENGTH, width) for name, width in made.items()}
        return [{**numbers, "timesteps": torch.arange(LENGTH).expand(BATCH, -1).contiguous()}]

    # --- pictures among words -------------------------------------------------------------------------------------

    def with_places(self, inputs: Inputs) -> Iterator[Inputs]:
        """``inputs``, first with as many tokens in the text that stand for pictures (or sound) as these have features."""
        if "input_ids" in inputs:
            for data, token, features in (
                ("pixel_values", ("image_token_id", "image_token_index"), "get_image_features"),
                ("input_features", ("audio_token_id", "audio_token_index"), "get_audio_features"),
                ("input_values", ("audio_token_id", "audio_token_index"), "get_audio_features"),
            ):
                place, make = self.field(*token), getattr(self.model, features, None)
                if data in inputs and type(place) is int and make is not None:
                    count = self._features(make, inputs)
                    if count:
                        row = torch.full((BATCH, count), place)
                        ids = torch.cat([inputs["input_ids"][:, :4], row, inputs["input_ids"][:, 4:]], 1)
                        more: Inputs = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in inputs else {}
                        for name in ("mm_token_type_ids", "token_type_ids"):
                            if name in self.forward:
                                more[name] = (ids == place).long()
                        yield {**inputs, "input_ids": ids, **more}
                        yield {**inputs, "input_ids": ids}
        yield inputs

    def _features(self, make: Any, inputs: Inputs) -> int:
        """How many features a row has."""
        taken = inspect.signature(make).parameters
        try:
            with torch.no_grad():
                made = make(**{n: v for n, v in inputs.items() if n in taken})
        except Exception:  # noqa: BLE001 - the model has been given something else
            return 0
        made = getattr(made, "pooler_output", made)
        parts = made if isinstance(made, (list, tuple)) else [made]
        rows = [p.numel() // max(1, p.shape[-1]) for p in parts if isinstance(p, torch.Tensor)]
        return sum(rows) // BATCH


def _below(config: Any) -> list[Any]:
    from transformers import PretrainedConfig

    found: list[Any] = []
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            found += [value, *_below(value)]
    return found
