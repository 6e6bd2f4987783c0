"""Chat templates, tokenizers and detokenizers: from a conversation to token ids, from token ids to text.

Knows: tokenizer folders and archives, the template language, vocabularies. Must not know HTTP or any wire format.

`model` is the entry: everything of one model. `source`, `conversion` and `template_files` find the files, `templates`
renders, `tokenizer` encodes, `detokenizer` decodes.

The serving process never loads the library `tokenizers`, whose loading and encoding hold the interpreter lock:
`inspection` runs it in a short-lived child, to compare it with the fast library and to build the detokenizing table,
and `remote` keeps a child (`child`) for texts that only it encodes rightly, and for large tokenizers that come while
requests are served. Nor does it run templates that could hold it up, or whose values may grow (`template_growth`):
`template_process` keeps children (`template_child`) that compare both engines (`template_inspection`),
render what is long or what only jinja2 renders rightly, and are ended by the kernel when they take too much.
"""
