"""Fields of Gemini's requests that do not reach an engine: what each would mean, as tables.

A field leaves its table when it becomes supported.
"""

from __future__ import annotations

from extproc.dialects.field_rules import Rule

_NO_FILTER = "the engine does not filter content"
_ONE_TIER = "there is one tier"
_NOT_STORED = "answers are not stored"
_NO_MEDIA = "the model reads text"

BODY_RULES: dict[str, Rule] = {
    # Without effect on the answer.
    "safety_settings": Rule(neutral=([],), loss=_NO_FILTER),
    "labels": Rule(neutral=({},), loss=_NOT_STORED),
    "service_tier": Rule(loss=_ONE_TIER),
    "store": Rule(neutral=(False,), loss=_NOT_STORED),
    "model_armor_config": Rule(loss=_NO_FILTER),
    # Not supported, except where the value asks for what happens anyway.
    "cached_content": Rule(
        neutral=("",), refusal="'cachedContent' is not supported: send the content itself, engines cache prompts."
    ),
}

GENERATION_RULES: dict[str, Rule] = {
    "media_resolution": Rule(loss=_NO_MEDIA),
    "audio_timestamp": Rule(neutral=(False,), loss=_NO_MEDIA),
    "audio_transcription_config": Rule(loss=_NO_MEDIA),
    "enable_enhanced_civic_answers": Rule(neutral=(False,), loss=_NO_FILTER),
    "enable_affective_dialog": Rule(neutral=(False,), loss=_NO_MEDIA),
    "routing_config": Rule(loss="the model is the one in the path"),
    "model_selection_config": Rule(loss="the model is the one in the path"),
    "response_modalities": Rule(neutral=([], ["TEXT"], ["text"])),
    "speech_config": Rule(),
    "image_config": Rule(),
    "response_format": Rule(),
    "translation_config": Rule(),
    "continuation_token": Rule(neutral=("",)),
}

PART_RULES: dict[str, Rule] = {
    "video_metadata": Rule(loss=_NO_MEDIA),
    "media_resolution": Rule(loss=_NO_MEDIA),
    "media_processing": Rule(loss=_NO_MEDIA),
    "audio_metadata": Rule(loss=_NO_MEDIA),
    "speech_metadata": Rule(loss=_NO_MEDIA),
    "document_metadata": Rule(loss=_NO_MEDIA),
    "spreadsheet_metadata": Rule(loss=_NO_MEDIA),
    "audio_transcription": Rule(loss=_NO_MEDIA),
    "part_metadata": Rule(neutral=({},), loss="the engine gets the content alone"),
    "executable_code": Rule(refusal="Code that Google's servers ran is not supported in a conversation."),
    "code_execution_result": Rule(refusal="Code that Google's servers ran is not supported in a conversation."),
    "tool_call": Rule(refusal="Tools that Google's servers run are not supported in a conversation."),
    "tool_response": Rule(refusal="Tools that Google's servers run are not supported in a conversation."),
}

RESPONSE_RULES: dict[str, Rule] = {
    "scheduling": Rule(loss="results are read with the next request"),
    "will_continue": Rule(neutral=(False,), loss="results are read as they are"),
}

DECLARATION_RULES: dict[str, Rule] = {
    "response": Rule(loss="templates have no place for the form of results"),
    "response_json_schema": Rule(loss="templates have no place for the form of results"),
    "behavior": Rule(neutral=("UNSPECIFIED", "BLOCKING"), loss="calls wait for their results"),
}

TOOL_CONFIG_RULES: dict[str, Rule] = {
    "retrieval_config": Rule(neutral=({},), loss="no tool of Google's is there to be configured"),
    "include_server_side_tool_invocations": Rule(neutral=(False,), loss="servers run no tools"),
}

CALLING_RULES: dict[str, Rule] = {
    "stream_function_call_arguments": Rule(neutral=(False,), loss="calls come whole"),
}

HOSTED_TOOLS = (
    "retrieval",
    "computer_use",
    "file_search",
    "google_search",
    "google_maps",
    "code_execution",
    "enterprise_web_search",
    "google_search_retrieval",
    "parallel_ai_search",
    "url_context",
    "mcp_servers",
    "exa_ai_search",
)
"""Tools that Google's servers run themselves."""
