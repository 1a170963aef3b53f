"""Public models of Transformers whose library code breaks graphs, made small, with random weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

Inputs = dict[str, Any]
V = 64  # tokens

_SEQUENCES: Inputs = {
    "vocab_size": V, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_ENCODER: Inputs = {
    "vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 128, "type_vocab_size": 2,
}  # fmt: skip
_T5: Inputs = {
    "vocab_size": V,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_SOUND: Inputs = {
    "vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "mask_feature_prob": 0.0, "layerdrop": 0.0,
    "mask_time_prob": 0.5, "mask_time_length": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0, "final_dropout": 0.0,
}  # fmt: skip
_XLM: Inputs = {
    "vocab_size": V, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "pad_index": 2,
    "pad_token_id": 2, "eos_index": 1,
}  # fmt: skip
_GPT2: Inputs = {
    "vocab_size": V,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


_PICTURE = 40  # the token that stands for one
_DECODER: Inputs = {
    "vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PIXELS: Inputs = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _tokens(batch: int = 2, length: int = 10) -> torch.Tensor:
    return torch.randint(3, V, (batch, length), generator=torch.Generator().manual_seed(0))


def _ended(end: int = 2) -> torch.Tensor:
    found = _tokens()
    found[:, -1] = end
    return found


def _text() -> Inputs:
    return {"input_ids": _tokens()}


def _classified() -> Inputs:
    return {"input_ids": _ended(), "attention_mask": torch.ones(2, 10, dtype=torch.long)}


def _both() -> Inputs:
    return {**_classified(), "decoder_input_ids": _tokens(2, 9)}


def _sound() -> Inputs:
    return {"input_values": _drawn(2, 1200)}


def _lengths() -> Inputs:
    return {"input_ids": _tokens(), "lengths": torch.tensor([10, 8])}


def _with_pictures(first: int, last: int, pixels: torch.Tensor) -> Inputs:
    """Tokens, of which some stand for pictures."""
    tokens = _tokens(1, 20)
    tokens[0, first:last] = _PICTURE
    return {"input_ids": tokens, "pixel_values": pixels}


def _grids() -> Inputs:
    tokens = _tokens(1, 12)
    tokens[0, 2], tokens[0, 7] = 50, 52
    told = _with_pictures(3, 7, _drawn(16, 96))
    told["input_ids"] = torch.where(told["input_ids"][:, :12] == _PICTURE, _PICTURE, tokens)
    kinds = torch.where(told["input_ids"] == _PICTURE, 1, 0)
    mask = torch.ones(1, 12, dtype=torch.long)
    return {**told, "image_grid_thw": torch.tensor([[1, 4, 4]]), "attention_mask": mask, "mm_token_type_ids": kinds}


def _of(
    name: str, head: str, inputs: Callable[[], Inputs], *, train: bool = False, **settings: Any
) -> Callable[[], Any]:
    def build() -> tuple[torch.nn.Module, Inputs]:
        torch.manual_seed(0)
        model = getattr(transformers, name + head)(getattr(transformers, f"{name}Config")(**settings))
        return (model.train() if train else model.eval()), inputs()

    return build


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    # the number of tokens that end a sentence decides
    **{
        name: _of(name, "ForSequenceClassification", _classified, **_SEQUENCES)
        for name in ("Bart", "MBart", "PLBart", "Mvp")
    },
    "BigBirdPegasus": _of(
        "BigBirdPegasus", "ForSequenceClassification", _classified, attention_type="original_full", **_SEQUENCES
    ),
    **{
        name: _of(name, "ForSequenceClassification", lambda: {"input_ids": _ended(1)}, **_T5)
        for name in ("T5", "MT5", "UMT5")
    },
    # flags of tensors, logging
    "LED": _of("LED", "ForConditionalGeneration", _both, **{
        **_SEQUENCES, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 4
    }),
    "Longformer": _of("Longformer", "ForMaskedLM", _classified, **_ENCODER, attention_window=4),
    "GPT2": _of("GPT2", "LMHeadModel", lambda: {**_text(), "labels": _tokens()}, **_GPT2),
    # numbers of tensors, assertions
    "XLM": _of("XLM", "WithLMHeadModel", _lengths, **_XLM),
    "Flaubert": _of("Flaubert", "WithLMHeadModel", _lengths, **_XLM),
    "CTRL": _of("CTRL", "LMHeadModel", _text, vocab_size=V, n_positions=64, n_embd=32, dff=64, n_layer=2, n_head=4),
    "Encodec": _of(
        "Encodec", "Model", lambda: {"input_values": _drawn(2, 1, 640)}, hidden_size=8, codebook_dim=8, codebook_size=16,
        num_filters=4, upsampling_ratios=[4, 2], target_bandwidths=[1.5], sampling_rate=2400, num_lstm_layers=1,
    ),
    "FastSpeech2Conformer": _of(
        "FastSpeech2Conformer", "Model", lambda: {"input_ids": _tokens(1, 8)}, vocab_size=V, hidden_size=16, encoder_layers=1,
        decoder_layers=1, encoder_num_attention_heads=2, decoder_num_attention_heads=2, encoder_linear_units=16,
        decoder_linear_units=16, num_mel_bins=8, duration_predictor_channels=16, energy_predictor_channels=16,
        pitch_predictor_channels=16, speech_decoder_postnet_units=16, speech_decoder_postnet_layers=2,
    ),
    # shapes that data decides
    "NllbMoe": _of("NllbMoe", "ForConditionalGeneration", _both, **{
        **_SEQUENCES, "num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 1, "decoder_sparse_step": 1
    }),
    "SwitchTransformers": _of("SwitchTransformers", "ForConditionalGeneration", _both, **{
        **_T5, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4
    }),
    "Vits": _of(
        "Vits", "Model", lambda: {"input_ids": _tokens(1, 8)}, vocab_size=V, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, ffn_dim=16, flow_size=16, spectrogram_bins=9, upsample_initial_channel=16,
        upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
        duration_predictor_filter_channels=16, depth_separable_num_layers=1, prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1, posterior_encoder_num_wavenet_layers=1, duration_predictor_num_flows=2,
        noise_scale=0.0, noise_scale_duration=0.0,
    ),
    "JetMoe": _of(
        "JetMoe", "ForCausalLM", _text, vocab_size=V, hidden_size=32, num_hidden_layers=2, num_key_value_heads=2,
        kv_channels=8, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
    ),
    "Idefics3": _of(
        "Idefics3", "ForConditionalGeneration", lambda: _with_pictures(2, 6, _drawn(1, 1, 3, 16, 16)),
        text_config={**_DECODER, "model_type": "llama"}, vision_config={"model_type": "idefics3_vision", **_PIXELS},
        image_token_id=_PICTURE, scale_factor=2,
    ),
    "Qwen2VL": _of(
        "Qwen2VL", "ForConditionalGeneration", _grids,
        text_config={
            **_DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
        },
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
        vision_start_token_id=50, image_token_id=_PICTURE, vision_end_token_id=52, video_token_id=53,
    ),
    # locks and weak references
    "Llava": _of(
        "Llava", "ForConditionalGeneration", lambda: _with_pictures(2, 18, _drawn(1, 3, 16, 16)),
        text_config={**_DECODER, "model_type": "llama"}, vision_config={"model_type": "clip_vision_model", **_PIXELS},
        image_token_index=_PICTURE, image_token_id=_PICTURE, vision_feature_layer=-1,
    ),
    # numpy, random numbers, objects that change
    "BigBird": _of(
        "BigBird", "ForMaskedLM", lambda: {"input_ids": _tokens(2, 64)}, **_ENCODER, block_size=4, num_random_blocks=1
    ),
    "Reformer": _of(
        "Reformer", "ModelWithLMHead", lambda: {"input_ids": _tokens(2, 16)}, vocab_size=V, hidden_size=32,
        attention_head_size=8, num_attention_heads=4, feed_forward_size=32, axial_pos_shape=[4, 4],
        axial_pos_embds_dim=[16, 16], attn_layers=["local", "lsh"], lsh_attn_chunk_length=4, local_attn_chunk_length=4,
        num_buckets=4, num_hashes=1, is_decoder=True, hash_seed=0, max_position_embeddings=64,
    ),
    **{
        name: _of(name, "ForCTC", _sound, train=True, **_SOUND)
        for name in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech")
    },
    "SEW": _of("SEW", "ForCTC", _sound, train=True, **_SOUND, squeeze_factor=1),
    "Data2VecAudio": _of("Data2VecAudio", "ForCTC", _sound, train=True, **{
        **_SOUND, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3
    }),
}  # fmt: skip
