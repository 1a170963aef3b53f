"""Tiny configurations of transformers architectures, with random weights: two layers, hidden size 32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]
VOCABULARY = 64


@dataclass(frozen=True)
class Architecture:
    """``config`` and ``model`` are names in ``transformers``; ``inputs(batch, length)`` makes keyword arguments.

    ``labels`` are inputs that only a training call is given; without any, the loss is made of the outputs.
    """

    config: str
    model: str
    inputs: Callable[[int, int], Inputs]
    settings: dict[str, Any] = field(default_factory=dict)
    labels: Callable[[int, int], Inputs] = lambda batch, length: {}

    def build(self) -> torch.nn.Module:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        return getattr(transformers, self.model)(config)


# --- inputs -------------------------------------------------------------------------------------------------------


def tokens(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length))}


def padded(batch: int, length: int) -> Inputs:
    """Tokens with a mask that hides the end of the first row."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -2:] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def both_sides(batch: int, length: int) -> Inputs:
    """What an encoder and a decoder of tokens are given."""
    return {**padded(batch, length), "decoder_input_ids": torch.randint(3, VOCABULARY, (batch, length - 1))}


def pictures(size: int) -> Callable[[int, int], Inputs]:
    return lambda batch, length: {"pixel_values": torch.randn(batch, 3, size, size)}


def text_and_pictures(size: int) -> Callable[[int, int], Inputs]:
    return lambda batch, length: {**tokens(batch, length), "pixel_values": torch.randn(batch, 3, size, size)}


def film(batch: int, length: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 2, 3, 16, 16)}


def sound(batch: int, length: int) -> Inputs:
    return {"input_values": torch.randn(batch, 400 + 40 * length)}


def spectrogram(batch: int, length: int) -> Inputs:
    return {
        "input_features": torch.randn(batch, 16, 32),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (batch, length)),
    }


def next_tokens(batch: int, length: int) -> Inputs:
    return {"labels": torch.randint(3, VOCABULARY, (batch, length))}


def classes(batch: int, length: int) -> Inputs:
    return {"labels": torch.randint(0, 2, (batch,))}


# --- settings -----------------------------------------------------------------------------------------------------

