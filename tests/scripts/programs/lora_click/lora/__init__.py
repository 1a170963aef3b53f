from .layers import LoRALinear, inject_lora, lora_state_dict, mark_only_lora_as_trainable, merge_lora
