"""Two models as folders that engines load: a small one that talks sense, and a tiny one that answers fast.

    python make_models.py WEIGHTS.gguf FOLDER

- FOLDER/smollm2-135m: SmolLM2-135M-Instruct (Apache-2.0), its 4-bit weights widened to bfloat16.
- FOLDER/tiny-llama: two layers of fixed random weights with the same tokenizer and chat template. Its embeddings are
  not tied, else greedy decoding repeats one token.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

END_OF_TURN = "<|im_end|>"


def main(weights: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    save(widened(weights), tokenizer, end, folder / "smollm2-135m")
    torch.manual_seed(0)
    save(tiny(len(tokenizer), end), tokenizer, end, folder / "tiny-llama")


def widened(weights: Path) -> LlamaForCausalLM:
    """The quantized model as plain bfloat16."""
    quantized = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    shape = quantized.config.to_dict()
    shape.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**{**shape, "dtype": "bfloat16"})).to(torch.bfloat16)
    model.load_state_dict({name: value.to(torch.bfloat16) for name, value in quantized.state_dict().items()})
    return model


def tiny(vocabulary: int, end: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=end,
        pad_token_id=end,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def save(model: LlamaForCausalLM, tokenizer, end: int, folder: Path) -> None:
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=end, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # mlx-lm below 0.32 reads the rotary base only at the top level, where transformers no longer writes it.
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written["rope_theta"] = written["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(written, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
