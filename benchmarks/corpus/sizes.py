"""Every base model of transformers at a small size: its default configuration with fields made smaller, by what they are called.

Configurations are made smaller in the steps of :data:`LEVELS`, and the first of which a valid model can be made is taken: a
later one changes less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_PARAMETERS = 250_000_000
VOCABULARY = 1024
LAYERS = re.compile(r"(^|_)(layers?|depth|blocks)$")
NOT_LAYERS = re.compile(
    r"feat_extract|window|shared|dense|lstm|attention_layers|query_layers|adapter|cross|postnet|prenet|_resnet|indices|res_block"
    r"|proj_layers|^layers_block|residual|upsampl|downsampl|nextn|hidden_conv|subsampl|insert"
)
WIDTHS = re.compile(
    r"hidden_size|d_latents|hidden_dim|intermediate|ffn|_dim$|^dim$|_dims$|embed|d_model|d_ff$|d_kv|d_inner|n_embd|n_inner|channels|head_size"
    r"|lora_rank|projection|width|filters|units|mrope_section|pos_feats|pos_dim|mamba_d_head|dim_per|out_size|output_size|query_dim"
    r"|bottleneck|mlp_size|rank$|rotary_dim|out_features_dim|per_stage$|dim_head|channel_list|stem_size|hidden_layer_size|hidden_act_size"
)
NOT_WIDTHS = re.compile(
    r"num_channels|audio_channels|max_|num_(?!pos_feats)|image|mel|position|vocab|kernel|input_channels|layers|_act$"
    r"|background|heads_per|window|blocks|dropout|codebook_size|feature_projection_input|state_dim|act_dim|feat_per|target_dim"
)
HEADS = re.compile(r"(^|_)heads?$")
HEAD = re.compile(r"head_dim$|head_size$|rotary_dim$|mrope_section|d_head$|d_kv$|dim_head$")
EXPERTS = re.compile(r"experts$|n_routed_experts$")
CHOSEN = re.compile(r"experts_per_tok|moe_topk|moe_k$|^top_k$|experts_per_token|top_k_experts")
GROUPS = {"n_group", "topk_group", "num_expert_group", "num_expert_groups"}
TOKEN = re.compile(r"(_token_id|_token_ids|_token_index|_id)$")
FILLED = {
    "num_experts_per_tok": 2, "n_routed_experts": 8, "num_experts": 8, "num_local_experts": 8, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "num_key_value_heads": 4, "vocab_size": VOCABULARY, "top_k_experts": 2,
    "first_k_dense_replace": 1, "q_lora_rank": 32, "pad_token_id": 0, "max_position_embeddings": 512,
}  # fmt: skip
TYPES = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "hybrid_override_pattern")


@dataclass(frozen=True)
class Level:
    """``divisor`` of widths; ``layers``: kept at least; 0: all. ``images`` and ``words``: whether they are made smaller.

    ``heads``: there are fewer heads; otherwise each has fewer numbers. ``filled``: what is None by default has a number.
    """

    divisor: int = 1
    layers: int = 0
    images: bool = False
    words: bool = False
    heads: bool = False
    filled: bool = False


LEVELS = (
    Level(8, 2, True, True),
    Level(8, 2, True, True, heads=True),
    Level(8, 2, True, True, filled=True),
    Level(8, 2, False, True),
    Level(1, 2, True, True),
    Level(4, 2, True, True),
    Level(4, 2, True, True, heads=True),
    Level(8, 8, True, True),
    Level(8, 0, True, True),
    Level(4, 0, False, True),
    Level(1, 2, False, True),
    Level(1, 2, False, False),
    Level(1, 0, False, True),
    Level(),
)


def names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def classes(name: str) -> tuple[Any, Any]:
    """The configuration's class and the model's."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config = CONFIG_MAPPING[name]
    model = MODEL_MAPPING[config]
    return config, model[0] if isinstance(model, (tuple, list)) else model


def configs(name: str) -> Iterator[tuple[Level, Any]]:
    """Configurations of ``name``, the smallest first. One that is no valid configuration is passed over."""
    config_class, _ = classes(name)
    problem: Exception | None = None
    found = 0
    for level in LEVELS:
        try:
            made = _made(config_class, name, level)
        except Exception as e:  # noqa: BLE001 - what a configuration says against its fields is not known
            problem = problem or e
            continue
        found += 1
        yield level, made
    if not found and problem is not None:
        raise problem


