"""Chat templates, tokenizers and detokenizers: from a conversation to token ids, from token ids to text.

Knows: tokenizer folders and archives, the template language, vocabularies. Must not know HTTP or any wire format.

`model` is the entry: everything of one model. `source` finds the files, `template` renders, `tokenizer` encodes,
`detokenizer` decodes. The serving process never loads the library `tokenizers`, whose loading and encoding hold the
interpreter lock: `inspection` runs it in a short-lived child, to compare it with the fast library and to build the
detokenizing table, and `remote` keeps a child (`child`) for texts that only it encodes rightly.
"""
