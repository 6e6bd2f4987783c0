"""Conversations on standard input, as JSON, to the token ids that transformers gives the model for them.

python reference_ids.py FOLDER < conversations.json
"""

import json
import sys

from transformers import AutoTokenizer

if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    conversations = json.load(sys.stdin)
    encoded = [
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True) for turns in conversations
    ]
    json.dump([[int(token) for token in one["input_ids"]] for one in encoded], sys.stdout)