def _made(config_class: Any, name: str, level: Level) -> Any:
    default = FIXED[name](config_class) if name in FIXED else config_class()
    fields = _small(default.to_dict(), level, {})
    for key in ("transformers_version", "model_type", "architectures", "_name_or_path"):
        fields.pop(key, None)
    return config_class.from_dict(fields)


def _both_towers(config_class: Any) -> Any:
    from transformers import BertConfig, ViTConfig

    return config_class.from_vision_text_configs(ViTConfig(), BertConfig())


def _with(**fields: Any) -> Callable[[Any], Any]:
    return lambda config_class: config_class(**fields)


_HALF_ROTATED = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}

FIXED: dict[str, Callable[[Any], Any]] = {  # whose defaults make no valid model
    "vision-text-dual-encoder": _both_towers,
    "autoformer": _with(prediction_length=4, context_length=16),
    "informer": _with(prediction_length=4, context_length=16),
    "time_series_transformer": _with(prediction_length=4, context_length=16),
    "aya_vision": _with(
        vision_config={"model_type": "siglip_vision_model", "num_attention_heads": 16, "hidden_size": 1152}
    ),
    "bamba": _with(attn_layer_indices=[1], num_hidden_layers=2),
    "chameleon": _with(vocabulary_map={"<image>": 8711}),
    "emu3": _with(vocabulary_map={"<image>": 8711}),
    "granitemoehybrid": _with(layer_types=["mamba", "attention"], num_hidden_layers=2),
    "jamba": _with(attn_layer_period=2, attn_layer_offset=1, num_hidden_layers=2),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_image_text"), _with(**_HALF_ROTATED)),
    **dict.fromkeys(("glm46v", "glm4v", "glm4v_moe", "glm_image", "glmga"), _with(text_config=_HALF_ROTATED)),
    "xmod": _with(default_language="en_XX"),
    "timm_backbone": _with(backbone="resnet18", use_pretrained_backbone=False),
    "blip-2": _with(image_token_index=5),
    "instructblip": _with(image_token_index=5),
    "esm": _with(vocab_size=33, pad_token_id=1, mask_token_id=32),
}


def _small(fields: dict[str, Any], level: Level, tokens: dict[int, int]) -> dict[str, Any]:
    """``fields`` made smaller. ``tokens`` maps special tokens that are out of the vocabulary now."""
    if not all(type(name) is str for name in fields):
        return fields
    kept, layers = _kept_layers(fields, level.layers)
    out: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name not in ("id2label", "label2id"):
            out[name] = _small(value, level, tokens)
        elif (
            isinstance(value, (list, tuple))
            and layers
            and len(value) == layers
            and name not in ("depths", "out_indices")
        ):
            out[name] = [_number(name, value[k], level, len(kept), tokens) for k in kept]
        elif isinstance(value, (list, tuple)):
            out[name] = _listed(name, list(value), level, len(kept), tokens)
        else:
            out[name] = _number(name, value, level, len(kept), tokens)
        if isinstance(value, tuple) and isinstance(out[name], list):
            out[name] = tuple(out[name])
    if level.images:
        _small_images(out)
    if level.filled:
        _fill(out)
    text, vision = out.get("text_config"), out.get("vision_config")
    if isinstance(text, dict) and isinstance(vision, dict) and "out_hidden_size" in vision and "hidden_size" in text:
        vision["out_hidden_size"] = text["hidden_size"]
    return out


def _fill(fields: dict[str, Any]) -> None:
    width, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if type(width) is int and type(heads) is int and fields.get("head_dim", 0) is None:
        fields["head_dim"] = width // heads
    if fields.get("layer_types", 0) is None and type(fields.get("num_hidden_layers")) is int:
        fields["layer_types"] = ["full_attention"] * fields["num_hidden_layers"]
    for name, value in FILLED.items():
        if fields.get(name, 0) is None:
            fields[name] = value