_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {**_SIZES, "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2}
_DECODER = {
    **_SIZES, "intermediate_size": 64, "max_position_embeddings": 64, "num_key_value_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SEQUENCES = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_PICTURES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
_SOUND = {
    **_SIZES, "intermediate_size": 64, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
_TEXT_TOWER = {**_SIZES, "intermediate_size": 64, "max_position_embeddings": 64, "eos_token_id": 2, "pad_token_id": 0}
_TOWERS = {"text_config": _TEXT_TOWER, "vision_config": _PICTURES}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    **_DECODER, **_EXPERTS, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "n_group": 2, "topk_group": 1, "head_dim": 8,
}  # fmt: skip
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def _decoder(family: str, inputs: Callable[[int, int], Inputs] = tokens, **settings: Any) -> Architecture:
    return Architecture(f"{family}Config", f"{family}ForCausalLM", inputs, {**_DECODER, **settings}, next_tokens)


def _encoder(family: str, head: str = "ForMaskedLM", **settings: Any) -> Architecture:
    return Architecture(f"{family}Config", f"{family}{head}", padded, {**_ENCODER, **settings}, next_tokens)


def _vision(family: str, head: str = "ForImageClassification", size: int = 16, **settings: Any) -> Architecture:
    return Architecture(f"{family}Config", f"{family}{head}", pictures(size), settings, classes)


def _sequences(family: str, head: str = "ForConditionalGeneration", **settings: Any) -> Architecture:
    return Architecture(
        f"{family}Config", f"{family}{head}", both_sides, {**_SEQUENCES, **settings},
        lambda batch, length: next_tokens(batch, length - 1),
    )  # fmt: skip


ARCHITECTURES: dict[str, Architecture] = {
    # decoders
    "gpt2": Architecture("GPT2Config", "GPT2LMHeadModel", padded, _GPT2),  # given labels, it writes to the log
    "gpt_neox": _decoder("GPTNeoX"),
    "gptj": Architecture("GPTJConfig", "GPTJForCausalLM", tokens, {**_GPT2, "rotary_dim": 4}, next_tokens),
    "opt": _decoder("OPT", inputs=padded, ffn_dim=64, word_embed_proj_dim=32),
    "bloom": Architecture(
        "BloomConfig", "BloomForCausalLM", tokens,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}, next_tokens,
    ),
    "falcon": _decoder("Falcon"),
    "llama": _decoder("Llama", inputs=padded),
    "mistral": _decoder("Mistral", sliding_window=4),
    "mixtral": _decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2": _decoder("Qwen2"),
    "qwen2_moe": _decoder("Qwen2Moe", **_EXPERTS, num_experts=4, shared_expert_intermediate_size=32),
    "qwen3": _decoder("Qwen3", head_dim=8),
    "qwen3_moe": _decoder("Qwen3Moe", **_EXPERTS, num_experts=4, head_dim=8),
    "gemma": _decoder("Gemma", head_dim=8),
    "gemma2": _decoder("Gemma2", head_dim=8, sliding_window=4),
    "gemma3": Architecture(
        "Gemma3TextConfig", "Gemma3ForCausalLM", tokens, {**_DECODER, "head_dim": 8, "sliding_window": 4}, next_tokens
    ),
    "phi": _decoder("Phi"),
    "phi3": _decoder("Phi3"),
    "stablelm": _decoder("StableLm"),
    "olmo": _decoder("Olmo"),
    "olmo2": _decoder("Olmo2"),
    "cohere": _decoder("Cohere"),
    "granite": _decoder("Granite"),
    "starcoder2": _decoder("Starcoder2"),
    "smollm3": _decoder("SmolLM3"),
    "deepseek_v2": _decoder("DeepseekV2", **{**_LATENT, "topk_method": "greedy"}),
    "deepseek_v3": _decoder("DeepseekV3", **_LATENT),
    "gpt_oss": _decoder("GptOss", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=4),
    "mamba": Architecture(
        "MambaConfig", "MambaForCausalLM", tokens,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, next_tokens,
    ),
    "exaone4": _decoder("Exaone4", head_dim=8, sliding_window=4),
    "granitemoeshared": _decoder("GraniteMoeShared", num_local_experts=4, num_experts_per_tok=2,
                                 shared_intermediate_size=32),
    "glm4": _decoder("Glm4", head_dim=8),
    "nemotron": _decoder("Nemotron", head_dim=8),
    # encoders
    "xlm_roberta": _encoder("XLMRoberta", pad_token_id=1),
    "nomic_bert": _encoder("NomicBert"),
    "bert": _encoder("Bert"),
    "roberta": _encoder("Roberta", pad_token_id=1),
    "distilbert": Architecture(
        "DistilBertConfig", "DistilBertForMaskedLM", padded,
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
         "max_position_embeddings": 64}, next_tokens,
    ),
    "albert": _encoder("Albert", embedding_size=16),
    "electra": _encoder("Electra", embedding_size=16),
    "deberta": _encoder("Deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16),
    "deberta_v2": _encoder(
        "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True,
    ),
    "modernbert": _encoder("ModernBert", local_attention=4, pad_token_id=0, cls_token_id=1, sep_token_id=2),
    "mpnet": _encoder("MPNet"),
    "convbert": _encoder("ConvBert", embedding_size=16, conv_kernel_size=3, num_groups=1, head_ratio=2),
    "xlnet": Architecture(
        "XLNetConfig", "XLNetLMHeadModel", padded,
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, next_tokens,
    ),
    # encoder and decoder
    "t5": Architecture(
        "T5Config", "T5ForConditionalGeneration", both_sides,
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
         "num_heads": 4, "decoder_start_token_id": 0}, lambda batch, length: next_tokens(batch, length - 1),
    ),
    "bart": _sequences("Bart"),
    "mbart": _sequences("MBart"),
    "pegasus": _sequences("Pegasus"),
    "marian": _sequences("Marian", "MTModel"),
    # vision
    "vit": _vision("ViT", **_PICTURES),
    "deit": _vision("DeiT", **_PICTURES),
    "beit": _vision("Beit", **_PICTURES),
    "dinov2": _vision("Dinov2", **_PICTURES),
    "swin": _vision("Swin", size=32, image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
                    window_size=4),
    "convnext": _vision("ConvNext", size=32, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "resnet": _vision("ResNet", size=32, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "mobilenet_v2": _vision("MobileNetV2", size=32, depth_multiplier=0.25, image_size=32),
    "segformer": _vision(
        "Segformer", size=32, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    ),
    "detr": Architecture(
        "DetrConfig", "DetrForObjectDetection", pictures(64),
        {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": 32,
         "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 5,
         "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                             "layer_type": "basic", "out_features": ["stage2"]}},
    ),
    "timesformer": Architecture(
        "TimesformerConfig", "TimesformerForVideoClassification", film, {**_PICTURES, "num_frames": 2}, classes
    ),
    "videomae": Architecture(
        "VideoMAEConfig", "VideoMAEForVideoClassification", film, {**_PICTURES, "num_frames": 2}, classes
    ),
    # text and pictures, sound
    "clip": Architecture("CLIPConfig", "CLIPModel", text_and_pictures(16), {**_TOWERS, "projection_dim": 32}),
    "siglip": Architecture("SiglipConfig", "SiglipModel", text_and_pictures(16), _TOWERS),
    "whisper": Architecture(
        "WhisperConfig", "WhisperForConditionalGeneration", spectrogram,
        {**_SEQUENCES, "num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 32}, next_tokens,
    ),
    "wav2vec2": Architecture("Wav2Vec2Config", "Wav2Vec2ForCTC", sound, _SOUND),
    "hubert": Architecture("HubertConfig", "HubertForCTC", sound, _SOUND),
}  # fmt: skip