def _kept_layers(fields: dict[str, Any], least: int) -> tuple[list[int], int]:
    """Which layers stay: those with a type that none before them has, and others up to ``least``; and how many there were."""
    counts = [
        v for n, v in fields.items() if type(v) is int and LAYERS.search(n) and not NOT_LAYERS.search(n) and v > 0
    ]
    count = fields.get("num_hidden_layers") if type(fields.get("num_hidden_layers")) is int else (counts or [0])[0]
    if not least or not count or count <= least:
        return list(range(count or 0)), 0
    kept: list[int] = []
    for name in TYPES:
        types = fields.get(name)
        if isinstance(types, (list, tuple)) and len(types) == count and all(isinstance(t, str) for t in types):
            kept += [list(types).index(t) for t in dict.fromkeys(types)]
    kept += [k for k in range(count) if k not in kept][: max(0, least - len(set(kept)))]
    return sorted(set(kept)), count


def _number(name: str, value: Any, level: Level, layers: int, tokens: dict[int, int]) -> Any:
    if isinstance(value, (list, tuple)):
        return _listed(name, list(value), level, layers, tokens)
    if type(value) is not int:
        return value
    if level.words and "vocab" in name:
        return min(value, VOCABULARY)
    if level.words and TOKEN.search(name):
        return _token(value, tokens)
    if level.layers and LAYERS.search(name) and not NOT_LAYERS.search(name) and layers:
        return min(value, layers)
    if level.layers and name == "num_kv_shared_layers":
        return 0
    if level.divisor > 1 and EXPERTS.search(name):
        return min(value, 8)
    if level.divisor > 1 and CHOSEN.search(name):
        return min(value, 2)
    if level.divisor > 1 and name in GROUPS:
        return min(value, 1)
    if level.images and name == "max_source_positions":
        return min(value, 64)
    if level.divisor > 1 and "intermediate" in name and value >= 16 * level.divisor:
        return value // level.divisor // 8 * 8  # kernels want rows that are multiples of 16 bytes
    return value // level.divisor if _is_width(name, [value], level) else value


def _token(value: int, tokens: dict[int, int]) -> int:
    return value if value < VOCABULARY else tokens.setdefault(value, VOCABULARY - 1 - len(tokens))


def _is_width(name: str, values: list[Any], level: Level) -> bool:
    if level.heads and (HEADS.search(name) or HEAD.search(name)):
        return bool(HEADS.search(name)) and all(type(v) is int and v > 0 and v % level.divisor == 0 for v in values)
    named = WIDTHS.search(name) and not NOT_WIDTHS.search(name) and not (name == "in_channels" and len(values) == 1)
    return bool(named) and all(type(v) is int and v >= 2 * level.divisor and v % level.divisor == 0 for v in values)


def _listed(name: str, values: list[Any], level: Level, layers: int, tokens: dict[int, int]) -> list[Any]:
    if level.layers and name in ("depths", "blocks_per_stage", "stage_numb_of_layers"):
        return [min(v, 2) if type(v) is int else v for v in values]
    if level.words and TOKEN.search(name) and all(type(v) is int for v in values):
        return [_token(v, tokens) for v in values]
    if values and _is_width(name, values, level):
        return [v // level.divisor for v in values]
    indices = re.search(r"(index|indexes|indices|_layers|_layer_ids|_blocks|insert_layer)$", name)
    if level.layers and layers and indices and values and all(type(v) is int for v in values):
        return sorted({min(v, layers - 1) for v in values})
    return [_small(v, level, tokens) if isinstance(v, dict) else v for v in values]


def _small_images(fields: dict[str, Any]) -> None:
    """Four patches a side, 64 pixels where patches are small, or what windows need."""
    patch = fields.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) and patch and type(patch[0]) is int else patch
    side = 4 * patch if type(patch) is int and patch >= 7 else 64
    window, stages = fields.get("window_size"), len(fields.get("depths") or [0])
    if type(window) is int and type(patch) is int:  # the last stage is one window
        side = max(side, patch * window << stages - 1)
    for name in ("image_size", "input_size", "pretrain_image_size"):
        if type(fields.get(name)) is int and fields[name] > 2 * side:
            fields[name] = side
        elif isinstance(fields.get(name), (list, tuple)) and all(type(v) is int and v > side for v in fields[name]):
            fields[name] = [side for _ in fields[name]]
